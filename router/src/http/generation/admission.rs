//! How a call is let in, and its sequences handed to the engine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::answer::Facts;
use super::failed;
use super::running::{Generated, Running};
use crate::http::errors::ApiError;
use crate::http::gate::{Demand, Place};
use crate::http::standing::Caller;
use crate::http::state::AppState;
use crate::input::{GenerationRequest, Prepared, WantedGrammar};
use crate::metrics::Call;
use crate::output::{TextParams, TextStream};
use crate::request::SamplingParams;
use crate::shard::handle::{EngineStatus, Generation};
use crate::traces::Stage;

/// Time after which one that goes on asks for room again.
const AGAIN: Duration = Duration::from_millis(100);

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
