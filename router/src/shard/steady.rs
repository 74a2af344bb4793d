//! Steps that are as the one before, a token further, answered in the shard (`python/textgen/shard/steady.py`): read, run and
//! told without the interpreter, whose ways are long when a step has just driven all of it out of the caches.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};

use super::columns::Column;
use super::protocol::{Done, Frame, HEADER, MAX_PAYLOAD, SEGMENT_COLUMNS, Step, Times};

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// There is a token for each sequence.
    Well,
    /// There are numbers among the results that are none: nothing was kept.
    Unsound,
    /// It did not run.
    Not,
}

/// Sequences whose next step can be run from what the one before has left.
pub trait Batch {
    /// Runs it.
    fn run(&mut self) -> Ran;
    /// The token of each sequence, and its log-probability.
    fn found(&self) -> (&[i64], &[f32]);
}

/// What [`Follower::answer`] has done.
#[derive(Debug, Default)]
pub struct Answered {
    /// What was read and not answered, whole frames first.
    pub rest: Vec<u8>,
    /// How many steps were answered.
    pub steps: usize,
    /// The first frame of `rest` was run, and must be worked out instead.
    pub unsound: bool,
}

/// Answers such steps on the link to the router.
#[derive(Debug)]
pub struct Follower {
    link: UnixStream,
    /// Readable when it shall come back.
    bell: OwnedFd,
    /// When the step that runs was begun, in nanoseconds; 0 while none does.
    busy: AtomicU64,
    /// Sequences and times of the steps that nobody has asked for.
    told: Mutex<Vec<(usize, Times)>>,
}

impl Follower {
    /// link: does not block.
    #[must_use]
    pub const fn new(link: UnixStream, bell: OwnedFd) -> Self {
        Self { link, bell, busy: AtomicU64::new(0), told: Mutex::new(Vec::new()) }
    }

