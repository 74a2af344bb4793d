//! The conversation as the model is to see it when it goes on: what it said, the calls it made, and what came of them.
//!
//! Every call is followed by one message of its tool: its result, or a note that there is none yet. So it is a conversation of
//! the kind that every chat template knows. What the model says after a call while the result is on its way is put before
//! the call: the result is then the last thing it reads, and it answers to that instead of to its own last words.

use serde_json::{Value, json};

use crate::http::openai::parts::Part;

/// Between two turns, for the reader and for the model.
pub(super) const BETWEEN_TURNS: &str = "\n\n";

#[derive(Debug)]
pub(super) struct Conversation {
    /// What the client sent.
    messages: Vec<Value>,
    /// Turns that are over and made calls.
    over: Vec<Turn>,
    /// The turn that is being written.
    turn: Turn,
    /// What stands where a result is to be.
    pending: String,
}

/// What the model writes from one generation prompt to its end.
#[derive(Debug, Default)]
struct Turn {
    reasoning: String,
    text: String,
    calls: Vec<Made>,
    /// What came last is text.
    ends_in_text: bool,
}

#[derive(Debug)]
struct Made {
    id: String,
    name: String,
    arguments: String,
    result: Option<String>,
}

impl Conversation {
    pub(super) fn new(messages: Vec<Value>, pending: String) -> Self {
        Self { messages, over: Vec::new(), turn: Turn::default(), pending }
    }

    /// Takes a part of the turn. The id of a call that is complete with it.
    pub(super) fn add(&mut self, part: &Part) -> Option<&str> {
        let turn = &mut self.turn;
        match part {
            Part::Reasoning(text) => turn.reasoning.push_str(text),
            Part::Text(text) => turn.text.push_str(text),
            Part::Call { id, name, .. } => {
                let (id, name) = (id.clone(), name.clone());
                turn.calls.push(Made { id, name, arguments: String::new(), result: None });
            }
            Part::Arguments { delta, .. } => {
                if let Some(call) = turn.calls.last_mut() {
                    call.arguments.push_str(delta);
                }
            }
            Part::CallEnd { .. } => {}
        }
        turn.ends_in_text = matches!(part, Part::Text(_));
        let ended = matches!(part, Part::CallEnd { .. });
        turn.calls.last().filter(|_| ended).map(|call| call.id.as_str())
    }

    /// What is to stand before the turn's first text, so that it does not touch the text of the turn before.
    pub(super) fn separator(&self) -> Option<&'static str> {
        let said = self.over.iter().any(|turn| !turn.text.is_empty());
        (said && self.turn.text.is_empty()).then_some(BETWEEN_TURNS)
    }

    /// Whether nothing of the turn was shown.
    pub(super) const fn is_blank(&self) -> bool {
        self.turn.reasoning.is_empty() && self.turn.text.is_empty() && self.turn.calls.is_empty()
    }

    /// Whether the turn made calls.
    pub(super) const fn calls(&self) -> bool {
        !self.turn.calls.is_empty()
    }

    /// Whether the last thing said is text.
    pub(super) const fn ends_in_text(&self) -> bool {
        self.turn.ends_in_text
    }

    /// The turn's text so far.
    pub(super) fn text(&self) -> &str {
        &self.turn.text
    }

    /// A result has come.
    pub(super) fn answer(&mut self, id: &str, result: String) {
        let turns = self.over.iter_mut().chain(std::iter::once(&mut self.turn));
        if let Some(call) = turns.flat_map(|turn| &mut turn.calls).find(|call| call.id == id) {
            call.result = Some(result);
        }
    }

    /// The model is not to see a result after all.
    pub(super) fn forget(&mut self, id: &str) {
        if let Some(call) = self.over.iter_mut().flat_map(|turn| &mut turn.calls).find(|call| call.id == id) {
            call.result = None;
        }
    }

    /// Calls without a result, in their order.
    pub(super) fn open_calls(&self) -> Vec<String> {
        let turns = self.over.iter().chain(std::iter::once(&self.turn));
        turns.flat_map(|turn| &turn.calls).filter(|call| call.result.is_none()).map(|call| call.id.clone()).collect()
    }

    /// The turn is over: what follows is a new one. Text without calls joins the turn before, which has made some.
    pub(super) fn end_turn(&mut self) {
        let turn = std::mem::take(&mut self.turn);
        match self.over.last_mut() {
            Some(before) if turn.calls.is_empty() => {
                if !before.text.is_empty() && !turn.text.is_empty() {
                    before.text.push_str(BETWEEN_TURNS);
                }
                before.text.push_str(&turn.text);
            }
            _ => self.over.push(turn),
        }
    }

    /// The conversation for the chat template.
    pub(super) fn messages(&self) -> Vec<Value> {
        let said = self.over.iter().flat_map(|turn| turn.messages(&self.pending));
        self.messages.iter().cloned().chain(said).collect()
    }
}

impl Turn {
    fn messages<'a>(&'a self, pending: &'a str) -> impl Iterator<Item = Value> + 'a {
        let call = |call: &Made| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        let calls: Vec<Value> = self.calls.iter().map(call).collect();
        let mut said = json!({"role": "assistant", "content": self.text, "tool_calls": calls});
        if !self.reasoning.is_empty() {
            said["reasoning_content"] = self.reasoning.as_str().into();
        }
        let result = move |call: &Made| {
            let content = call.result.as_deref().unwrap_or(pending);
            json!({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content})
        };
        std::iter::once(said).chain(self.calls.iter().map(result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(conversation: &mut Conversation, id: &str) {
        conversation.add(&Part::Call { index: 0, id: id.to_owned(), name: "f".to_owned() });
        conversation.add(&Part::Arguments { index: 0, delta: "{\"x\":".to_owned() });
        conversation.add(&Part::Arguments { index: 0, delta: "1}".to_owned() });
        assert_eq!(conversation.add(&Part::CallEnd { index: 0 }), Some(id));
    }

    fn text(conversation: &mut Conversation, text: &str) {
        assert_eq!(conversation.add(&Part::Text(text.to_owned())), None);
    }

    #[test]
    fn what_is_said_while_a_call_runs_stands_before_it() {
        let user = json!({"role": "user", "content": "Hi"});
        let mut conversation = Conversation::new(vec![user.clone()], "wait".to_owned());
        assert!(conversation.is_blank());
        text(&mut conversation, "Let me see.");
        call(&mut conversation, "a");
        assert!(conversation.calls() && !conversation.ends_in_text());
        conversation.end_turn();
        assert_eq!(conversation.separator(), Some("\n\n"));
        let made = |id: &str, text: &str| {
            let function = json!({"name": "f", "arguments": "{\"x\":1}"});
            json!({"role": "assistant", "content": text, "tool_calls": [{"id": id, "type": "function", "function": function}]})
        };
        let told =
            |id: &str, content: &str| json!({"role": "tool", "tool_call_id": id, "name": "f", "content": content});
        assert_eq!(conversation.messages(), [user.clone(), made("a", "Let me see."), told("a", "wait")]);
        text(&mut conversation, "One ");
        assert_eq!(conversation.separator(), None);
        text(&mut conversation, "moment.");
        conversation.answer("a", "7".to_owned());
        conversation.end_turn();
        let first = made("a", "Let me see.\n\nOne moment.");
        assert_eq!(conversation.messages(), [user.clone(), first.clone(), told("a", "7")]);
        call(&mut conversation, "b");
        assert_eq!(conversation.open_calls(), ["b"]);
        conversation.end_turn();
        assert_eq!(conversation.messages(), [user, first, told("a", "7"), made("b", ""), told("b", "wait")]);
    }
}
