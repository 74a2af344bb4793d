//! What a client reads of an answer with asynchronous calls: a chat's chunks, and some that say what became of the calls.

use serde::Serialize;
use utoipa::ToSchema;

use crate::http::errors::Dialect;
use crate::http::generation::Step;
use crate::http::openai::answers::StopReason;
use crate::http::openai::chat_stream::ChatStream;
use crate::http::openai::parts::Part;
use crate::http::sse::{Events, Translate};

/// What became of asynchronous calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AsyncToolsEvent {
    /// A call is complete: it can be made, and its result can be sent.
    CallComplete {
        /// The call's `id`.
        tool_call_id: String,
        /// The call's `index`.
        index: usize,
    },
    /// The model has nothing more to say until a result comes.
    Waiting {
        /// The calls without a result.
        tool_call_ids: Vec<String>,
    },
    /// What follows is written with these results before it.
    ResultsInserted {
        /// The calls whose results they are.
        tool_call_ids: Vec<String>,
    },
    /// These results were taken, and the model will not see them.
    ResultsDropped {
        /// The calls whose results they are.
        tool_call_ids: Vec<String>,
        /// Why not.
        reason: DropReason,
    },
}

/// Why a result is not inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The conversation would be too long with it. Its call may have a shorter one.
    TooLong,
    /// The answer is over.
    Over,
}

/// What comes of an answer.
#[derive(Debug)]
pub(super) enum Told {
    /// A token, its parts, and the tokens of reasoning so far.
    Token(Box<Step>, Vec<Part>, Option<usize>),
    /// Something became of a call.
    Event(AsyncToolsEvent),
    /// The answer is over.
    End(StopReason),
}

pub(super) struct AsyncStream(pub(super) ChatStream);

impl Translate<Told> for AsyncStream {
    const DIALECT: Dialect = Dialect::OpenAi;

    fn step(&mut self, index: usize, told: Told, events: &mut Events) {
        match told {
            Told::Token(step, parts, reasoning) => self.0.tell(index, &step, Some(&parts), reasoning, events),
            Told::Event(event) => self.0.notify(&event, events),
            Told::End(reason) => self.0.finish(index, reason, events),
        }
    }

    fn end(&mut self, events: &mut Events) {
        self.0.end(events);
    }
}
