//! A sequence in the engine, as its request follows it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::answer::{Completed, Facts, FinishReason, Moments, Step, Times};
use super::failed;
use crate::http::errors::ApiError;
use crate::http::gate::{Gate, Place};
use crate::input::ModelText;
use crate::metrics::Call;
use crate::output::{Piece, TextStream};
use crate::scheduler::{FinishedBy, Hypothesis};
use crate::shard::handle::{Event, Finish, Generation, PromptScore, Token};

/// A sequence in the engine. Dropping it cancels the sequence and frees its permit and place.
#[derive(Debug)]
pub struct Running {
    /// Gone once the sequence has ended.
    pub(super) generation: Option<Generation>,
    /// What is left to tell of an answer that came whole.
    pub(super) answer: VecDeque<(Token, Option<Finish>)>,
    pub(super) text: TextStream,
    pub(super) model: Arc<ModelText>,
    pub(super) include_stop: bool,
    pub(super) shaped_by: Arc<[&'static str]>,
    pub(super) streamed: bool,
    pub(super) facts: Facts,
    pub(super) max_new_tokens: u32,
    pub(super) prompt_scores: Vec<Option<PromptScore>>,
    pub(super) cached_tokens: u32,
    pub(super) generated: Generated,
    pub(super) queue: Duration,
    pub(super) started: Option<Instant>,
    pub(super) call: Arc<Call>,
    pub(super) gate: Arc<Gate>,
    /// Its permits and its places, until it ends.
    pub(super) room: Option<(OwnedSemaphorePermit, Vec<Place>)>,
    /// Whether it keeps them when it ends.
    pub(super) keeps_room: bool,
}

/// What a sequence has got, which is counted when it is over, however it ends.
#[derive(Debug)]
pub(super) struct Generated {
    pub(super) tokens: u32,
    pub(super) first: Option<Instant>,
    pub(super) last: Option<Instant>,
    pub(super) call: Arc<Call>,
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

    /// Where its time went.
    #[must_use]
    pub fn times(&self) -> Times {
        Times {
            total: self.call.begun().elapsed(),
            validation: self.facts.validation,
            queue: self.queue,
            inference: self.inference(),
            moments: self.moments(),
        }
    }

    fn moments(&self) -> Option<Moments> {
        let Generated { first, last, .. } = self.generated;
        let since = |at: Instant| at.saturating_duration_since(self.call.begun()).as_secs_f64();
        Some(Moments { started: since(self.started?), first: since(first?), last: since(last?) })
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
