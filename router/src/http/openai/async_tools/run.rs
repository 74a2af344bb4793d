//! An answer that goes on while its calls run: one turn of the model's after another, told as one stream.
//!
//! A turn is a sequence of its own, whose prompt is the conversation so far; the prefix cache knows its beginning. Between two
//! of them nothing is in the engine, but the answer keeps its permit and its place among its key's requests.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::time::{Instant, sleep_until};

use super::board::{Listed, News};
use super::conversation::Conversation;
use super::stream::{AsyncToolsEvent, DropReason, Told};
use crate::http::errors::ApiError;
use crate::http::generation::{Admission, Facts, FinishReason, Running, Step};
use crate::http::openai::answers::StopReason;
use crate::http::openai::parts::{Form, Part, Parts};
use crate::http::openai::tools::Calling;
use crate::http::sse::Source;
use crate::http::state::AppState;
use crate::input::{GenerationRequest, Prompt};
use crate::metrics::ResultFate;

/// Tokens after which a result is inserted even where no sentence ends.
const PATIENCE: usize = 64;
/// So many calls without a result, and the model waits for one before it goes on.
const MOST_OPEN: usize = 16;

pub(super) struct AsyncRun {
    state: AppState,
    /// The request as the client sent it; each turn is one like it.
    request: GenerationRequest,
    calling: Calling,
    form: Form,
    /// Whether the model is asked to go on when it has made a call.
    goes_on: bool,
    conversation: Conversation,
    board: Listed,
    phase: Phase,
    /// What was not told yet.
    told: VecDeque<Told>,
    /// What was known before the first turn.
    facts: Facts,
    /// Of all turns.
    calls: usize,
    tokens: u32,
    reasoning: Option<usize>,
    /// Tokens since a result has come that is not inserted yet.
    late: usize,
    /// How long a wait that has begun may last; a result that finds no room does not begin another.
    until: Option<Instant>,
}

/// What the answer does now.
enum Phase {
    /// The model writes a turn.
    Writing { admission: Admission, run: Box<Running>, parts: Parts },
    /// A turn is on its way into the engine, with these results.
    Starting { starting: BoxFuture<'static, (Admission, Result<Running, ApiError>)>, news: Vec<News>, after: After },
    /// The model waits for a result, until the future is ready.
    Waiting { admission: Admission, patience: BoxFuture<'static, Result<(), ApiError>> },
    /// Nothing follows.
    Over,
}

/// What came before a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// A turn that was cut, or had no word yet.
    Cut,
    /// A turn that the model has ended.
    Ended,
}

/// What an answer is made of.
pub(super) struct Begun {
    pub(super) request: GenerationRequest,
    pub(super) calling: Calling,
    pub(super) form: Form,
    pub(super) goes_on: bool,
    pub(super) conversation: Conversation,
    pub(super) admission: Admission,
    pub(super) run: Running,
}

impl AsyncRun {
    pub(super) fn new(state: AppState, begun: Begun, board: Listed) -> Self {
        let Begun { request, calling, form, goes_on, conversation, admission, run } = begun;
        let (facts, parts) = (run.facts().clone(), form.parts(run.facts()));
        Self {
            state,
            request,
            calling,
            form,
            goes_on,
            conversation,
            board,
            phase: Phase::Writing { admission, run: Box::new(run), parts },
            told: VecDeque::new(),
            facts,
            calls: 0,
            tokens: 0,
            reasoning: None,
            late: 0,
            until: None,
        }
        .with_room()
    }

    /// Tells the board how many tokens of results fit behind the turn that begins.
    fn with_room(self) -> Self {
        self.set_room(self.facts.input_length);
        self
    }

    fn set_room(&self, input_length: usize) {
        self.board.set_room(self.state.settings.max_input_tokens.saturating_sub(input_length));
    }

    /// Takes the next token of a turn.
    fn take(&mut self, admission: Admission, run: Box<Running>, mut parts: Parts, step: Step) -> Result<(), ApiError> {
        self.tokens += 1;
        self.board.written();
        let before = parts.reasoning_tokens();
        let mut found = parts.step(&step);
        if let Some(now) = parts.reasoning_tokens() {
            *self.reasoning.get_or_insert(0) += now - before.unwrap_or(0);
        }
        let mut complete = Vec::new();
        for part in &mut found {
            let separator = self.conversation.separator();
            let id = self.conversation.add(part);
            match (part, id, separator) {
                // The reader's, not the model's.
                (Part::Text(text), _, Some(separator)) => text.insert_str(0, separator),
                (Part::Call { .. }, ..) => self.calls += 1,
                (Part::CallEnd { index }, Some(id), _) => {
                    self.board.expect(id);
                    complete.push(AsyncToolsEvent::CallComplete { tool_call_id: id.to_owned(), index: *index });
                }
                _ => {}
            }
        }
        let (finish, ends_line) = (step.finish, step.text.trim_end_matches(' ').ends_with('\n'));
        self.told.push_back(Told::Token(Box::new(step), found, self.reasoning));
        self.told.extend(complete.into_iter().map(Told::Event));
        match finish {
            Some(FinishReason::Length) => self.end(StopReason::Length),
            Some(FinishReason::StopSequence) => self.end(StopReason::Stop),
            Some(FinishReason::EosToken) => return self.end_turn(admission, *run, &parts),
            None if self.board.has_news() && self.is_boundary(&run, &parts, ends_line) => {
                return self.go_on(admission, *run, After::Cut);
            }
            None => self.phase = Phase::Writing { admission, run, parts },
        }
        Ok(())
    }

