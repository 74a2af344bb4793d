//! What a request of this process is told: records that go to Python as msgpack, each an array of its fields in this order.
//! `python/textgen/llm/replies.py` reads them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::http::errors::{ApiError, Dialect};
use crate::http::generation::{Completed, Facts, FinishReason, Moments, Step};
use crate::input::ModelText;
use crate::shard::handle::PromptScore;

/// What came of one request since it was asked for last.
#[derive(Debug, Default, Serialize)]
pub struct Reply {
    /// With the first.
    pub prompt: Option<PromptPart>,
    /// How many of the prompt's tokens were in the prefix cache.
    pub cached_tokens: u32,
    /// More of the answers, by their numbers.
    pub parts: BTreeMap<usize, Part>,
    /// Nothing follows.
    pub done: bool,
    /// Why it was not answered to the end.
    pub fault: Option<Fault>,
    /// The answer of a route.
    pub response: Option<RouteAnswer>,
}

/// The prompt as it was run.
#[derive(Debug, Serialize)]
pub struct PromptPart {
    /// Its text, where it was text.
    pub text: Option<String>,
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// What was said of them, when asked for; the first follows nothing.
    pub scores: Vec<Option<Scored>>,
}

/// More of one answer.
#[derive(Debug, Default, Serialize)]
pub struct Part {
    /// Characters that became visible.
    pub text: String,
    /// Tokens.
    pub token_ids: Vec<u32>,
    /// What is known of each token; empty unless asked for.
    pub scores: Vec<Scored>,
    /// The sum of the tokens' log-probabilities.
    pub logprob: f64,
    /// Set with the last token.
    pub finish: Option<&'static str>,
    /// The stop string that ended it.
    pub stop_text: Option<String>,
    /// The stop token that ended it, unless that is the model's own.
    pub stop_token: Option<u32>,
    /// A chat message in OpenAI's form, as JSON; only of a conversation's whole answer.
    pub message: Option<String>,
    /// When its tokens came, told with the last of them.
    pub moments: Option<Moments>,
}

/// A token with its log-probability and alternatives.
#[derive(Debug, Serialize)]
pub struct Scored {
    /// Vocabulary id.
    pub id: u32,
    /// The token alone, as text.
    pub text: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// From 1; `None` where it is not known.
    pub rank: Option<u32>,
    /// The most likely tokens in its place, best first: id, text and log-probability.
    pub top: Vec<(u32, String, f32)>,
}

/// Why a request was not answered.
#[derive(Debug, Serialize)]
pub struct Fault {
    /// The status that an HTTP client would see.
    pub status: u16,
    /// The class.
    pub kind: &'static str,
    /// What to change.
    pub message: String,
}

/// What a route answers.
#[derive(Debug, Serialize)]
pub struct RouteAnswer {
    /// Its status.
    pub status: u16,
    /// Its id, as in the header `x-request-id`.
    pub request_id: String,
    /// Its body, JSON.
    pub body: String,
}

impl From<&ApiError> for Fault {
    fn from(error: &ApiError) -> Self {
        let status = error.status(Dialect::OpenAi).as_u16();
        Self { status, kind: error.row().error_type, message: error.to_string() }
    }
}

impl PromptPart {
    pub(super) fn of(facts: &Facts) -> Self {
        let text = facts.prompt_text.as_deref().map(str::to_owned);
        Self { text, token_ids: facts.prompt_tokens.clone(), scores: Vec::new() }
    }

    /// With what only the end tells.
    pub(super) fn whole(completed: &Completed, model: &ModelText) -> Self {
        let scored = |(&id, score): (&u32, &Option<PromptScore>)| {
            let score = score.as_ref()?;
            let (logprob, rank) = (score.logprob, Some(score.rank));
            Some(Scored { id, text: model.token_text(id), logprob, rank, top: named(&score.top, model) })
        };
        let scores = completed.facts.prompt_tokens.iter().zip(&completed.prompt_scores).map(scored).collect();
        Self { scores, ..Self::of(&completed.facts) }
    }
}

impl Part {
    /// Adds a step; `scored` when its token is to be described.
    pub(super) fn add(&mut self, step: &Step, scored: bool, model: &ModelText) {
        let token = &step.token;
        self.text.push_str(&step.text);
        self.token_ids.push(token.id);
        self.logprob += f64::from(token.logprob);
        if scored {
            let place = token.top.iter().position(|(id, _)| *id == token.id);
            let rank = place.and_then(|place| u32::try_from(place + 1).ok());
            let (id, text) = (token.id, model.token_text(token.id));
            self.scores.push(Scored { id, text, logprob: token.logprob, rank, top: named(&token.top, model) });
        }
        if let Some(finish) = step.finish {
            self.finish = Some(if finish == FinishReason::Length { "length" } else { "stop" });
            self.stop_text = step.stopped_by.as_deref().map(str::to_owned);
            let by_token = finish == FinishReason::StopSequence && self.stop_text.is_none();
            self.stop_token = by_token.then_some(token.id);
        }
    }

    /// A whole answer.
    pub(super) fn whole(completed: &Completed, scored: bool, model: &ModelText) -> Self {
        let mut part = Self::default();
        completed.steps.iter().for_each(|step| part.add(step, scored, model));
        part.moments = completed.times.moments;
        part
    }
}

fn named(top: &[(u32, f32)], model: &ModelText) -> Vec<(u32, String, f32)> {
    top.iter().map(|&(id, logprob)| (id, model.token_text(id), logprob)).collect()
}
