//! A prompt at the front of its completion.

use std::sync::Arc;

use super::logprobs::CompletionLogprobs;
use super::types::Wanted;
use crate::http::generation::Facts;
use crate::input::ModelText;
use crate::output::{TextParams, TextStream};
use crate::shard::handle::PromptScore;

/// The prompt as the client wrote it, or as its tokens read where it was cut or came as tokens.
pub(super) fn prompt_text(facts: &Facts, wanted: Wanted, model: &Arc<ModelText>) -> Arc<str> {
    match &facts.prompt_text {
        Some(text) if wanted.whole_prompt => Arc::clone(text),
        _ => {
            let mut stream = text_stream(wanted, model);
            let mut text: String = facts.prompt_tokens.iter().map(|&id| stream.push(id).text).collect();
            text.push_str(&stream.finish());
            text.into()
        }
    }
}

/// Log-probabilities of the prompt's tokens, each where its text begins.
pub(super) fn logprobs(
    tokens: &[u32],
    scores: &[Option<PromptScore>],
    alternatives: usize,
    wanted: Wanted,
    model: &Arc<ModelText>,
) -> CompletionLogprobs {
    let (mut logprobs, mut stream, mut offset) = (CompletionLogprobs::default(), text_stream(wanted, model), 0);
    for (&id, score) in tokens.iter().zip(scores) {
        logprobs.push_prompt(id, score.as_ref(), alternatives, offset, model);
        offset += stream.push(id).text.chars().count();
    }
    logprobs
}

fn text_stream(wanted: Wanted, model: &Arc<ModelText>) -> TextStream {
    let params = TextParams { skip_special_tokens: !wanted.shows_special_tokens, ..TextParams::default() };
    TextStream::new(Arc::clone(model), params)
}
