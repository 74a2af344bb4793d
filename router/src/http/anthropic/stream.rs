//! A streamed answer in Anthropic's events.

use super::answer::{
    AnthropicEvent, AnthropicMessage, AnthropicStopReason, BlockDelta, ContentBlock, SIGNATURE, StopDelta,
};
use crate::http::blocks::{Block, BlockEvent, Blocks, Kind, Sort, Tokens};
use crate::http::errors::{ApiError, Dialect};
use crate::http::generation::{Facts, Step};
use crate::http::openai::parts::Form;
use crate::http::sse::{Events, Translate};

pub(super) struct MessageStream {
    id: String,
    model: String,
    blocks: Blocks,
    tokens: Tokens,
    /// Blocks that began.
    begun: usize,
}

impl MessageStream {
    pub(super) fn new(id: String, model: String, form: Option<&Form>, facts: &Facts) -> Self {
        let tokens = Tokens { prompt: facts.input_length, ..Tokens::default() };
        Self { id, model, blocks: Blocks::new(form, facts), tokens, begun: 0 }
    }

    fn tell(&mut self, event: BlockEvent, events: &mut Events) {
        // The first block has the number 0.
        let index = self.begun.saturating_sub(1);
        match event {
            BlockEvent::Begin(kind) => self.begin(kind, events),
            BlockEvent::More(sort, more, _) => {
                let delta = match sort {
                    Sort::Text => BlockDelta::TextDelta { text: &more },
                    Sort::Reasoning => BlockDelta::ThinkingDelta { thinking: &more },
                    Sort::Call => BlockDelta::InputJsonDelta { partial_json: &more },
                };
                push(&AnthropicEvent::ContentBlockDelta { index, delta }, events);
            }
            BlockEvent::End(sort) => {
                if sort == Sort::Reasoning {
                    let delta = BlockDelta::SignatureDelta { signature: SIGNATURE };
                    push(&AnthropicEvent::ContentBlockDelta { index, delta }, events);
                }
                push(&AnthropicEvent::ContentBlockStop { index }, events);
            }
        }
    }

    fn begin(&mut self, kind: Kind, events: &mut Events) {
        let index = self.begun;
        self.begun += 1;
        let mut content_block = ContentBlock::from(Block { kind, text: String::new() });
        if let ContentBlock::Thinking { signature, .. } = &mut content_block {
            *signature = "";
        }
        push(&AnthropicEvent::ContentBlockStart { index, content_block }, events);
        if index == 0 {
            push(&AnthropicEvent::Ping, events);
        }
    }
}

fn push(event: &AnthropicEvent<'_>, events: &mut Events) {
    events.push_named(event.name(), event);
}

impl Translate for MessageStream {
    const DIALECT: Dialect = Dialect::Anthropic;

    fn step(&mut self, _: usize, mut step: Step, events: &mut Events) {
        self.tokens.generated += 1;
        if self.tokens.generated == 1 {
            self.tokens.cached = step.cached_tokens as usize;
            let (id, model) = (std::mem::take(&mut self.id), std::mem::take(&mut self.model));
            let message = AnthropicMessage::begun(id, model, self.tokens);
            push(&AnthropicEvent::MessageStart { message }, events);
        }
        let mut told = Vec::new();
        self.blocks.step(&mut step, |event| told.push(event));
        told.into_iter().for_each(|event| self.tell(event, events));
        if let Some(finish) = step.finish {
            self.tokens.reasoning = self.blocks.reasoning_tokens();
            let (reason, calls) = (self.blocks.reason(finish), self.blocks.calls(finish));
            let stop_reason = AnthropicStopReason::new(reason, calls, step.stopped_by.as_deref());
            let delta = StopDelta { stop_reason, stop_sequence: step.stopped_by.map(String::from) };
            push(&AnthropicEvent::MessageDelta { delta, usage: self.tokens.into() }, events);
        }
    }

    fn end(&mut self, events: &mut Events) {
        push(&AnthropicEvent::MessageStop, events);
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        events.push_named_raw("error", &error.body(Self::DIALECT));
    }

    fn alive(&mut self, events: &mut Events) {
        push(&AnthropicEvent::Ping, events);
    }
}
