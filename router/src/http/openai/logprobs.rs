//! Log-probabilities in OpenAI's two shapes.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::http::generation::{Completed, Step};
use crate::input::ModelText;
use crate::output::joining::Joining;
use crate::output::token_table::Entry;
use crate::shard::handle::PromptScore;

/// Log-probabilities of a chat answer.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One for each token.
    pub content: Vec<ChatLogprob>,
}

/// A token, its log-probability and its alternatives.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ChatLogprob {
    /// The token alone, as text.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The most likely tokens at its place.
    pub top_logprobs: Vec<TopLogprob>,
}

/// An alternative to a token.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TopLogprob {
    /// The token alone, as text.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The entry of one token.
pub(in crate::http) fn chat_logprob(step: &Step, model: &ModelText) -> ChatLogprob {
    let top =
        |&(id, logprob): &(u32, f32)| TopLogprob { token: model.token_text(id), logprob, bytes: bytes(id, model) };
    ChatLogprob {
        token: model.token_text(step.token.id),
        logprob: step.token.logprob,
        bytes: bytes(step.token.id, model),
        top_logprobs: step.token.top.iter().map(top).collect(),
    }
}

/// What a token writes: of use where it is a part of a character, which no text can show.
fn bytes(id: u32, model: &ModelText) -> Vec<u8> {
    match (model.joining(), model.table().get(id)) {
        (Joining::Library, _) => model.token_text(id).into_bytes(),
        (_, Entry::Text(bytes)) => bytes.to_vec(),
        (_, Entry::Byte(byte)) => vec![byte],
        (_, Entry::Unknown) => Vec::new(),
    }
}

/// Log-probabilities of a completion: parallel lists, one entry for each token.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// The tokens alone, as text.
    pub tokens: Vec<String>,
    /// Natural logarithms of their probabilities; null for the prompt's first, which follows nothing.
    pub token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at their places; two tokens of the same text share an entry.
    #[schema(value_type = Vec<Object>)]
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where each token's text begins, in characters of the text.
    pub text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Puts those of others before these.
    pub(super) fn prepend(&mut self, mut others: Self) {
        others.tokens.append(&mut self.tokens);
        others.token_logprobs.append(&mut self.token_logprobs);
        others.top_logprobs.append(&mut self.top_logprobs);
        others.text_offset.append(&mut self.text_offset);
        *self = others;
    }

    /// Adds a token whose text begins at `offset`.
    pub(super) fn push(&mut self, step: &Step, offset: usize, model: &ModelText) {
        self.tokens.push(model.token_text(step.token.id));
        self.token_logprobs.push(Some(step.token.logprob));
        self.top_logprobs.push(Some(top_map(&step.token.top, model)));
        self.text_offset.push(offset);
    }

    /// Adds a token of the prompt, with so many alternatives.
    pub(super) fn push_prompt(
        &mut self,
        id: u32,
        score: Option<&PromptScore>,
        alternatives: usize,
        offset: usize,
        model: &ModelText,
    ) {
        self.tokens.push(model.token_text(id));
        self.token_logprobs.push(score.map(|score| score.logprob));
        self.top_logprobs.push(score.map(|score| top_map(&score.top[..alternatives.min(score.top.len())], model)));
        self.text_offset.push(offset);
    }
}

fn top_map(top: &[(u32, f32)], model: &ModelText) -> Map<String, Value> {
    let mut map = Map::new();
    for &(id, logprob) in top {
        // Best first: of two tokens with one text, the likelier stays.
        map.entry(model.token_text(id)).or_insert_with(|| Value::from(logprob));
    }
    map
}

/// What the model said of a prompt's tokens, in vLLM's form: for each token its own entry and those of the most likely ones by
/// their ids, null for the first.
pub type PromptLogprobs = Vec<Option<BTreeMap<u32, PromptLogprob>>>;

/// What the model said of a token in the prompt.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PromptLogprob {
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its rank by probability, from 1.
    pub rank: u32,
    /// The token alone, as text.
    pub decoded_token: String,
}

/// The entries of a prompt's tokens, with so many alternatives.
pub(super) fn prompt_logprobs(completed: &Completed, alternatives: u32, model: &ModelText) -> PromptLogprobs {
    let entry = |id, logprob, rank| (id, PromptLogprob { logprob, rank, decoded_token: model.token_text(id) });
    let token = |(&id, score): (&u32, &Option<PromptScore>)| {
        let score = score.as_ref()?;
        let ranked = (1..=alternatives).zip(&score.top);
        let mut entries: BTreeMap<_, _> = ranked.map(|(rank, &(id, logprob))| entry(id, logprob, rank)).collect();
        entries.extend([entry(id, score.logprob, score.rank)]);
        Some(entries)
    };
    completed.facts.prompt_tokens.iter().zip(&completed.prompt_scores).map(token).collect()
}