    /// Sequences and times of each step that was answered, or is about to be, since this was asked last; any thread may.
    pub fn take_times(&self) -> Vec<(usize, Times)> {
        std::mem::take(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// When the step that runs was begun: nanoseconds of the monotonic clock.
    pub fn busy_since(&self) -> Option<u64> {
        Some(self.busy.load(Ordering::Relaxed)).filter(|&since| since != 0)
    }

    /// Answers up to `most` steps, until something else comes, the bell rings or the router is gone. segments: of the step
    /// before, as it came; those that follow begin a position further each time. pending: what was read already.
    pub fn answer(&self, pending: Vec<u8>, segments: &[u32], most: usize, batch: &mut impl Batch) -> Answered {
        let mut answered = Answered { rest: pending, ..Answered::default() };
        let mut next = segments.to_vec();
        let (mut piece, mut read, mut output) = ([0; PIECE], now(), Vec::new());
        let mut at = 0;
        while answered.steps < most {
            let Some((kind, payload)) = whole_frame(&answered.rest[at..]) else {
                answered.rest.drain(..at);
                at = 0;
                if length_of(&answered.rest).is_some_and(|length| length > MAX_PAYLOAD) {
                    break;
                }
                match (&self.link).read(&mut piece) {
                    Ok(count) if count > 0 => {
                        answered.rest.extend_from_slice(&piece[..count]);
                        read = now();
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock && self.wait() => {}
                    _ => break,
                }
                continue;
            };
            let length = HEADER + payload.len();
            let count = next.len() / SEGMENT_COLUMNS;
            next[count..2 * count].iter_mut().for_each(|start| *start = start.wrapping_add(1));
            let Some(number) = number_of(kind, payload, &next) else { break };
            let started = now();
            self.busy.store(started, Ordering::Relaxed);
            let ran = batch.run();
            self.busy.store(0, Ordering::Relaxed);
            if ran != Ran::Well {
                answered.unsound = ran == Ran::Unsound;
                break;
            }
            let times = Times {
                queue_ns: started.saturating_sub(read),
                forward_ns: now().saturating_sub(started),
                sample_ns: 0,
            };
            at += length;
            answered.steps += 1;
            self.told.lock().unwrap_or_else(PoisonError::into_inner).push((count, times));
            output.clear();
            if done(number, &next[..count], batch.found(), times).encode(&mut output).is_err()
                || self.send(&output).is_err()
            {
                break;
            }
        }
        answered.rest.drain(..at);
        answered
    }

    /// Until there is something to read; false when the bell rang instead.
    fn wait(&self) -> bool {
        let mut ready = [PollFd::new(&self.link, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        // An error is that of a signal: whoever called looks at it.
        poll(&mut ready, None).is_ok() && !ready[0].revents().is_empty()
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match (&self.link).write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.link, PollFlags::OUT)], None)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Of the first frame's payload, if its header is there.
fn length_of(bytes: &[u8]) -> Option<usize> {
    let (&[a, b, c, d, _], _) = bytes.split_first_chunk::<HEADER>()?;
    Some(u32::from_le_bytes([a, b, c, d]) as usize)
}

/// Kind and payload of the first frame, if it is there to its end.
fn whole_frame(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let payload = bytes.get(HEADER..HEADER + length_of(bytes)?)?;
    Some((bytes[HEADER - 1], payload))
}

/// The number of a step that has these segments and nothing else.
fn number_of(kind: u8, payload: &[u8], segments: &[u32]) -> Option<u64> {
    let Ok(Frame::Step(step)) = Frame::decode(kind, payload) else { return None };
    let alone = Step { step: step.step, segments: Column(segments.to_vec()), ..Step::default() };
    (step == alone).then_some(step.step)
}

fn done(step: u64, slots: &[u32], (tokens, logprobs): (&[i64], &[f32]), times: Times) -> Frame {
    Frame::Done(Done {
        step,
        slots: Column(slots.to_vec()),
        counts: Column(vec![1; slots.len()]),
        tokens: Column(tokens.iter().map(|&token| token as u32).collect()),
        logprobs: Column(logprobs.to_vec()),
        wide: None,
        times,
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// Finds the number of the run, and what is told of it.
    struct Counting {
        tokens: Vec<i64>,
        unsound_at: i64,
    }

    impl Batch for Counting {
        fn run(&mut self) -> Ran {
            self.tokens.iter_mut().for_each(|token| *token += 1);
            if self.tokens[0] == self.unsound_at { Ran::Unsound } else { Ran::Well }
        }
        fn found(&self) -> (&[i64], &[f32]) {
            (&self.tokens, &[-0.5, -1.5])
        }
    }

    const BEFORE: [u32; 12] = [3, 1, 10, 20, 1, 1, 0, 0, 3, 3, 0, 0];

    fn step(number: u64, further: u32) -> Step {
        let mut segments = BEFORE.to_vec();
        segments[2..4].iter_mut().for_each(|start| *start += further);
        Step { step: number, segments: Column(segments), ..Step::default() }
    }

    fn bytes(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes).unwrap());
        bytes
    }

    fn follower() -> (UnixStream, OwnedFd, Follower) {
        let (router, shard) = UnixStream::pair().unwrap();
        shard.set_nonblocking(true).unwrap();
        let bell = eventfd(0, EventfdFlags::empty()).unwrap();
        let follower = Follower::new(shard, bell.try_clone().unwrap());
        (router, bell, follower)
    }

    fn counting() -> Counting {
        Counting { tokens: vec![40, 70], unsound_at: 0 }
    }

    fn told(mut router: &UnixStream) -> Vec<(u64, Vec<u32>)> {
        router.set_nonblocking(true).unwrap();
        let (mut bytes, mut told) = (Vec::new(), Vec::new());
        let _ = router.read_to_end(&mut bytes);
        let mut rest = &bytes[..];
        while let Some((kind, payload)) = whole_frame(rest) {
            let Ok(Frame::Done(done)) = Frame::decode(kind, payload) else { panic!("no Done") };
            assert_eq!((done.slots.0, done.counts.0, done.logprobs.0), (vec![3, 1], vec![1, 1], vec![-0.5, -1.5]));
            told.push((done.step, done.tokens.0));
            rest = &rest[HEADER + payload.len()..];
        }
        told
    }

    #[test]
    fn steps_are_answered_until_one_is_another() {
        let others = [
            Step { masks: Column(vec![0, 0]), ..step(9, 3) },
            Step { blocks: Column(vec![7]), ..step(9, 3) },
            Step { freed: Column(vec![1]), ..step(9, 3) },
            step(9, 4),
        ];
        for other in others {
            let (mut router, _bell, follower) = follower();
            let rest = [Frame::Step(other), Frame::Stop];
            let sent = bytes(&[Frame::Step(step(7, 1)), Frame::Step(step(8, 2)), rest[0].clone(), rest[1].clone()]);
            router.write_all(&sent).unwrap();
            let answered = follower.answer(Vec::new(), &BEFORE, 9, &mut counting());
            assert_eq!(told(&router), [(7, vec![41, 71]), (8, vec![42, 72])]);
            assert_eq!((answered.steps, answered.unsound), (2, false));
            assert_eq!(follower.take_times().iter().map(|(count, _)| *count).collect::<Vec<_>>(), [2, 2]);
            assert!(follower.take_times().is_empty());
            assert_eq!(answered.rest, bytes(&rest));
            assert!(follower.busy_since().is_none());
        }
    }

    #[test]
    fn no_more_than_asked_for_are_answered_and_torn_frames_are_given_back() {
        let (mut router, _bell, follower) = follower();
        let sent = bytes(&[Frame::Step(step(7, 1)), Frame::Step(step(8, 2))]);
        router.write_all(&sent[..sent.len() - 3]).unwrap();
        let answered = follower.answer(Vec::new(), &BEFORE, 1, &mut counting());
        assert_eq!(answered.rest, sent[sent.len() / 2..sent.len() - 3]);
        assert_eq!(told(&router), [(7, vec![41, 71])]);
    }

    #[test]
    fn frames_in_pieces_are_waited_for_until_the_bell_rings() {
        let (mut router, bell, follower) = follower();
        let sent = bytes(&[Frame::Step(step(7, 1)), Frame::Step(step(8, 2))]);
        let answered = thread::scope(|scope| {
            let running = scope.spawn(|| follower.answer(Vec::new(), &BEFORE, 9, &mut counting()));
            for piece in sent.chunks(11) {
                router.write_all(piece).unwrap();
                thread::yield_now();
            }
            let mut answers = 0;
            while answers < 2 {
                answers += told(&router).len();
            }
            rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
            running.join().unwrap()
        });
        assert_eq!((answered.steps, answered.rest.len()), (2, 0));
    }

    #[test]
    fn what_was_read_before_comes_first() {
        let (mut router, _bell, follower) = follower();
        let sent = bytes(&[Frame::Step(step(7, 1)), Frame::Step(step(8, 2)), Frame::Stop]);
        router.write_all(&sent[sent.len() / 2..]).unwrap();
        let answered = follower.answer(sent[..sent.len() / 2].to_vec(), &BEFORE, 9, &mut counting());
        assert_eq!(told(&router), [(7, vec![41, 71]), (8, vec![42, 72])]);
        assert_eq!(answered.rest, bytes(&[Frame::Stop]));
    }

    #[test]
    fn what_is_unsound_is_given_back() {
        let (mut router, _bell, follower) = follower();
        let sent = bytes(&[Frame::Step(step(7, 1)), Frame::Step(step(8, 2))]);
        router.write_all(&sent).unwrap();
        let answered = follower.answer(Vec::new(), &BEFORE, 9, &mut Counting { unsound_at: 42, ..counting() });
        assert!(answered.unsound);
        assert_eq!(answered.rest, sent[sent.len() / 2..]);
        assert_eq!(told(&router), [(7, vec![41, 71])]);
    }

    #[test]
    fn a_frame_that_is_too_long_is_not_waited_for() {
        let (mut router, _bell, follower) = follower();
        let sent = [&bytes(&[Frame::Step(step(7, 1))]), &[255_u8; 9][..]].concat();
        router.write_all(&sent).unwrap();
        assert_eq!(follower.answer(Vec::new(), &BEFORE, 9, &mut counting()).rest, [255; 9]);
    }

    #[test]
    fn it_ends_with_the_router() {
        let (router, _bell, follower) = follower();
        drop(router);
        assert_eq!(follower.answer(Vec::new(), &BEFORE, 9, &mut counting()).steps, 0);
    }
}
