//! Requests in the engine: what each wants, and the way back to its client.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use super::events::{Bell, EventSender, Wakes};
use super::guided::{Guided, Heard};
use super::handle::{EngineError, Event, Finish, PromptScore, Submission, Token};
use super::protocol::Source;
use crate::request::{BeamParams, SamplingParams, Standing, TokenRules, ValidRequest};
use crate::scheduler::{CacheKey, FinishedBeams, Micros, NewBeams, NewSequence, Output, SequenceId, Token as TokenId};

/// What the scheduler is to do for a request.
#[derive(Debug)]
pub(super) enum Work {
    /// Run a sequence, and its forks if it has some.
    Sequence(NewSequence),
    /// Search with beams.
    Search(NewBeams),
}

/// What the shard says of a token: its log-probability, and the most likely ones in its place.
pub(super) type Told = (f32, Vec<(u32, f32)>);

/// A submission without the ways back.
struct Asked<'a> {
    id: SequenceId,
    request: &'a ValidRequest,
    standing: Standing,
    at: Instant,
}

/// One sequence that waits or runs, or one beam search, and the way back to its client.
#[derive(Debug)]
pub(super) struct LiveRequest {
    pub(super) sampling: SamplingParams,
    pub(super) rules: Option<Arc<TokenRules>>,
    pub(super) top_n: u32,
    beams: Option<BeamParams>,
    /// The encoder's input, which stands before the prompt, and where the prompt begins then.
    pub(super) source: Option<Source>,
    pub(super) prompt_len: u32,
    pub(super) max_len: u32,
    cache_key: CacheKey,
    standing: Standing,
    /// Its deadline by the engine's clock.
    deadline: Option<Micros>,
    stop_tokens: Arc<[u32]>,
    events: EventSender,
    /// Where the further answers of a beam search go.
    further: Vec<EventSender>,
    submitted: Instant,
    started: bool,
    /// What was said of the prompt, as far as known; taken when it is sent.
    prompt: Option<Vec<Option<PromptScore>>>,
    /// Alternatives to report with each token of the prompt.
    pub(super) prompt_top_n: u32,
    /// Nobody looks at its tokens' log-probabilities.
    unscored: bool,
    shard_failures: u32,
    /// Its state under a grammar.
    guided: Option<Box<Guided>>,
}

impl LiveRequest {
    /// The sequence of a submission that has this number among its choices.
    fn new(
        submission: &Asked<'_>,
        choice: u64,
        events: EventSender,
        deadline: Option<Micros>,
        block_size: u32,
    ) -> Self {
        let request = submission.request;
        let source = request.source.as_deref().map(|tokens| source(tokens, block_size));
        let before = source.map_or(0, |source| source.positions);
        let prompt_len = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX).saturating_add(before);
        let own = submission.standing.cache_key;
        // The prompt is the same for all: its scores are told once.
        let scored = request.prompt_top_n.filter(|_| choice == 0);
        Self {
            sampling: request.sampling.for_choice(choice),
            rules: request.rules.clone(),
            top_n: request.top_n_tokens,
            beams: request.beams,
            source,
            prompt_len,
            // What the encoder has made of a token depends on all others of its input.
            cache_key: request.source.as_deref().map_or(own, |tokens| own.with(&bytes(tokens))),
            max_len: prompt_len.saturating_add(request.max_new_tokens),
            standing: submission.standing,
            deadline,
            stop_tokens: Arc::clone(&request.stop_tokens),
            events,
            further: Vec::new(),
            submitted: submission.at,
            started: false,
            prompt: scored.map(|_| vec![None; request.prompt.len()]),
            prompt_top_n: scored.unwrap_or(0),
            unscored: request.unscored,
            shard_failures: 0,
            guided: request.grammar.as_ref().map(|guide| {
                // What was likely instead of a forced token is found only where it is sampled.
                let jumps = request.top_n_tokens == 0;
                let in_part = jumps && request.rules.is_none() && request.sampling.takes_likeliest();
                Box::new(Guided::new(submission.id + choice, guide, prompt_len, jumps, in_part))
            }),
        }
    }

    fn sequence(&self, id: SequenceId, prompt: Vec<TokenId>) -> NewSequence {
        NewSequence {
            id,
            tokens: prompt,
            prompt_len: self.prompt_len,
            max_len: self.max_len,
            whole: self.source.map_or(0, |source| source.positions),
            prompt_logprobs: self.prompt.is_some(),
            unscored: self.unscored,
            cache_key: self.cache_key,
            tenant: self.standing.tenant,
            priority: self.standing.priority,
            deadline: self.deadline,
        }
    }

    /// What the scheduler is to do for it. What a search looks at is what the shard must report of each step.
    pub(super) fn work(&mut self, id: SequenceId, prompt: Vec<TokenId>) -> Work {
        let sequence = self.sequence(id, prompt);
        let Some(BeamParams { width, returned, length_penalty, early_stopping }) = self.beams else {
            return Work::Sequence(sequence);
        };
        let each_once: BTreeSet<TokenId> = self.stop_tokens.iter().copied().collect();
        let stop_tokens = each_once.into_iter().collect();
        let search = NewBeams { sequence, width, returned, length_penalty, early_stopping, stop_tokens };
        self.top_n = u32::try_from(search.candidates()).unwrap_or(u32::MAX);
        Work::Search(search)
    }

    /// Whether the shard must know the tokens so far.
    pub(super) fn needs_history(&self) -> bool {
        self.sampling.needs_history() || self.rules.as_ref().is_some_and(|rules| rules.needs_history())
    }

    pub(super) fn stop_tokens(&self) -> &[TokenId] {
        &self.stop_tokens
    }

    /// The first step with this request is sent. Later ones (after a preemption or a restart) say nothing.
    pub(super) fn start(&mut self, cached_tokens: u32) {
        if !std::mem::replace(&mut self.started, true) {
            let cached_tokens = self.source.map_or(cached_tokens, |source| cached_tokens.min(source.tokens));
            let started = Event::Started { queued: self.submitted.elapsed(), cached_tokens };
            for events in self.ways() {
                // A client that has gone is among the cancelled.
                let _ = events.try_send(started.clone());
            }
        }
    }

    /// All that it answers to.
    fn ways(&self) -> impl Iterator<Item = &EventSender> {
        std::iter::once(&self.events).chain(&self.further)
    }

    /// Sends a token, with which the answer is `whole` by its grammar or not. True when it is the last, or the client has gone or
    /// reads too slowly.
    fn tell(&mut self, output: &Output, told: Told, whole: bool, wakes: &mut Wakes) -> bool {
        let prompt = self.prompt.take().is_none_or(|prompt| self.events.send_for(Event::Prompt(prompt), wakes).is_ok());
        let finish = if self.stop_tokens.contains(&output.token) {
            Some(Finish::StopToken)
        } else if whole {
            Some(Finish::Whole)
        } else {
            output.length_reached.then_some(Finish::Length)
        };
        let (logprob, top) = told;
        let token = Token { id: output.token, logprob, top };
        let sent = prompt && self.events.send_for(Event::Token { token, finish }, wakes).is_ok();
        !sent || finish.is_some()
    }
}

