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

/// The column of a segment that says how many pages are new.
const NEW_PAGES: usize = SEGMENT_COLUMNS - 1;
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
    /// Runs it. begun: sequences whose token is the first of a page, and that page.
    fn run(&mut self, begun: &[[i32; 2]]) -> Ran;
    /// The token of each sequence, and its log-probability.
    fn found(&self) -> (&[i64], &[f32]);
}

/// The step before, and how the next one differs from it.
#[derive(Debug, Clone)]
pub struct Last {
    /// As they came; then a position further, each of one token.
    segments: Vec<u32>,
    /// Sequences whose token is the first of a page, and that page.
    begun: Vec<[i32; 2]>,
    page_size: u32,
    pages: u32,
}

impl Last {
    /// segments: no pages are new in them. pages: tokens that one has, and how many there are. `None` for what are no segments,
    /// and for pages that are none.
    #[must_use]
    pub fn new(segments: Vec<u32>, (page_size, pages): (u32, u32)) -> Option<Self> {
        let good = segments.len().is_multiple_of(SEGMENT_COLUMNS) && page_size > 0 && i32::try_from(pages).is_ok();
        good.then_some(Self { segments, begun: Vec::new(), page_size, pages })
    }

    /// Sequences.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.segments.len() / SEGMENT_COLUMNS
    }

    fn slots(&self) -> &[u32] {
        &self.segments[..self.count()]
    }

    /// Goes on to the step in a frame: its number, where it is the next one and nothing else.
    fn advance(&mut self, kind: u8, payload: &[u8]) -> Option<u64> {
        let Ok(Frame::Step(mut step)) = Frame::decode(kind, payload) else { return None };
        let count = self.count();
        let (segments, blocks) = (std::mem::take(&mut step.segments.0), std::mem::take(&mut step.blocks.0));
        let mut pages = blocks.into_iter();
        self.begun.clear();
        for at in 0..count {
            let start = self.segments[count + at].wrapping_add(1);
            let begins = start.is_multiple_of(self.page_size);
            (self.segments[count + at], self.segments[NEW_PAGES * count + at]) = (start, u32::from(begins));
            if begins {
                let page = pages.next().filter(|&page| page < self.pages)?;
                self.begun.push([at as i32, page as i32]);
            }
        }
        let alone = pages.next().is_none() && step == Step { step: step.step, ..Step::default() };
        (alone && segments == self.segments).then_some(step.step)
    }
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
    /// Sequences and the pages that they began in the steps that were answered, in order.
    pub begun: Vec<[i32; 2]>,
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

    /// Answers up to `most` steps, until something else comes, the bell rings or the router is gone. pending: what was read
    /// already.
    pub fn answer(&self, pending: Vec<u8>, mut last: Last, most: usize, batch: &mut impl Batch) -> Answered {
        let mut answered = Answered { rest: pending, ..Answered::default() };
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
            let Some(number) = last.advance(kind, payload) else { break };
            let started = now();
            self.busy.store(started, Ordering::Relaxed);
            let ran = batch.run(&last.begun);
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
            answered.begun.extend_from_slice(&last.begun);
            self.told.lock().unwrap_or_else(PoisonError::into_inner).push((last.count(), times));
            output.clear();
            if done(number, last.slots(), batch.found(), times).encode(&mut output).is_err()
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
        begun: Vec<Vec<[i32; 2]>>,
    }

    impl Batch for Counting {
        fn run(&mut self, begun: &[[i32; 2]]) -> Ran {
            self.begun.push(begun.to_vec());
            self.tokens.iter_mut().for_each(|token| *token += 1);
            if self.tokens[0] == self.unsound_at { Ran::Unsound } else { Ran::Well }
        }
        fn found(&self) -> (&[i64], &[f32]) {
            (&self.tokens, &[-0.5, -1.5])
        }
    }

    const BEFORE: [u32; 12] = [3, 1, 10, 20, 1, 1, 0, 0, 3, 3, 0, 0];
    const PAGES: u32 = 9;

    /// Pages of 16 tokens.
    fn before() -> Last {
        Last::new(BEFORE.to_vec(), (16, PAGES)).unwrap()
    }

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
        Counting { tokens: vec![40, 70], unsound_at: 0, begun: Vec::new() }
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
            let answered = follower.answer(Vec::new(), before(), 9, &mut counting());
            assert_eq!(told(&router), [(7, vec![41, 71]), (8, vec![42, 72])]);
            assert_eq!((answered.steps, answered.unsound), (2, false));
            assert_eq!(follower.take_times().iter().map(|(count, _)| *count).collect::<Vec<_>>(), [2, 2]);
            assert!(follower.take_times().is_empty());
            assert_eq!(answered.rest, bytes(&rest));
            assert!(follower.busy_since().is_none());
        }
    }

    /// Both sequences are the last tokens of a page before the first of these steps.
    fn step_of_pages(number: u64, further: u32, begun: [u32; 2], blocks: &[u32]) -> Step {
        let mut segments = BEFORE.to_vec();
        segments[2..4].copy_from_slice(&[15 + further, 31 + further]);
        segments[10..].copy_from_slice(&begun);
        Step { step: number, segments: Column(segments), blocks: Column(blocks.to_vec()), ..Step::default() }
    }

    #[test]
    fn pages_begin_where_the_last_ones_are_full() {
        let others = [
            step_of_pages(9, 17, [1, 1], &[4, PAGES]),
            step_of_pages(9, 17, [1, 1], &[4]),
            step_of_pages(9, 17, [1, 1], &[4, 5, 6]),
            step_of_pages(9, 17, [1, 0], &[4]),
            step_of_pages(9, 17, [0, 0], &[]),
        ];
        for other in others {
            let (mut router, _bell, follower) = follower();
            let mut steps = vec![step_of_pages(0, 1, [1, 1], &[8, 7])];
            steps.extend((2..=16).map(|further| step_of_pages(u64::from(further), further, [0, 0], &[])));
            steps.push(other);
            router.write_all(&bytes(&steps.into_iter().map(Frame::Step).collect::<Vec<_>>())).unwrap();
            let mut batch = counting();
            let last = Last::new(step_of_pages(0, 0, [0, 0], &[]).segments.0, (16, PAGES)).unwrap();
            let answered = follower.answer(Vec::new(), last, 99, &mut batch);
            assert_eq!((answered.steps, &answered.begun), (16, &vec![[0, 8], [1, 7]]));
            assert_eq!((&batch.begun[0], batch.begun[1..].concat()), (&answered.begun, vec![]));
        }
    }

    #[test]
    fn pages_that_an_unsound_step_begins_are_not_told() {
        let (mut router, _bell, follower) = follower();
        router.write_all(&bytes(&[Frame::Step(step_of_pages(0, 1, [1, 1], &[8, 7]))])).unwrap();
        let last = Last::new(step_of_pages(0, 0, [0, 0], &[]).segments.0, (16, PAGES)).unwrap();
        let answered = follower.answer(Vec::new(), last, 99, &mut Counting { unsound_at: 41, ..counting() });
        assert!(answered.unsound && answered.begun.is_empty());
    }

    #[test]
    fn no_more_than_asked_for_are_answered_and_torn_frames_are_given_back() {
        let (mut router, _bell, follower) = follower();
        let sent = bytes(&[Frame::Step(step(7, 1)), Frame::Step(step(8, 2))]);
        router.write_all(&sent[..sent.len() - 3]).unwrap();
        let answered = follower.answer(Vec::new(), before(), 1, &mut counting());
        assert_eq!(answered.rest, sent[sent.len() / 2..sent.len() - 3]);
        assert_eq!(told(&router), [(7, vec![41, 71])]);
    }

    #[test]
    fn frames_in_pieces_are_waited_for_until_the_bell_rings() {
        let (mut router, bell, follower) = follower();
        let sent = bytes(&[Frame::Step(step(7, 1)), Frame::Step(step(8, 2))]);
        let answered = thread::scope(|scope| {
            let running = scope.spawn(|| follower.answer(Vec::new(), before(), 9, &mut counting()));
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
        let answered = follower.answer(sent[..sent.len() / 2].to_vec(), before(), 9, &mut counting());
        assert_eq!(told(&router), [(7, vec![41, 71]), (8, vec![42, 72])]);
        assert_eq!(answered.rest, bytes(&[Frame::Stop]));
    }

    #[test]
    fn what_is_unsound_is_given_back() {
        let (mut router, _bell, follower) = follower();
        let sent = bytes(&[Frame::Step(step(7, 1)), Frame::Step(step(8, 2))]);
        router.write_all(&sent).unwrap();
        let answered = follower.answer(Vec::new(), before(), 9, &mut Counting { unsound_at: 42, ..counting() });
        assert!(answered.unsound);
        assert_eq!(answered.rest, sent[sent.len() / 2..]);
        assert_eq!(told(&router), [(7, vec![41, 71])]);
    }

    #[test]
    fn a_frame_that_is_too_long_is_not_waited_for() {
        let (mut router, _bell, follower) = follower();
        let sent = [&bytes(&[Frame::Step(step(7, 1))]), &[255_u8; 9][..]].concat();
        router.write_all(&sent).unwrap();
        assert_eq!(follower.answer(Vec::new(), before(), 9, &mut counting()).rest, [255; 9]);
    }

    #[test]
    fn it_ends_with_the_router() {
        let (router, _bell, follower) = follower();
        drop(router);
        assert_eq!(follower.answer(Vec::new(), before(), 9, &mut counting()).steps, 0);
    }
}
