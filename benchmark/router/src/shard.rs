//! A shard that computes nothing: it answers every step with tokens drawn from a range of ids, at once or when a device of
//! constant speed would have.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use textgen_router::shard::columns::Column;
use textgen_router::shard::protocol::{
    Done, FLAG_SAMPLE, Frame, HEADER, Hello, KvFacts, ModelFacts, SEGMENT_COLUMNS, Step, StepLimits, Times, VERSION,
};

use crate::Outcome;
use crate::options::Options;

/// Speaks the step protocol on standard input, which is a socket, until the router hangs up.
///
/// # Errors
/// When the router breaks the protocol.
pub fn run(options: &Options) -> Outcome {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let (first, vocabulary) = (options.number("first-token", 300)?, options.number("vocabulary", 2048)?);
    let mut shard = Shard {
        input: BufReader::with_capacity(1 << 20, socket.try_clone()?),
        output: socket,
        device: Device { step: options.seconds("step-ms", 0.0)? / 1000, free: Instant::now() },
        arrived: None,
        tokens: Tokens { first, count: vocabulary - first, state: 0x9E37_79B9_7F4A_7C15 },
        buffer: Vec::new(),
    };
    shard.greet(vocabulary, options.number("slots", 1024)?, options.number("blocks", 1 << 18)?)?;
    while let Some(frame) = shard.receive()? {
        match frame {
            Frame::Step(step) => shard.step(&step)?,
            Frame::Stop => break,
            _ => {}
        }
    }
    Ok(())
}

struct Shard {
    input: BufReader<UnixStream>,
    output: UnixStream,
    device: Device,
    /// When the next frame came, if it came while the device was busy.
    arrived: Option<Instant>,
    tokens: Tokens,
    buffer: Vec<u8>,
}

/// A device that takes the same time for each step, and begins the next one when one is waiting.
struct Device {
    step: Duration,
    free: Instant,
}

impl Device {
    /// Runs a step that arrived then, and gives the time until it ends.
    fn begin(&mut self, arrived: Instant) -> Duration {
        self.free = self.free.max(arrived) + self.step;
        self.free.saturating_duration_since(Instant::now())
    }
}

/// Ids of ordinary tokens, in no order (xorshift).
struct Tokens {
    first: u32,
    count: u32,
    state: u64,
}

impl Tokens {
    fn next(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.first + (self.state >> 32) as u32 % self.count
    }
}

impl Shard {
    fn greet(&mut self, vocab_size: u32, max_slots: u32, num_blocks: u32) -> Outcome {
        self.send(&Frame::Hello(Hello {
            version: VERSION,
            rank: 0,
            world_size: 1,
            model: ModelFacts { vocab_size, max_positions: 1 << 17, dtype: "none".to_owned() },
            kv: KvFacts { num_pages: num_blocks, block_size: 16, bytes_per_page: 1, groups: vec![None] },
            limits: StepLimits { max_slots, max_batch_tokens: 1 << 16, max_top_n: 0, asks_for_masks: false },
            regions: Vec::new(),
            phases: Vec::new(),
            measured: Vec::new(),
        }))
    }

    fn send(&mut self, frame: &Frame) -> Outcome {
        self.buffer.clear();
        frame.encode(&mut self.buffer)?;
        Ok(self.output.write_all(&self.buffer)?)
    }

    fn receive(&mut self) -> Outcome<Option<Frame>> {
        let mut header = [0; HEADER];
        if self.input.read_exact(&mut header).is_err() {
            return Ok(None);
        }
        let [a, b, c, d, kind] = header;
        let mut payload = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
        self.input.read_exact(&mut payload)?;
        Ok(Some(Frame::decode(kind, &payload)?))
    }

    /// Until the device has run the step that was just read. A step that comes meanwhile begins when this one ends, however late
    /// we wake: only a router that sends it too late leaves the device idle.
    fn wait(&mut self) -> Outcome {
        if self.device.step.is_zero() {
            return Ok(());
        }
        let arrived = self.arrived.take().unwrap_or_else(Instant::now);
        let left = self.device.begin(arrived);
        if !left.is_zero() {
            self.input.get_ref().set_read_timeout(Some(left))?;
            let next = self.input.fill_buf().map(<[u8]>::is_empty);
            self.input.get_ref().set_read_timeout(None)?;
            match next {
                Ok(_) => self.arrived = Some(Instant::now()),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        std::thread::sleep(self.device.free.saturating_duration_since(Instant::now()));
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Outcome {
        let count = step.segments.0.len() / SEGMENT_COLUMNS;
        let column = |index: usize| step.segments.0.iter().skip(index * count).take(count).copied();
        let sampled: Vec<u32> =
            column(0).zip(column(4)).filter(|(_, flags)| flags & FLAG_SAMPLE != 0).map(|(slot, _)| slot).collect();
        self.wait()?;
        let rows = sampled.len();
        let tokens = (0..rows).map(|_| self.tokens.next()).collect();
        self.send(&Frame::Done(Done {
            step: step.step,
            slots: Column(sampled),
            counts: Column(vec![1; rows]),
            tokens: Column(tokens),
            logprobs: Column(vec![-1.234_567_8; rows]),
            wide: None,
            times: Times { queue_ns: 1, forward_ns: 1, sample_ns: 1 },
        }))
    }
}
