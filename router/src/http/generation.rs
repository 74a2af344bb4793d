//! One sequence from admission to its last token: the typed path that every dialect translates to and from.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::errors::ApiError;
use super::gate::{Demand, Gate, Place, Refused};
use super::standing::Caller;
use super::state::AppState;
use crate::input::{GenerationRequest, ModelText, Prepared, WantedGrammar};
use crate::metrics::Call;
use crate::output::{Piece, TextParams, TextStream};
use crate::request::SamplingParams;
use crate::scheduler::{FinishedBy, Hypothesis};
use crate::shard::handle::{EngineStatus, Event, Finish, Generation, PromptScore, Token};
use crate::traces::Stage;

/// Time after which one that goes on asks for room again.
const AGAIN: Duration = Duration::from_millis(100);

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// It reached `max_new_tokens`.
    Length,
    /// The model ended it.
    EosToken,
    /// A stop string or a stop token of the client's ended it.
    StopSequence,
}

/// One token and the text it made visible.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The token.
    pub token: Token,
    /// Whether it is a special one, which has no visible text.
    pub special: bool,
    /// Characters that became visible with it; may be empty.
    pub text: String,
    /// Set on the last step.
    pub finish: Option<FinishReason>,
    /// The stop string that ended the text, on the last step.
    pub stopped_by: Option<Box<str>>,
    /// Tokens of the prompt that were in the prefix cache; the same on every step.
    pub cached_tokens: u32,
    /// What was said of the prompt's tokens, on the first step of a stream that asked for it.
    pub prompt_scores: Vec<Option<PromptScore>>,
}

/// What is known of a sequence before its first token.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its number among the sequences of its prompt.
    pub choice: usize,
    /// Tokens of the prompt.
    pub input_length: usize,
    /// Characters of the prompt.
    pub prompt_characters: usize,
    /// The prompt as text, where it was text.
    pub prompt_text: Option<Arc<str>>,
    /// The prompt's tokens, kept only where the answer needs them.
    pub prompt_tokens: Vec<u32>,
    /// The seed, unless greedy.
    pub seed: Option<u64>,
    /// Time to template, tokenize and validate.
    pub validation: Duration,
}

impl Facts {
    /// A count of the prompt, where it is to be counted: with the first of its sequences.
    #[must_use]
    pub const fn once(&self, count: usize) -> usize {
        if self.choice == 0 { count } else { 0 }
    }
}

/// Where the time of a sequence went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Since the call arrived.
    pub total: Duration,
    /// Validation.
    pub validation: Duration,
    /// Waiting for the first step.
    pub queue: Duration,
    /// From the first step to the last token.
    pub inference: Duration,
}

/// A whole sequence.
#[derive(Debug, Clone)]
pub struct Completed {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub steps: Vec<Step>,
    /// Why it ended.
    pub finish: FinishReason,
    /// What was said of the prompt's tokens, when asked for; the first follows nothing.
    pub prompt_scores: Vec<Option<PromptScore>>,
    /// Tokens of the prompt that were in the prefix cache.
    pub cached_tokens: u32,
    /// What was known before.
    pub facts: Facts,
    /// Where the time went.
    pub times: Times,
}

impl Completed {
    /// Its tokens, the one that ended it included.
    #[must_use]
    pub fn token_ids(&self) -> Vec<u32> {
        self.steps.iter().map(|step| step.token.id).collect()
    }

    /// The mean log-probability of its tokens, by which the best of several is chosen.
    #[must_use]
    pub fn mean_logprob(&self) -> f32 {
        let mean = self.steps.iter().map(|step| step.token.logprob).sum::<f32>() / self.steps.len() as f32;
        if mean.is_nan() { f32::NEG_INFINITY } else { mean }
    }
}

/// Splits off the best `count` sequences, best first by mean log-probability; of equals the first is better. The others stay
/// in their order, and so do all when there are no others.
#[must_use]
pub fn best(all: Vec<Completed>, count: usize) -> (Vec<Completed>, Vec<Completed>) {
    if count >= all.len() {
        return (all, Vec::new());
    }
    let mut ranking: Vec<(usize, f32)> = all.iter().map(Completed::mean_logprob).enumerate().collect();
    ranking.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let mut left: Vec<Option<Completed>> = all.into_iter().map(Some).collect();
    let chosen = ranking.iter().take(count).filter_map(|&(place, _)| left.get_mut(place)?.take()).collect();
    (chosen, left.into_iter().flatten().collect())
}

