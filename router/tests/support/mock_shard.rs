//! A shard without a model: it keeps tokens where a real one keeps keys and values, and "samples" a hash of all that it finds
//! in a slot's block table. A block lost, shared or overwritten by mistake changes the text.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use textgen_router::shard::columns::Column;
use textgen_router::shard::protocol::{
    Admit, Ask, Done, FLAG_LAST, FLAG_PROMPT_LOGPROBS, FLAG_SAMPLE, Failed, Frame, HEADER, Hello, KvFacts, ModelFacts,
    Region, SEGMENT_COLUMNS, Step, StepLimits, Times, VERSION,
};

pub const VOCAB: u32 = 50_000;
const PART: u64 = 1 << 16;

/// The token after `context`.
pub fn next_token(context: &[u32]) -> u32 {
    let hash = context
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &token| (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3));
    (hash >> 20) as u32 % VOCAB
}

/// What a prompt is continued with.
pub fn continuation(prompt: &[u32], length: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..length {
        tokens.push(next_token(&tokens));
    }
    tokens.split_off(prompt.len())
}

#[derive(Clone, Copy)]
pub struct MockConfig {
    /// Of the step protocol, as far as it says.
    pub version: u16,
    pub vocab: u32,
    pub num_blocks: u32,
    pub block_size: u32,
    pub max_slots: u32,
    pub max_batch_tokens: u32,
    /// Closes the link instead of answering the step of this number, its own first being 1.
    pub dies_at_step: Option<u64>,
    /// Takes steps and answers none from this one of its own on.
    pub silent_from_step: Option<u64>,
    /// Takes grammar masks; without, it has no region for them.
    pub takes_masks: bool,
    /// Takes masks in part, and asks for the rest.
    pub asks_for_masks: bool,
    /// Never finds a mask, and fails whoever should have one.
    pub is_blind: bool,
    /// How long it says that a forward pass takes.
    pub forward_ns: u64,
    /// How long a step takes at least.
    pub takes: Duration,
    /// Reports a failure of any slot that holds this token.
    pub poison: Option<u32>,
}

impl Default for MockConfig {
    fn default() -> Self {
        Self {
            version: VERSION,
            vocab: VOCAB,
            num_blocks: 64,
            block_size: 4,
            max_slots: 32,
            max_batch_tokens: 32,
            dies_at_step: None,
            silent_from_step: None,
            takes_masks: true,
            asks_for_masks: true,
            is_blind: false,
            forward_ns: 2,
            takes: Duration::ZERO,
            poison: None,
        }
    }
}

impl MockConfig {
    /// From one mask to the next.
    fn stride(&self) -> u64 {
        64 + u64::from(self.vocab.div_ceil(32) * 4).next_multiple_of(64)
    }

    fn mask_bytes(&self) -> u64 {
        if self.takes_masks { 4 * u64::from(self.max_slots) * self.stride() } else { 0 }
    }
}

/// The token after `context` among those allowed: the first from the hash on.
pub fn next_allowed(context: &[u32], vocab: u32, allowed: impl Fn(u32) -> bool) -> Option<u32> {
    let first = next_token(context) % vocab;
    (first..vocab).chain(0..first).find(|&token| allowed(token))
}

pub struct MockShard {
    pub socket: OwnedFd,
    pub memory: OwnedFd,
}

/// Starts a mock shard on a thread that ends with its link.
pub fn start(config: MockConfig) -> MockShard {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let memory = rustix::fs::memfd_create("mock", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memory, PART * 4 + config.mask_bytes()).unwrap();
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let ours_memory = memory.as_fd().try_clone_to_owned().unwrap();
    std::thread::spawn(move || Mock::new(config, ours, ours_memory).run());
    MockShard { socket: theirs.into(), memory }
}

#[derive(Default)]
struct Seat {
    table: Vec<u32>,
    last: u32,
    top_n: u32,
    prompt_top_n: u32,
}

struct Mock {
    config: MockConfig,
    socket: UnixStream,
    memory: std::fs::File,
    seats: HashMap<u32, Seat>,
    steps: u64,
    blocks: Vec<Vec<Option<u32>>>,
}

impl Mock {
    fn new(config: MockConfig, socket: UnixStream, memory: OwnedFd) -> Self {
        let blocks = vec![vec![None; config.block_size as usize]; config.num_blocks as usize];
        Self { config, socket, memory: memory.into(), seats: HashMap::new(), steps: 0, blocks }
    }