    /// Whether a result may be inserted here: behind a sentence or a line, or anywhere in text when none ended for long.
    fn is_boundary(&mut self, run: &Running, parts: &Parts, ends_line: bool) -> bool {
        self.late += 1;
        let between = run.is_clear() && parts.is_whole() && parts.is_in_text() && self.conversation.ends_in_text();
        between && (ends_line || ends_sentence(self.conversation.text()) || self.late > PATIENCE)
    }

    /// The model has ended its turn.
    fn end_turn(&mut self, admission: Admission, run: Running, parts: &Parts) -> Result<(), ApiError> {
        let open = self.board.open_calls();
        if !parts.is_whole() || (open == 0 && !self.board.has_news()) {
            self.end(StopReason::Stop);
        } else if self.left() == Some(0) {
            self.end(StopReason::Length);
        } else if self.board.has_news() || (self.goes_on && self.conversation.calls() && open < MOST_OPEN) {
            return self.go_on(admission, run, After::Ended);
        } else {
            self.conversation.end_turn();
            let mut admission = admission;
            admission.take_back(run);
            self.wait(admission);
        }
        Ok(())
    }

    /// Starts a new turn, with all results that have come.
    fn go_on(&mut self, mut admission: Admission, run: Running, after: After) -> Result<(), ApiError> {
        self.conversation.end_turn();
        admission.take_back(run);
        self.start(admission, after)
    }

    fn start(&mut self, mut admission: Admission, after: After) -> Result<(), ApiError> {
        let news = self.board.take_news();
        for News { call, content, .. } in &news {
            self.conversation.answer(call, content.clone());
        }
        self.late = 0;
        let request = self.next_request().map_err(|error| admission.refuse(error))?;
        let patience = self.patience();
        let starting = async move {
            let run = admission.go_on(request, patience).await;
            (admission, run)
        };
        self.phase = Phase::Starting { starting: starting.boxed(), news, after };
        Ok(())
    }

    /// A turn is in the engine.
    fn begin(&mut self, admission: Admission, run: Running, news: &[News]) {
        if !news.is_empty() {
            self.told.push_back(Told::Event(AsyncToolsEvent::ResultsInserted { tool_call_ids: calls_of(news) }));
            self.state.metrics.async_tools.results(ResultFate::Inserted, news.len());
        }
        self.until = None;
        self.set_room(run.facts().input_length);
        let parts = self.form.parts_from(run.facts(), self.calls);
        self.phase = Phase::Writing { admission, run: Box::new(run), parts };
    }

    /// The conversation is too long for another turn: with the results, which are given up, or without any, which ends it.
    fn shorten(&mut self, admission: Admission, news: &[News], after: After) -> Result<(), ApiError> {
        if news.is_empty() {
            admission.ends_here();
            self.end(StopReason::Length);
            return Ok(());
        }
        news.iter().for_each(|news| self.conversation.forget(&news.call));
        self.board.reopen(news);
        self.tell_dropped(news, DropReason::TooLong);
        if after == After::Cut {
            return self.start(admission, after);
        }
        self.wait(admission);
        Ok(())
    }

    fn tell_dropped(&mut self, news: &[News], reason: DropReason) {
        if !news.is_empty() {
            let tool_call_ids = calls_of(news);
            self.told.push_back(Told::Event(AsyncToolsEvent::ResultsDropped { tool_call_ids, reason }));
            self.state.metrics.async_tools.results(ResultFate::Dropped, news.len());
        }
    }

    /// The request of the next turn.
    fn next_request(&mut self) -> Result<GenerationRequest, ApiError> {
        let left = self.left();
        let mut request = self.request.clone();
        if let Prompt::Chat(chat) = &mut request.prompt {
            chat.messages = self.conversation.messages();
            chat.add_generation_prompt = true;
        }
        let parameters = &mut request.parameters;
        parameters.max_new_tokens = left;
        // Results take room that was the answer's when it began.
        parameters.cut_to_fit = true;
        if let Some((_, least)) = &mut parameters.min_new_tokens {
            *least = least.saturating_sub(self.tokens);
        }
        self.form = Form::choose(&mut request, &self.calling, &self.state.parsers)?.ok_or(ApiError::Incomplete)?;
        Ok(request)
    }