/// A prompt is scored once, with its first sequence; the others report the same.
pub fn share_prompt_scores(all: &mut [Completed]) {
    for place in 1..all.len() {
        let (before, from) = all.split_at_mut(place);
        if let (Some(last), Some(one)) = (before.last(), from.first_mut().filter(|one| one.facts.choice > 0)) {
            one.prompt_scores.clone_from(&last.prompt_scores);
        }
    }
}

/// A call that was let in: it holds a permit and a place for each of its sequences.
#[derive(Debug)]
pub struct Admission {
    state: AppState,
    call: Arc<Call>,
    caller: Caller,
    permits: OwnedSemaphorePermit,
    place: Place,
}

impl Admission {
    /// Lets a call of `sequences` sequences in, or refuses it at once. This process's own calls wait until there is a permit.
    ///
    /// # Errors
    /// `Loading`, `Draining` or `Refused`.
    pub async fn enter(state: &AppState, caller: Caller, sequences: usize) -> Result<Self, ApiError> {
        let tokens = state.metrics.tokens.of(caller.name());
        let call = state.metrics.requests.begin(sequences, tokens, caller.trace());
        match Self::room(state, &caller, sequences).await {
            Ok((permits, place)) => Ok(Self { state: state.clone(), call, caller, permits, place }),
            Err(error) => Err(failed(&call, error)),
        }
    }

    async fn room(
        state: &AppState,
        caller: &Caller,
        sequences: usize,
    ) -> Result<(OwnedSemaphorePermit, Place), ApiError> {
        // More than there ever are cannot be waited for.
        let count = u32::try_from(sequences).ok().filter(|_| sequences <= state.settings.max_concurrent_requests);
        let permits = Arc::clone(&state.permits);
        let permits = match count {
            // The semaphore is never closed.
            Some(count) if caller.waits() => permits.acquire_many_owned(count).await.ok(),
            count => count.and_then(|count| permits.try_acquire_many_owned(count).ok()),
        };
        check_open(state.engine.status())?;
        let place = state.gate.enter(caller.tenant(), caller.limits(), sequences).map_err(ApiError::Refused)?;
        match permits {
            Some(permits) => Ok((permits, place)),
            None => {
                drop(place);
                Err(ApiError::Refused(state.gate.no_permit(sequences)))
            }
        }
    }

    /// Validates a request and hands it to the engine; one run for each of its sequences.
    ///
    /// # Errors
    /// What is wrong with the request, or why it is not taken.
    pub async fn start(&mut self, request: GenerationRequest) -> Result<Vec<Running>, ApiError> {
        self.try_start(request).await.map_err(|error| failed(&self.call, error))
    }

    /// The same for a request of one sequence.
    ///
    /// # Errors
    /// Those of `start`.
    pub async fn start_one(&mut self, request: GenerationRequest) -> Result<Running, ApiError> {
        self.start(request).await?.pop().ok_or(ApiError::Incomplete)
    }

    /// Takes back the room of a run that keeps it, and that is over or given up with this, for another one.
    pub fn take_back(&mut self, mut run: Running) {
        if run.generation.is_none() {
            self.call.goes_on();
        }
        if let Some((permits, places)) = run.room.take() {
            self.permits.merge(permits);
            places.into_iter().for_each(|place| self.place.take_back(place));
        }
    }

    /// Goes on with another request, as the same sequence, in the room that was taken back. Where there is no room for its
    /// tokens, or for its validation, it asks again until `patience` is over.
    ///
    /// # Errors
    /// What is wrong with the request, or why it is not taken; after `TooLong` the call may still go on with a shorter one.
    pub async fn go_on(&mut self, request: GenerationRequest, patience: Duration) -> Result<Running, ApiError> {
        let until = Instant::now() + patience;
        loop {
            match self.try_start(request.clone()).await {
                Err(ApiError::Refused(_)) if Instant::now() < until => self.caller.in_time(again()).await?,
                Err(error @ ApiError::TooLong(_)) => return Err(error),
                Err(error) => return Err(failed(&self.call, error)),
                Ok(mut runs) => {
                    let mut run = runs.pop().ok_or(ApiError::Incomplete)?;
                    // Not the call's first token: it comes so long after the last one.
                    (run.generated.first, run.generated.last) = (Some(Instant::now()), Some(Instant::now()));
                    return Ok(run.keeping_room());
                }
            }
        }
    }

    /// The answer is over though the last run was to be followed by another.
    pub fn ends_here(&self) {
        self.call.unreported(1);
    }

