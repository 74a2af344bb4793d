//! A streamed chat answer: a delta with the role, deltas with text, reasoning or a part of a call, one with the reason it
//! ended.

use std::sync::Arc;

use super::answers::{
    ChatChunkChoice, ChatCompletionChunk, Delta, FunctionDelta, Head, StopReason, ToolCallDelta, Usage,
};
use super::async_tools::AsyncToolsEvent;
use super::logprobs::{ChatLogprob, ChatLogprobs, chat_logprob};
use super::parts::{Form, Part, Parts};
use super::sampling::{Extras, StreamUsage};
use crate::http::errors::Dialect;
use crate::http::generation::{Facts, Step};
use crate::http::sse::{DONE, Events, Translate};
use crate::input::ModelText;

pub(super) struct ChatStream {
    head: Head,
    model: Arc<ModelText>,
    usage: StreamUsage,
    /// The prompt's tokens, until they are out; where they are asked for.
    prompt_token_ids: Option<Vec<u32>>,
    prompt_tokens: usize,
    cached_tokens: usize,
    choices: Vec<ChoiceState>,
}

struct ChoiceState {
    completion_tokens: usize,
    /// Those of reasoning; `None` where none is looked for.
    reasoning_tokens: Option<usize>,
    /// Entries of tokens whose text is not out yet; `None` when not asked for.
    logprobs: Option<Vec<ChatLogprob>>,
    /// Tokens that are not out yet; `None` when not asked for.
    token_ids: Option<Vec<u32>>,
    /// Takes the answer apart; `None` when there is nothing to look for.
    parts: Option<Parts>,
}

impl ChoiceState {
    fn take_logprobs(&mut self) -> Option<ChatLogprobs> {
        self.logprobs
            .as_mut()
            .filter(|held| !held.is_empty())
            .map(|held| ChatLogprobs { content: std::mem::take(held) })
    }

    fn take_token_ids(&mut self) -> Option<Vec<u32>> {
        self.token_ids.as_mut().filter(|held| !held.is_empty()).map(std::mem::take)
    }
}