/// Where an encoder's input ends, and where its blocks do.
fn source(tokens: &[TokenId], block_size: u32) -> Source {
    let tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    Source { tokens, positions: tokens.div_ceil(block_size).saturating_mul(block_size) }
}

fn bytes(tokens: &[TokenId]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// All sequences in the engine, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct LiveRequests {
    requests: BTreeMap<SequenceId, LiveRequest>,
    /// Those that have one, by deadline.
    deadlines: BTreeSet<(Micros, SequenceId)>,
    /// How many are under a grammar.
    guided: usize,
    /// Readers of what the step has brought.
    wakes: Wakes,
}

impl LiveRequests {
    /// Takes in every sequence of a submission, and gives back the tokens that it starts from: its prompt, behind the blocks of
    /// `block_size` that the encoder's input fills. A beam search is one, whatever it returns.
    pub(super) fn insert(&mut self, submission: Submission, deadline: Option<Micros>, block_size: u32) -> Vec<TokenId> {
        let Submission { id: first, request: valid, standing, events, forks, at } = submission;
        let asked = Asked { id: first, request: &valid, standing, at };
        let (forks, further) = if valid.beams.is_some() { (Vec::new(), forks) } else { (forks, Vec::new()) };
        let all = std::iter::once(events).chain(forks);
        for (choice, events) in (0..).zip(all) {
            let id = first + choice;
            let request = LiveRequest::new(&asked, choice, events, deadline, block_size);
            self.guided += usize::from(request.guided.is_some());
            self.requests.insert(id, request);
            self.deadlines.extend(deadline.map(|at| (at, id)));
        }
        if let Some(request) = self.requests.get_mut(&first) {
            request.further = further;
        }
        let prompt = valid.prompt;
        match valid.source {
            Some(tokens) => {
                let mut all = tokens.to_vec();
                // Nothing stands between the end of the input and the end of its last block.
                all.resize(source(&tokens, block_size).positions as usize, 0);
                all.extend(prompt);
                all
            }
            None => prompt,
        }
    }

    /// Has the readers woken of all tokens that were handed out.
    pub(super) fn wake_readers(&mut self, bell: &Bell) {
        bell.ring(&mut self.wakes);
    }

    /// Forgets a sequence; false when it is gone already.
    pub(super) fn remove(&mut self, id: SequenceId) -> bool {
        self.take(id).is_some()
    }

    fn take(&mut self, id: SequenceId) -> Option<LiveRequest> {
        let request = self.requests.remove(&id)?;
        self.guided -= usize::from(request.guided.is_some());
        if let Some(at) = request.deadline {
            self.deadlines.remove(&(at, id));
        }
        Some(request)
    }