    /// Tokens that may still be generated; `None` is as many as fit.
    fn left(&self) -> Option<u32> {
        self.request.parameters.max_new_tokens.map(|most| most.saturating_sub(self.tokens))
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.state.settings.async_tools_timeout.into())
    }

    /// Waits for a result: as long as the server waits, until the call's deadline, or until the server goes away.
    fn wait(&mut self, admission: Admission) {
        let tool_call_ids = self.conversation.open_calls();
        self.told.push_back(Told::Event(AsyncToolsEvent::Waiting { tool_call_ids }));
        let most = *self.until.get_or_insert(Instant::now() + self.patience());
        let (until, late) = match admission.deadline().map(Instant::from_std) {
            Some(deadline) if deadline < most => (deadline, Err(ApiError::Timeout)),
            _ => (most, Ok(())),
        };
        let engine = self.state.engine.clone();
        let patience = async move {
            tokio::select! {
                () = engine.closed() => Ok(()),
                () = sleep_until(until) => late,
            }
        };
        self.phase = Phase::Waiting { admission, patience: patience.boxed() };
    }

    /// The answer is over. Results that came too late for it are told.
    fn end(&mut self, reason: StopReason) {
        let news = self.board.shut();
        self.tell_dropped(&news, DropReason::Over);
        self.told.push_back(Told::End(reason));
        self.phase = Phase::Over;
    }
}

fn calls_of(news: &[News]) -> Vec<String> {
    news.iter().map(|news| news.call.clone()).collect()
}

/// Whether a text ends with a sentence. A dot behind a digit may be inside a number.
fn ends_sentence(text: &str) -> bool {
    let mut last = text.chars().rev().skip_while(|c| matches!(c, '"' | '\'' | ')' | ']' | '”' | '’' | '»' | '*'));
    match last.next() {
        Some('.') => last.next().is_some_and(|before| !before.is_ascii_digit()),
        Some(c) => matches!(c, '!' | '?' | '…' | '。' | '！' | '？'),
        None => false,
    }
}

impl Source for AsyncRun {
    type Item = Told;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Told, ApiError>>> {
        loop {
            if let Some(told) = self.told.pop_front() {
                return Poll::Ready(Some(Ok(told)));
            }
            let done = match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Over => return Poll::Ready(None),
                // A result that comes before the turn's first word is what the turn is to begin with.
                Phase::Writing { admission, run, .. } if self.conversation.is_blank() && self.board.has_news() => {
                    self.go_on(admission, *run, After::Cut)
                }
                Phase::Writing { admission, mut run, parts } => match run.poll_next(context) {
                    Poll::Ready(Some(Ok(step))) => self.take(admission, run, parts, step),
                    Poll::Ready(Some(Err(error))) => Err(error),
                    Poll::Ready(None) => Err(ApiError::IncompleteStream),
                    Poll::Pending => {
                        self.phase = Phase::Writing { admission, run, parts };
                        return Poll::Pending;
                    }
                },
                Phase::Starting { mut starting, news, after } => match Pin::new(&mut starting).poll(context) {
                    Poll::Ready((admission, Ok(run))) => {
                        self.begin(admission, run, &news);
                        Ok(())
                    }
                    // The server goes away: what is left is the client's, who goes on elsewhere.
                    Poll::Ready((_, Err(ApiError::Draining))) => {
                        self.tell_dropped(&news, DropReason::Over);
                        self.end(StopReason::ToolCalls);
                        Ok(())
                    }
                    Poll::Ready((admission, Err(ApiError::TooLong(_)))) => self.shorten(admission, &news, after),
                    Poll::Ready((_, Err(error))) => Err(error),
                    Poll::Pending => {
                        self.phase = Phase::Starting { starting, news, after };
                        return Poll::Pending;
                    }
                },
                Phase::Waiting { admission, mut patience } => {
                    self.board.register(context.waker());
                    let over = Pin::new(&mut patience).poll(context);
                    match over {
                        _ if self.board.has_news() => self.start(admission, After::Ended),
                        Poll::Ready(Err(error)) => Err(admission.refuse(error)),
                        Poll::Ready(Ok(())) if !self.board.close() => self.start(admission, After::Ended),
                        Poll::Ready(Ok(())) => {
                            // The calls are the client's now, as in any other chat.
                            admission.ends_here();
                            self.end(StopReason::ToolCalls);
                            Ok(())
                        }
                        Poll::Pending => {
                            self.phase = Phase::Waiting { admission, patience };
                            return Poll::Pending;
                        }
                    }
                }
            };
            if let Err(error) = done {
                self.board.shut();
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}
