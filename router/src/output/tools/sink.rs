//! Where the machines put what they find.

use std::sync::Arc;

use serde_json::Value;

use super::{ToolEvent, ToolLimits, ToolSet};

/// The calls of one answer so far.
#[derive(Debug)]
pub(super) struct Calls {
    tools: Option<Arc<ToolSet>>,
    limits: ToolLimits,
    next: usize,
    open: Option<Open>,
    settled: bool,
}

/// The call whose arguments are coming.
#[derive(Debug)]
struct Open {
    index: usize,
    /// No argument text yet.
    empty: bool,
}

impl Calls {
    /// With a list of tools, only their names make calls.
    pub(super) fn new(tools: Option<Arc<ToolSet>>, limits: ToolLimits) -> Self {
        Self { tools, limits, next: 0, open: None, settled: false }
    }
}

/// Takes the events of one push. Neighbouring pieces of one kind become one event.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    calls: &'a mut Calls,
    out: &'a mut Vec<ToolEvent>,
    /// Events before this one belong to earlier pushes and stay as they are.
    floor: usize,
}

impl<'a> Sink<'a> {
    pub(super) fn new(calls: &'a mut Calls, out: &'a mut Vec<ToolEvent>) -> Self {
        let floor = out.len();
        Self { calls, out, floor }
    }

    pub(super) fn limits(&self) -> ToolLimits {
        self.calls.limits
    }

    /// Whether a call may have this name.
    pub(super) fn knows(&self, name: &str) -> bool {
        !name.is_empty() && self.calls.tools.as_ref().is_none_or(|tools| tools.contains(name))
    }

    /// Whether the request lists its tools.
    pub(super) fn lists_tools(&self) -> bool {
        self.calls.tools.is_some()
    }

    /// Schema of a tool's argument, when the request gives one.
    pub(super) fn argument_schema(&self, tool: &str, key: &str) -> Option<&Value> {
        self.calls.tools.as_ref()?.argument(tool, key)
    }

    pub(super) fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.out.get_mut(self.floor..).and_then(<[_]>::last_mut) {
            Some(ToolEvent::Text(last)) => last.push_str(text),
            _ => self.out.push(ToolEvent::Text(text.to_owned())),
        }
    }

    /// From here on the text is a call and cannot become text again.
    pub(super) fn begin(&mut self, name: &str) {
        self.abandon();
        let index = self.calls.next;
        self.calls.next += 1;
        self.calls.open = Some(Open { index, empty: true });
        self.calls.settled = true;
        self.out.push(ToolEvent::CallBegin { index, name: name.to_owned() });
    }

    /// More of the open call's arguments.
    pub(super) fn argument(&mut self, text: &str) {
        let Some(open) = &mut self.calls.open else { return };
        self.calls.settled = true;
        if text.is_empty() {
            return;
        }
        open.empty = false;
        match self.out.get_mut(self.floor..).and_then(<[_]>::last_mut) {
            Some(ToolEvent::Arguments { delta, .. }) => delta.push_str(text),
            _ => self.out.push(ToolEvent::Arguments { index: open.index, delta: text.to_owned() }),
        }
    }

    /// The open call is complete. A call without arguments has an empty object.
    pub(super) fn end(&mut self) {
        if self.calls.open.as_ref().is_some_and(|open| open.empty) {
            self.argument("{}");
        }
        if let Some(open) = self.calls.open.take() {
            self.calls.settled = true;
            self.out.push(ToolEvent::CallEnd { index: open.index });
        }
    }

    /// The open call is cut off.
    pub(super) fn abandon(&mut self) {
        self.calls.open = None;
    }

    /// All characters so far are part of calls or of how they are written: none of them may become text.
    pub(super) fn settle(&mut self) {
        self.calls.settled = true;
    }

    /// Whether `settle`, or what implies it, was called since the last time this was asked.
    pub(super) fn take_settled(&mut self) -> bool {
        std::mem::take(&mut self.calls.settled)
    }
}