    /// The next deadline, and whose it is.
    pub(super) fn next_deadline(&self) -> Option<(Micros, SequenceId)> {
        self.deadlines.first().copied()
    }

    pub(super) fn get(&self, id: SequenceId) -> Option<&LiveRequest> {
        self.requests.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: SequenceId) -> Option<&mut LiveRequest> {
        self.requests.get_mut(&id)
    }

    /// Whether anyone is under a grammar.
    pub(super) const fn has_guided(&self) -> bool {
        self.guided > 0
    }

    /// A sequence's state under its grammar, if it has one.
    pub(super) fn guided_mut(&mut self, id: SequenceId) -> Option<&mut Guided> {
        self.requests.get_mut(&id)?.guided.as_deref_mut()
    }

    /// The sequences for which the shard has parts of masks in these slots, and wants the rest.
    pub(super) fn asked_for(&mut self, slots: &[u32]) -> Vec<SequenceId> {
        let guided = self.requests.iter_mut().filter_map(|(id, request)| Some((*id, request.guided.as_mut()?)));
        guided.filter_map(|(id, guided)| slots.iter().any(|&slot| guided.ask(slot)).then_some(id)).collect()
    }

    /// Nobody waits for masks any more.
    pub(super) fn forget_masks(&mut self) {
        self.requests
            .values_mut()
            .filter_map(|request| request.guided.as_mut())
            .for_each(|guided| guided.forget_tickets());
    }

    pub(super) fn ids(&self) -> Vec<SequenceId> {
        self.requests.keys().copied().collect()
    }

    /// Tells a request that never got in why not.
    pub(super) fn refuse(submission: &Submission, error: &EngineError) {
        for events in std::iter::once(&submission.events).chain(&submission.forks) {
            // Its buffer is empty, so this fails only when nobody listens any more.
            let _ = events.try_send(Event::Failed(error.clone()));
        }
    }

    /// Ends a request with an error.
    pub(super) fn fail(&mut self, id: SequenceId, error: &EngineError) {
        if let Some(request) = self.take(id) {
            for events in request.ways() {
                // A full buffer means a slow reader: it sees the channel close.
                let _ = events.try_send(Event::Failed(error.clone()));
            }
        }
    }

    /// Hands a token to its request, unless a grammar has a say in it. True when the request has ended, by this token or
    /// because nobody reads.
    pub(super) fn deliver(&mut self, output: &Output, told: impl FnOnce() -> Told) -> bool {
        let Some(request) = self.requests.get_mut(&output.sequence) else { return true };
        if request.guided.is_some() {
            return false;
        }
        let ended = request.tell(output, told(), false, &mut self.wakes);
        if ended {
            self.take(output.sequence);
        }
        ended
    }

    /// The same for a token that a grammar has taken: the answer is `whole` with it or not.
    pub(super) fn tell(&mut self, heard: Heard) -> bool {
        let Heard { output, logprob, top, whole } = heard;
        let Some(request) = self.requests.get_mut(&output.sequence) else { return true };
        let ended = request.tell(&output, (logprob, top), whole, &mut self.wakes);
        if ended {
            self.take(output.sequence);
        }
        ended
    }

    /// Hands the answers of a search to those who wait for them. Where there are fewer than were wanted, the last ones fail.
    pub(super) fn answer(&mut self, finished: FinishedBeams) {
        let Some(mut request) = self.take(finished.sequence) else { return };
        if let Some(prompt) = request.prompt.take() {
            // Who has gone wants no scores either.
            let _ = request.events.try_send(Event::Prompt(prompt));
        }
        let mut hypotheses = finished.hypotheses.into_iter();
        for events in request.ways() {
            let event = hypotheses.next().map_or_else(
                || Event::Failed(EngineError::Shard("the search found fewer answers than were wanted".to_owned())),
                Event::Answer,
            );
            // Who has gone wants no answer.
            let _ = events.try_send(event);
        }
    }

    /// Keeps the log-probabilities of a part of a prompt.
    pub(super) fn prompt_scored(&mut self, id: SequenceId, start: u32, scores: &[PromptScore]) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let before = request.source.map_or(0, |source| source.positions);
        let Some(prompt) = request.prompt.as_mut() else { return };
        for (place, score) in prompt.iter_mut().skip(start.saturating_sub(before) as usize).zip(scores) {
            *place = (!score.logprob.is_nan()).then(|| score.clone());
        }
    }

    /// A shard died under a request: it goes on, unless that happened too often.
    pub(super) fn survive(&mut self, id: SequenceId, max_failures: u32) -> ControlFlow<()> {
        let Some(request) = self.requests.get_mut(&id) else { return ControlFlow::Continue(()) };
        request.shard_failures += 1;
        if request.shard_failures <= max_failures {
            return ControlFlow::Continue(());
        }
        let message = format!("the shard died {} times while it ran this request", request.shard_failures);
        self.fail(id, &EngineError::Shard(message));
        ControlFlow::Break(())
    }
}