impl ChatStream {
    /// `facts`: of each answer to one prompt.
    pub(super) fn new<'a>(
        head: Head,
        facts: impl Iterator<Item = &'a Facts>,
        form: Option<&Form>,
        logprobs: bool,
        usage: StreamUsage,
        wanted: Extras,
        model: &Arc<ModelText>,
    ) -> Self {
        let (mut prompt_tokens, mut prompt_token_ids) = (0, None);
        let state = |facts: &Facts| {
            prompt_tokens = facts.input_length;
            prompt_token_ids.get_or_insert_with(|| facts.prompt_tokens.clone());
            ChoiceState {
                completion_tokens: 0,
                reasoning_tokens: None,
                logprobs: logprobs.then(Vec::new),
                token_ids: wanted.token_ids.then(Vec::new),
                parts: form.map(|form| form.parts(facts)),
            }
        };
        let choices = facts.map(state).collect();
        let prompt_token_ids = prompt_token_ids.filter(|_| wanted.token_ids);
        Self { head, model: Arc::clone(model), usage, prompt_token_ids, prompt_tokens, cached_tokens: 0, choices }
    }

    /// The answer's name.
    pub(super) fn id(&self) -> &str {
        &self.head.id
    }

    /// The counts of one answer so far, where every chunk has them.
    fn usage_of(&self, index: usize) -> Option<Usage> {
        let choice = self.choices.get(index).filter(|_| self.usage.every)?;
        let usage = Usage::new(self.prompt_tokens, self.cached_tokens, choice.completion_tokens);
        Some(usage.with_reasoning(choice.reasoning_tokens))
    }

    fn chunk<'a>(&'a self, choices: &'a [ChatChunkChoice<'a>], usage: Option<Usage>) -> ChatCompletionChunk<'a> {
        ChatCompletionChunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            system_fingerprint: &self.head.system_fingerprint,
            choices,
            usage,
            prompt_token_ids: None,
            async_tools: None,
        }
    }

    /// Tells a token: its parts, or its text where nothing is looked for, and the tokens of reasoning so far.
    pub(super) fn tell(
        &mut self,
        index: usize,
        step: &Step,
        parts: Option<&[Part]>,
        reasoning_tokens: Option<usize>,
        events: &mut Events,
    ) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        choice.completion_tokens += 1;
        choice.reasoning_tokens = reasoning_tokens;
        let first = choice.completion_tokens == 1;
        if let Some(held) = &mut choice.logprobs {
            held.push(chat_logprob(step, &self.model));
        }
        if let Some(held) = &mut choice.token_ids {
            held.push(step.token.id);
        }
        let text = (parts.is_none() && !step.text.is_empty()).then_some(step.text.as_str());
        let text = text.map(|text| Delta { content: Some(text), ..Delta::default() });
        let mut deltas = text.into_iter().chain(parts.into_iter().flatten().filter_map(delta)).peekable();
        // Both go out with the text that they made visible, or with the end.
        let shows = deltas.peek().is_some();
        let mut logprobs = if shows { choice.take_logprobs() } else { None };
        let mut token_ids = if shows { choice.take_token_ids() } else { None };
        if first && index == 0 {
            self.cached_tokens = step.cached_tokens as usize;
        }
        let mut prompt_token_ids = self.prompt_token_ids.take();
        let usage = self.usage_of(index);
        let mut push = |delta: Delta<'_>, logprobs, token_ids| {
            let choices = [ChatChunkChoice { index, delta, logprobs, finish_reason: None, token_ids }];
            let chunk = self.chunk(&choices, usage);
            events.push(&ChatCompletionChunk { prompt_token_ids: prompt_token_ids.take(), ..chunk });
        };
        if first {
            // Beside calls there may be no content at all; clients put null and text together to text.
            let content = parts.is_none().then_some("");
            push(Delta { role: Some("assistant"), content, ..Delta::default() }, None, None);
        }
        for delta in deltas {
            push(delta, logprobs.take(), token_ids.take());
        }
    }

    /// Tells why an answer ended.
    pub(super) fn finish(&mut self, index: usize, reason: StopReason, events: &mut Events) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        let (logprobs, token_ids) = (choice.take_logprobs(), choice.take_token_ids());
        let finish_reason = Some(reason);
        let choices = [ChatChunkChoice { index, delta: Delta::default(), logprobs, finish_reason, token_ids }];
        events.push(&self.chunk(&choices, self.usage_of(index)));
    }

    /// Tells what became of asynchronous calls.
    pub(super) fn notify(&self, event: &AsyncToolsEvent, events: &mut Events) {
        // A choice without anything new: not every client expects a chunk without choices before the end.
        let choices = [ChatChunkChoice {
            index: 0,
            delta: Delta::default(),
            logprobs: None,
            finish_reason: None,
            token_ids: None,
        }];
        let chunk = self.chunk(&choices, self.usage_of(0));
        events.push(&ChatCompletionChunk { async_tools: Some(event), ..chunk });
    }
}

impl Translate for ChatStream {
    const DIALECT: Dialect = Dialect::OpenAi;

    fn step(&mut self, index: usize, step: Step, events: &mut Events) {
        let Some(own) = self.choices.get_mut(index).map(|choice| &mut choice.parts) else { return };
        let parts = own.as_mut().map(|parts| parts.step(&step));
        let reasoning_tokens = own.as_ref().and_then(Parts::reasoning_tokens);
        let reason = step.finish.map(|finish| own.as_ref().map_or(finish.into(), |parts| parts.reason(finish)));
        self.tell(index, &step, parts.as_deref(), reasoning_tokens, events);
        if let Some(reason) = reason {
            self.finish(index, reason, events);
        }
    }

    fn end(&mut self, events: &mut Events) {
        if self.usage.last {
            let generated = self.choices.iter().map(|choice| choice.completion_tokens).sum();
            let reasoning = self.choices.iter().map(|choice| choice.reasoning_tokens).sum();
            let usage = Usage::new(self.prompt_tokens, self.cached_tokens, generated).with_reasoning(reasoning);
            events.push(&self.chunk(&[], Some(usage)));
        }
        events.push_raw(DONE);
    }
}

/// `None` for what has none of its own.
fn delta(part: &Part) -> Option<Delta<'_>> {
    let call = |call| Delta { tool_calls: Some([call]), ..Delta::default() };
    Some(match part {
        Part::Reasoning(text) => Delta { reasoning_content: Some(text), ..Delta::default() },
        Part::Text(text) => Delta { content: Some(text), ..Delta::default() },
        Part::Call { index, id, name } => call(ToolCallDelta {
            index: *index,
            id: Some(id),
            kind: Some("function"),
            function: FunctionDelta { name: Some(name), arguments: "" },
        }),
        Part::Arguments { index, delta } => {
            let function = FunctionDelta { name: None, arguments: delta };
            call(ToolCallDelta { index: *index, function, ..ToolCallDelta::default() })
        }
        Part::CallEnd { .. } => return None,
    })
}