    /// When the call is given up.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        self.caller.deadline()
    }

    /// Refuses the call for a reason of the dialect's own.
    #[must_use]
    pub fn refuse(&self, error: ApiError) -> ApiError {
        failed(&self.call, error)
    }

    async fn try_start(&mut self, request: GenerationRequest) -> Result<Vec<Running>, ApiError> {
        let standing = self.caller.standing(&request.parameters)?;
        let (streamed, keeps_prompt) = (request.parameters.stream, request.parameters.keep_prompt_tokens);
        let (sequences, reported) = (request.parameters.sequences(), request.parameters.reported());
        let mut prepared = self.caller.in_time(self.prepare(request)).await?;
        self.call.validated(prepared.validation_time, prepared.input_length, prepared.request.max_new_tokens);
        let demand =
            Demand { prompt: prepared.input_length as u64, sequences, allowed: prepared.request.max_new_tokens };
        let pool = self.state.metrics.engine.max_total_tokens();
        let mut places = self.place.book(demand, pool).map_err(ApiError::Refused)?;
        let shared = Shared::new(&mut prepared, streamed, keeps_prompt);
        let submitted = self.state.engine.submit(prepared.request, standing, reported);
        let generations = match submitted {
            Ok(generations) => generations,
            Err(error) => {
                places.into_iter().for_each(|place| self.place.take_back(place));
                return Err(error.into());
            }
        };
        self.call.submitted(shared.facts.input_length);
        self.call.unreported(sequences - reported);
        // A search keeps the room of all its beams as long as its first answer is awaited, which is as long as it runs.
        let unreported = places.split_off(reported.min(places.len()));
        let mut rooms: Vec<Vec<Place>> = places.into_iter().map(|place| vec![place]).collect();
        if let Some(first) = rooms.first_mut() {
            first.extend(unreported);
        }
        let runs = generations.into_iter().zip(rooms).enumerate();
        Ok(runs.map(|(choice, (generation, places))| self.running(&shared, choice, generation, places)).collect())
    }

    /// Validates a request, and then compiles its grammar if it has one.
    async fn prepare(&self, request: GenerationRequest) -> Result<Prepared, ApiError> {
        let begun = Instant::now();
        let mut prepared = self.state.preparer.prepare(request).await?;
        self.call.passed(Stage::Tokenize, begun);
        if let Some(WantedGrammar { source, thoughts, fields }) = &prepared.grammar {
            let begun = Instant::now();
            let guide = self.state.grammars.guide(source.clone(), thoughts.as_ref()).await;
            self.call.passed(Stage::Grammar, begun);
            prepared.request.grammar = Some(guide.map_err(|error| ApiError::from(error).about_shape(fields))?);
        }
        Ok(prepared)
    }

    fn running(&mut self, shared: &Shared, choice: usize, generation: Generation, places: Vec<Place>) -> Running {
        let sampling = shared.sampling.for_choice(choice as u64);
        Running {
            generation: Some(generation),
            answer: VecDeque::new(),
            text: TextStream::new(Arc::clone(&self.state.model), shared.text.clone()),
            model: Arc::clone(&self.state.model),
            include_stop: shared.text.include_stop,
            shaped_by: Arc::clone(&shared.shaped_by),
            streamed: shared.streamed,
            facts: Facts { choice, seed: shared.facts.seed.map(|_| sampling.seed), ..shared.facts.clone() },
            max_new_tokens: shared.max_new_tokens,
            prompt_scores: Vec::new(),
            cached_tokens: 0,
            generated: Generated { tokens: 0, first: None, last: None, call: Arc::clone(&self.call) },
            queue: Duration::ZERO,
            started: None,
            call: Arc::clone(&self.call),
            gate: Arc::clone(&self.state.gate),
            room: self.permits.split(places.len()).map(|permits| (permits, places)),
            keeps_room: false,
        }
    }
}

