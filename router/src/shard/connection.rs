//! A connected shard: its link, its shared memory, and the steps it has not answered.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::engine::{Attachment, NoHello};
use super::handle::PromptScore;
use super::link::{Link, LinkError};
use super::live::LiveRequests;
use super::masks::MaskBoard;
use super::memory::{SharedMemory, Wide};
use super::protocol::{Done, Hello, ProtocolError};
use crate::scheduler::{Plan, SequenceId, Slot, StepId};

/// One segment of a step in flight, as far as its wide results need it.
#[derive(Debug)]
struct Note {
    id: SequenceId,
    slot: Slot,
    sample: bool,
    top_n: usize,
    /// When its log-probabilities come back: first position, length, and alternatives to each token.
    scored: Option<(u32, usize, usize)>,
}

/// A step that was sent and is not answered.
#[derive(Debug)]
pub(super) struct Flight {
    step: StepId,
    notes: Vec<Note>,
    pub(super) sent: Instant,
    pub(super) plan: Duration,
    pub(super) prefill: bool,
    pub(super) failed: Vec<(Slot, String)>,
}

impl Flight {
    /// The sequences that sample in it.
    pub(super) fn sampled(&self) -> impl Iterator<Item = SequenceId> {
        self.notes.iter().filter(|note| note.sample).map(|note| note.id)
    }

    /// What the shard said of a sequence that failed in this step.
    pub(super) fn message_for(&self, id: SequenceId) -> String {
        // A beam search has several slots.
        let own = |slot: Slot| self.notes.iter().any(|note| note.id == id && note.slot == slot);
        let failure = self.failed.iter().find(|(failed, _)| own(*failed));
        failure.map_or_else(|| "it failed".to_owned(), |(_, message)| message.clone())
    }
}

/// What was said of a run of prompt positions.
#[derive(Debug)]
pub(super) struct ScoredPart {
    pub(super) start: u32,
    pub(super) scores: Vec<PromptScore>,
}

/// What a step returned through the shared memory.
#[derive(Debug, Default)]
pub(super) struct WideResults {
    /// Alternatives, by sampled row; empty when no row asked for them.
    pub(super) tops: Vec<Vec<(u32, f32)>>,
    pub(super) prompts: Vec<(SequenceId, ScoredPart)>,
}

impl WideResults {
    /// The log-probability of a token that was known before it was run.
    pub(super) fn scored(&self, id: SequenceId, position: u32) -> f32 {
        let part = self.prompts.iter().find(|(scored, _)| *scored == id).map(|(_, part)| part);
        let place = part.and_then(|part| position.checked_sub(part.start));
        let score = part.zip(place).and_then(|(part, place)| part.scores.get(place as usize));
        score.map_or(f32::NAN, |score| score.logprob)
    }
}

/// A shard that is attached.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) link: Link,
    memory_file: Option<OwnedFd>,
    memory: Option<SharedMemory>,
    /// Where grammar masks are written; `None` for a shard that takes none.
    pub(super) masks: Option<MaskBoard>,
    /// Whether it takes parts of masks, and asks for the rest where it needs it.
    pub(super) asks_for_masks: bool,
    greeter: Option<oneshot::Sender<Result<Hello, NoHello>>>,
    /// Its end tells the shard's owner that the shard is lost.
    _held: oneshot::Sender<Infallible>,
    vocab_size: u32,
    flights: VecDeque<Flight>,
    /// When the shard began with the first of them.
    begun: Instant,
}

impl Connection {
    pub(super) fn new(attachment: Attachment) -> io::Result<Self> {
        Ok(Self {
            link: Link::new(attachment.socket)?,
            memory_file: Some(attachment.memory),
            memory: None,
            masks: None,
            asks_for_masks: false,
            greeter: Some(attachment.greeted),
            _held: attachment.held,
            vocab_size: 0,
            flights: VecDeque::new(),
            begun: Instant::now(),
        })
    }

    /// Whether the shard has said hello.
    pub(super) fn greeted(&self) -> bool {
        self.memory.is_some()
    }

    pub(super) fn greet(&mut self, hello: &Hello) -> Result<(), ProtocolError> {
        let invalid = |what: &str| Err(ProtocolError::Invalid(what.to_owned()));
        let Some(file) = self.memory_file.take() else { return invalid("a shard says hello only once") };
        let memory = SharedMemory::map(file, &hello.regions)?;
        self.masks = memory.masks(hello.model.vocab_size)?;
        self.asks_for_masks = hello.limits.asks_for_masks;
        self.memory = Some(memory);
        self.vocab_size = hello.model.vocab_size;
        Ok(())
    }

    /// Tells who waits for it that the shard can be used.
    pub(super) fn announce(&mut self, hello: Hello) {
        if let Some(greeter) = self.greeter.take() {
            // An error means that nobody waits any more: the launcher's patience is its own affair.
            let _ = greeter.send(Ok(hello));
        }
    }