    fn run(mut self) {
        self.send(&Frame::Hello(Hello {
            version: self.config.version,
            rank: 0,
            world_size: 1,
            model: ModelFacts { vocab_size: self.config.vocab, max_positions: 4096, dtype: "float32".to_owned() },
            kv: KvFacts {
                num_pages: self.config.num_blocks,
                block_size: self.config.block_size,
                bytes_per_page: 64,
                groups: vec![None],
            },
            limits: StepLimits {
                max_slots: self.config.max_slots,
                max_batch_tokens: self.config.max_batch_tokens,
                max_top_n: 20,
                asks_for_masks: self.config.asks_for_masks,
            },
            regions: self.regions(),
            phases: vec![("import".to_owned(), 0.1)],
            measured: Vec::new(),
        }));
        while let Some(frame) = self.receive() {
            match frame {
                Frame::Admit(admit) => self.admit(&admit),
                Frame::Step(_) if self.config.dies_at_step == Some(self.steps + 1) => break,
                Frame::Step(step) => {
                    self.steps += 1;
                    if self.config.silent_from_step.is_none_or(|first| self.steps < first) {
                        std::thread::sleep(self.config.takes);
                        self.step(&step);
                    }
                }
                Frame::Stop => break,
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    fn regions(&self) -> Vec<Region> {
        let region = |name: &str, offset, length| Region { name: name.to_owned(), offset, length };
        let mut regions = vec![region("logprobs", 0, PART * 4)];
        if self.config.takes_masks {
            regions.push(region("masks", PART * 4, self.config.mask_bytes()));
        }
        regions
    }

    /// The mask in a slot, once it is stamped for the step; `None` where anything goes. If a part of it does not allow the likeliest
    /// token, it is all of it.
    fn mask(&mut self, step: u64, slot: u32, likeliest: u32) -> Option<Vec<u32>> {
        use std::os::unix::fs::FileExt;
        let at = PART * 4 + u64::from(slot) * self.config.stride();
        let mut header = [0; 16];
        while header[..8] != (step + 1).to_le_bytes() {
            std::thread::yield_now();
            self.memory.read_exact_at(&mut header, at).unwrap();
        }
        let mut bits = vec![0; self.config.vocab.div_ceil(32) as usize * 4];
        self.memory.read_exact_at(&mut bits, at + 64).unwrap();
        let is_in_part = header[8] == 2;
        assert!(!is_in_part || self.config.asks_for_masks, "a part that nobody can complete");
        if is_in_part && bits[likeliest as usize / 8] >> (likeliest % 8) & 1 == 0 {
            self.send(&Frame::Ask(Ask { step, masks: Column(vec![slot]) }));
            while header[8] == 2 {
                std::thread::yield_now();
                self.memory.read_exact_at(&mut header, at).unwrap();
            }
            self.memory.read_exact_at(&mut bits, at + 64).unwrap();
        }
        let words = bits.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        (header[8] != 1).then(|| words.collect())
    }

    fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        // The engine may be gone by now.
        let _ = self.socket.write_all(&bytes);
    }

    fn receive(&mut self) -> Option<Frame> {
        let mut header = [0; HEADER];
        self.socket.read_exact(&mut header).ok()?;
        let [a, b, c, d, kind] = header;
        let mut payload = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
        self.socket.read_exact(&mut payload).ok()?;
        Some(Frame::decode(kind, &payload).unwrap())
    }

    fn admit(&mut self, admit: &Admit) {
        assert!(admit.slot < self.config.max_slots);
        self.seats.insert(admit.slot, Seat { top_n: admit.top_n, prompt_top_n: admit.prompt_top_n, ..Seat::default() });
    }

    fn place(&self, seat: &Seat, position: usize) -> (usize, usize) {
        let size = self.config.block_size as usize;
        (seat.table[position / size] as usize, position % size)
    }

    fn context(&self, seat: &Seat, end: usize) -> Vec<u32> {
        let read = |position| {
            let (block, offset) = self.place(seat, position);
            self.blocks[block][offset].expect("a position that was never written")
        };
        (0..end).map(read).collect()
    }

    fn step(&mut self, step: &Step) {
        for slot in &step.freed.0 {
            self.seats.remove(slot);
        }
        for pair in step.copies.0.chunks(2) {
            self.blocks[pair[1] as usize] = self.blocks[pair[0] as usize].clone();
        }
        let count = step.segments.0.len() / SEGMENT_COLUMNS;
        let column = |index: usize| &step.segments.0[index * count..(index + 1) * count];
        assert!(column(2).iter().sum::<u32>() <= self.config.max_batch_tokens, "over the budget");
        let (mut tokens, mut blocks) = (step.tokens.0.iter(), step.blocks.0.iter());
        let (mut sampled, mut failed) = (Vec::new(), Vec::new());
        let (mut tops, mut scores): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
        for row in 0..count {
            let (slot, start, length) = (column(0)[row], column(1)[row] as usize, column(2)[row] as usize);
            let flags = column(4)[row];
            let mut seat = self.seats.remove(&slot).expect("a slot that was never admitted");
            seat.table.extend(blocks.by_ref().take(column(5)[row] as usize));
            for position in start..start + length {
                let last = position == start && flags & FLAG_LAST != 0;
                let token = if last { seat.last } else { *tokens.next().unwrap() };
                let (block, offset) = self.place(&seat, position);
                self.blocks[block][offset] = Some(token);
            }
            if flags & FLAG_PROMPT_LOGPROBS != 0 {
                // At position p: log-probability -p and rank p, before the tokens p, p + 1, … with -1, -2, …
                let (positions, top_n) = (start as u32..(start + length) as u32, seat.prompt_top_n);
                let logprob = |position| if position == 0 { f32::NAN } else { -(position as f32) };
                let both = |of: fn(u32, u32) -> [u8; 4]| {
                    positions.clone().flat_map(move |position| (0..top_n).flat_map(move |rank| of(position, rank)))
                };
                scores.extend(positions.clone().flat_map(|position| logprob(position).to_le_bytes()));
                scores.extend(positions.clone().flat_map(u32::to_le_bytes));
                scores.extend(both(|position, rank| (position + rank).to_le_bytes()));
                scores.extend(both(|_, rank| (-1.0 - rank as f32).to_le_bytes()));
            }
            let context = self.context(&seat, start + length);
            let poisoned = self.config.poison.is_some_and(|poison| context.contains(&poison));
            let mask_slot = step.masks.0.chunks(2).find(|pair| pair[0] as usize == row).map(|pair| pair[1]);
            if poisoned || (self.config.is_blind && mask_slot.is_some()) {
                failed.push(slot);
            } else if flags & FLAG_SAMPLE != 0 {
                let likeliest = next_allowed(&context, self.config.vocab, |_| true).expect("a vocabulary");
                let mask = mask_slot.and_then(|place| self.mask(step.step, place, likeliest));
                let allowed =
                    |token: u32| mask.as_ref().is_none_or(|mask| mask[token as usize / 32] >> (token % 32) & 1 == 1);
                seat.last = next_allowed(&context, self.config.vocab, allowed).expect("a mask that allows nothing");
                sampled.push((slot, seat.last));
                let alternatives = (0..seat.top_n).map(|rank| seat.last.saturating_sub(rank));
                tops.extend(alternatives.flat_map(u32::to_le_bytes));
                tops.extend((0..seat.top_n).flat_map(|rank| (-(rank as f32)).to_le_bytes()));
            }
            self.seats.insert(slot, seat);
        }
        assert!(tokens.next().is_none() && blocks.next().is_none());
        self.answer(step.step, &sampled, failed, tops, &scores);
    }

    fn answer(&mut self, step: u64, sampled: &[(u32, u32)], failed: Vec<u32>, mut wide: Vec<u8>, scores: &[u8]) {
        use std::os::unix::fs::FileExt;
        if !failed.is_empty() {
            let message = "the logits are not finite".to_owned();
            let kind = "numerics".to_owned();
            self.send(&Frame::Failed(Failed { step: Some(step), slots: Column(failed), kind, message }));
        }
        wide.extend(scores);
        let offset = step % 4 * PART;
        self.memory.write_all_at(&wide, offset).unwrap();
        self.send(&Frame::Done(Done {
            step,
            slots: Column(sampled.iter().map(|row| row.0).collect()),
            counts: Column(vec![1; sampled.len()]),
            tokens: Column(sampled.iter().map(|row| row.1).collect()),
            logprobs: Column(vec![-0.5; sampled.len()]),
            wide: (!wide.is_empty()).then_some((offset, wide.len() as u64)),
            times: Times { queue_ns: 1, forward_ns: self.config.forward_ns, sample_ns: 3 },
        }));
    }
}