/// What all sequences of a request have in common.
struct Shared {
    text: TextParams,
    sampling: SamplingParams,
    max_new_tokens: u32,
    streamed: bool,
    /// The fields that asked for a grammar.
    shaped_by: Arc<[&'static str]>,
    /// Those of the first sequence.
    facts: Facts,
}

impl Shared {
    /// Takes what only the answers need out of a request.
    fn new(prepared: &mut Prepared, streamed: bool, keeps_prompt: bool) -> Self {
        let Prepared { request, prompt_characters, input_length, seed, validation_time, .. } = prepared;
        Self {
            text: std::mem::take(&mut prepared.text),
            sampling: request.sampling,
            max_new_tokens: request.max_new_tokens,
            streamed,
            shaped_by: prepared.grammar.take().map(|grammar| grammar.fields).unwrap_or_default().into(),
            facts: Facts {
                choice: 0,
                input_length: *input_length,
                prompt_characters: *prompt_characters,
                prompt_text: prepared.prompt_text.take().map(Arc::from),
                // The engine takes the prompt.
                prompt_tokens: if keeps_prompt { request.prompt.clone() } else { Vec::new() },
                seed: *seed,
                validation: *validation_time,
            },
        }
    }
}

async fn again() -> Result<(), ApiError> {
    tokio::time::sleep(AGAIN).await;
    Ok(())
}

fn check_open(status: EngineStatus) -> Result<(), ApiError> {
    match status {
        EngineStatus::Starting => Err(ApiError::Loading),
        EngineStatus::Draining | EngineStatus::Stopped => Err(ApiError::Draining),
        EngineStatus::Ready | EngineStatus::Recovering => Ok(()),
    }
}

fn failed(call: &Call, error: ApiError) -> ApiError {
    if let Some(kind) = error.row().counts_as {
        call.fail(kind);
    }
    if let ApiError::Refused(Refused { cause, .. }) = error {
        call.refused(cause);
    }
    error
}

/// A sequence in the engine. Dropping it cancels the sequence and frees its permit and place.
#[derive(Debug)]
pub struct Running {
    /// Gone once the sequence has ended.
    generation: Option<Generation>,
    /// What is left to tell of an answer that came whole.
    answer: VecDeque<(Token, Option<Finish>)>,
    text: TextStream,
    model: Arc<ModelText>,
    include_stop: bool,
    shaped_by: Arc<[&'static str]>,
    streamed: bool,
    facts: Facts,
    max_new_tokens: u32,
    prompt_scores: Vec<Option<PromptScore>>,
    cached_tokens: u32,
    generated: Generated,
    queue: Duration,
    started: Option<Instant>,
    call: Arc<Call>,
    gate: Arc<Gate>,
    /// Its permits and its places, until it ends.
    room: Option<(OwnedSemaphorePermit, Vec<Place>)>,
    /// Whether it keeps them when it ends.
    keeps_room: bool,
}

/// What a sequence has got, which is counted when it is over, however it ends.
#[derive(Debug)]
struct Generated {
    tokens: u32,
    first: Option<Instant>,
    last: Option<Instant>,
    call: Arc<Call>,
}

impl Drop for Generated {
    fn drop(&mut self) {
        self.call.generated(self.tokens, self.first, self.last);
    }
}

impl Running {
    /// What is known before the first token.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The text side of the model.
    #[must_use]
    pub const fn model(&self) -> &Arc<ModelText> {
        &self.model
    }

    /// The same, which keeps its room when it ends, for `Admission::take_back`.
    #[must_use]
    pub const fn keeping_room(mut self) -> Self {
        self.keeps_room = true;
        self
    }

    /// Whether all characters of the tokens so far were shown.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.text.is_clear()
    }

    /// The next token; `None` after the last one and after an error. Safe to cancel: no event is lost.
    pub async fn next(&mut self) -> Option<Result<Step, ApiError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The same, polled.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Step, ApiError>>> {
        loop {
            if let Some((token, finish)) = self.answer.pop_front() {
                self.generated.tokens += 1;
                return Poll::Ready(Some(Ok(self.on_token(token, finish))));
            }
            let Some(generation) = self.generation.as_mut() else { return Poll::Ready(None) };
            let error = match ready!(generation.poll_next(context)) {
                Some(Event::Token { token, finish }) => {
                    self.observe_token();
                    return Poll::Ready(Some(Ok(self.on_token(token, finish))));
                }
                Some(Event::Started { queued, cached_tokens }) => {
                    self.on_started(queued, cached_tokens);
                    continue;
                }
                Some(Event::Prompt(scores)) => {
                    self.prompt_scores = scores;
                    continue;
                }
                Some(Event::Answer(answer)) if !answer.tokens.is_empty() => {
                    self.on_answer(answer);
                    continue;
                }
                Some(Event::Failed(error)) => ApiError::from(error).about_shape(&self.shaped_by),
                None if self.streamed => ApiError::IncompleteStream,
                Some(Event::Answer(_)) | None => ApiError::Incomplete,
            };
            return Poll::Ready(Some(Err(self.on_error(error))));
        }
    }