    /// When the shard began with the step it is at.
    pub(super) fn began(&self) -> Option<Instant> {
        self.flights.front().map(|_| self.begun)
    }

    /// How long the shard has been at a step.
    pub(super) fn running_for(&self) -> Option<Duration> {
        self.began().map(|began| began.elapsed())
    }

    /// Notes a step that is on its way, planned since `began`.
    pub(super) fn sent(&mut self, plan: &Plan, live: &LiveRequests, began: Instant) {
        let notes = plan.segments.iter().map(|segment| {
            let request = live.get(segment.sequence);
            let prompt_top_n = request.map_or(0, |request| request.prompt_top_n as usize);
            let source = request.and_then(|request| request.source);
            // Nothing is said of what the encoder reads.
            let start = segment.start.max(source.map_or(0, |source| source.positions));
            let count = (segment.start + segment.length).saturating_sub(start) as usize;
            Note {
                id: segment.sequence,
                slot: segment.slot,
                sample: segment.sample,
                top_n: request.map_or(0, |request| request.top_n as usize),
                scored: segment.prompt_logprobs.then_some((start, count, prompt_top_n)),
            }
        });
        let sent = Instant::now();
        if self.flights.is_empty() {
            self.begun = sent;
        }
        self.flights.push_back(Flight {
            step: plan.step,
            notes: notes.collect(),
            sent,
            plan: began.elapsed(),
            prefill: plan.segments.iter().any(|segment| !segment.last),
            failed: Vec::new(),
        });
    }

    /// The step that a report answers.
    pub(super) fn landed(&mut self, done: &Done) -> Result<Flight, ProtocolError> {
        if done.tokens.0.iter().any(|&token| token >= self.vocab_size) {
            return Err(ProtocolError::Invalid("the shard sampled a token outside of the vocabulary".to_owned()));
        }
        if done.logprobs.0.len() != done.tokens.0.len() {
            return Err(ProtocolError::Invalid("the shard reports tokens without log-probabilities".to_owned()));
        }
        self.drop_flight(done.step)
    }

    pub(super) fn drop_flight(&mut self, step: StepId) -> Result<Flight, ProtocolError> {
        let flight = self.flights.pop_front().filter(|flight| flight.step == step);
        self.begun = Instant::now();
        flight.ok_or_else(|| ProtocolError::Invalid(format!("the shard answers step {step} out of turn")))
    }

    /// Some slots of a step have failed; the step itself goes on.
    pub(super) fn note_failure(&mut self, step: StepId, slots: &[Slot], message: &str) -> Result<(), ProtocolError> {
        let flight = self.flights.iter_mut().find(|flight| flight.step == step);
        let flight = flight.ok_or_else(|| {
            ProtocolError::Invalid(format!("the shard reports a failure of step {step}, unknown here"))
        })?;
        flight.failed.extend(slots.iter().map(|&slot| (slot, message.to_owned())));
        Ok(())
    }

    /// Reads what a step returned through the shared memory.
    pub(super) fn wide(&self, done: &Done, flight: &Flight) -> Result<WideResults, ProtocolError> {
        let Some(((offset, length), memory)) = done.wide.zip(self.memory.as_ref()) else {
            return Ok(WideResults::default());
        };
        let mut wide = memory.wide(offset, length)?;
        let mut results = WideResults::default();
        let alive = || flight.notes.iter().filter(|note| !flight.failed.iter().any(|(slot, _)| *slot == note.slot));
        for note in alive().filter(|note| note.sample) {
            results.tops.push(self.top(&mut wide, note.top_n)?);
        }
        for note in alive() {
            let Some((start, count, top_n)) = note.scored else { continue };
            let (logprobs, ranks): (Vec<f32>, Vec<u32>) = (wide.take(count)?, wide.take(count)?);
            let mut tops = self.top(&mut wide, count * top_n)?.into_iter();
            let score = |(logprob, rank)| PromptScore { logprob, rank, top: tops.by_ref().take(top_n).collect() };
            let scores = logprobs.into_iter().zip(ranks).map(score).collect();
            results.prompts.push((note.id, ScoredPart { start, scores }));
        }
        Ok(results)
    }

    /// Tokens and their log-probabilities.
    fn top(&self, wide: &mut Wide, count: usize) -> Result<Vec<(u32, f32)>, ProtocolError> {
        let ids: Vec<u32> = wide.take(count)?;
        let logprobs: Vec<f32> = wide.take(count)?;
        if ids.iter().any(|&id| id >= self.vocab_size) {
            return Err(ProtocolError::Invalid("the shard reports a token outside of the vocabulary".to_owned()));
        }
        Ok(ids.into_iter().zip(logprobs).collect())
    }

    /// The link is of no more use. True when the shard had said hello.
    pub(super) fn lost(mut self, error: &LinkError) -> bool {
        if let Some(greeter) = self.greeter.take() {
            let _ = greeter.send(Err(error.into()));
        }
        self.greeted()
    }
}