    /// Runs the sequence to its end.
    ///
    /// # Errors
    /// Why it did not get there.
    pub async fn complete(mut self) -> Result<Completed, ApiError> {
        let mut text = String::new();
        let mut steps = Vec::new();
        let mut finish = None;
        while let Some(step) = self.next().await {
            let step = step?;
            // An engine that is faster than this must not hold up the thread.
            tokio::task::consume_budget().await;
            text.push_str(&step.text);
            finish = step.finish;
            steps.push(step);
        }
        let times = self.times();
        let finish = finish.ok_or(ApiError::Incomplete)?;
        let (prompt_scores, cached_tokens) = (self.prompt_scores, self.cached_tokens);
        Ok(Completed { text, steps, finish, prompt_scores, cached_tokens, facts: self.facts, times })
    }

    fn times(&self) -> Times {
        Times {
            total: self.call.begun().elapsed(),
            validation: self.facts.validation,
            queue: self.queue,
            inference: self.inference(),
        }
    }

    fn inference(&self) -> Duration {
        match (self.started, self.generated.last) {
            (Some(started), Some(last)) => last.saturating_duration_since(started),
            _ => Duration::ZERO,
        }
    }

    fn on_started(&mut self, queued: Duration, cached_tokens: u32) {
        // A sequence that is computed again after a shard died starts again; the first time counts.
        if self.started.is_none() {
            let now = Instant::now();
            self.started = Some(now);
            self.queue = queued;
            self.cached_tokens = cached_tokens;
            self.call.started(now, queued);
        }
    }

    fn on_token(&mut self, token: Token, finish: Option<Finish>) -> Step {
        let special = self.model.is_special(token.id);
        // A stop token is part of the text only where stop strings are.
        let hidden = finish == Some(Finish::StopToken) && !self.include_stop;
        let piece = if hidden { Piece::default() } else { self.text.push(token.id) };
        let mut text = piece.text;
        let reason = if piece.stopped {
            Some(FinishReason::StopSequence)
        } else if let Some(finish) = finish {
            text.push_str(&self.text.finish());
            Some(self.reason(finish, token.id))
        } else {
            None
        };
        if reason.is_some() {
            self.end();
            self.call.sequence_finished(self.inference(), self.generated.tokens);
            self.gate.finished(self.generated.tokens, self.max_new_tokens);
        }
        let stopped_by = if piece.stopped { self.text.stopped_by().map(Box::from) } else { None };
        let prompt_scores = if self.streamed { std::mem::take(&mut self.prompt_scores) } else { Vec::new() };
        Step { token, special, text, finish: reason, stopped_by, cached_tokens: self.cached_tokens, prompt_scores }
    }

    /// The tokens of a search come at once: there is no time between them.
    fn on_answer(&mut self, answer: Hypothesis) {
        let now = Instant::now();
        self.call.first_token(now, self.started);
        (self.generated.first, self.generated.last) = (Some(now), Some(now));
        let finish = match answer.finished_by {
            FinishedBy::Length => Finish::Length,
            FinishedBy::StopToken => Finish::StopToken,
        };
        let tokens = answer.tokens.into_iter().zip(answer.logprobs);
        self.answer = tokens.map(|(id, logprob)| (Token { id, logprob, top: Vec::new() }, None)).collect();
        if let Some((_, last)) = self.answer.back_mut() {
            *last = Some(finish);
        }
    }

    fn reason(&self, finish: Finish, token: u32) -> FinishReason {
        match finish {
            Finish::Length => FinishReason::Length,
            Finish::Whole => FinishReason::EosToken,
            Finish::StopToken if self.model.eos_tokens().contains(&token) => FinishReason::EosToken,
            Finish::StopToken => FinishReason::StopSequence,
        }
    }

    fn observe_token(&mut self) {
        let now = Instant::now();
        match self.generated.last.replace(now) {
            None => {
                self.generated.first = Some(now);
                self.call.first_token(now, self.started);
            }
            Some(before) => self.call.next_token(now.duration_since(before)),
        }
        self.generated.tokens += 1;
    }

    fn on_error(&mut self, error: ApiError) -> ApiError {
        self.end();
        failed(&self.call, error)
    }

    /// Lets go of the engine and of its room in the house, though the answer may still be on its way.
    fn end(&mut self) {
        self.generation = None;
        self.answer.clear();
        if !self.keeps_room {
            self.room = None;
        }
    }
}
