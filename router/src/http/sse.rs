//! Streams: the tokens of one or several sequences as server-sent events, or lines, of a dialect.
//!
//! The body of the answer polls the sequences itself. All that is ready goes into one buffer and leaves in one write: a
//! stream that keeps up gets a write per token, one that lags behind gets fewer and larger ones.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep};

use super::errors::{ApiError, Dialect};
use super::generation::{Facts, Running, Step};
use super::headers;
use super::state::AppState;
use crate::metrics::RequestMetrics;

/// Nginx and its kin pass a stream on unbuffered when they see this.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// The last event of OpenAI's streams.
pub const DONE: &str = "[DONE]";
/// A comment, which clients skip: it says that the stream lives.
const ALIVE: &[u8] = b":\n\n";
/// Bytes after which a write leaves even when more is ready, so that one stream does not hold up a thread.
const FULL: usize = 32 << 10;
/// Room for some events; a buffer that was written is used again.
const BUFFER: usize = 1 << 10;

/// Events on their way out, as the bytes that the client reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Events(BytesMut);

impl Events {
    /// One event with a JSON document as its data.
    pub fn push(&mut self, data: &impl Serialize) {
        self.push_parts(|json| json.value(data));
    }

    /// One event with a JSON document that is written in parts. The library writes no line ends: it is one line of data.
    pub fn push_parts(&mut self, write: impl FnOnce(&mut Json<'_>) -> serde_json::Result<()>) {
        let begin = self.open();
        match write(&mut Json(&mut self.0)) {
            Ok(()) => self.close(),
            Err(error) => {
                self.0.truncate(begin);
                self.push_raw(&ApiError::Internal(error.to_string()).body(Dialect::Native));
            }
        }
    }

    /// One event with a name and a JSON document as its data.
    pub fn push_named(&mut self, name: &str, data: &impl Serialize) {
        self.name(name);
        self.push(data);
    }

    /// One event with a name and plain data, on one line.
    pub fn push_named_raw(&mut self, name: &str, data: &str) {
        self.name(name);
        self.push_raw(data);
    }

    fn name(&mut self, name: &str) {
        self.room();
        self.0.extend_from_slice(b"event: ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\n");
    }

    /// A JSON document on a line of its own, for streams that are no events.
    pub fn push_line(&mut self, data: &impl Serialize) {
        self.room();
        let begin = self.0.len();
        if let Err(error) = Json(&mut self.0).value(data) {
            self.0.truncate(begin);
            self.0.extend_from_slice(ApiError::Internal(error.to_string()).body(Dialect::Ollama).as_bytes());
        }
        self.0.extend_from_slice(b"\n");
    }

    /// A comment, which clients skip: it says that the stream lives.
    pub fn push_comment(&mut self) {
        self.0.extend_from_slice(ALIVE);
    }

    /// One event with plain data, on one line.
    pub fn push_raw(&mut self, data: &str) {
        self.open();
        self.0.extend_from_slice(data.as_bytes());
        self.close();
    }

    fn room(&mut self) {
        if self.0.capacity() - self.0.len() < BUFFER / 4 {
            // Takes the old allocation back when what was in it is written.
            self.0.reserve(BUFFER);
        }
    }

    fn open(&mut self) -> usize {
        self.room();
        let begin = self.0.len();
        self.0.extend_from_slice(b"data: ");
        begin
    }

    fn close(&mut self) {
        self.0.extend_from_slice(b"\n\n");
    }

    fn take(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}

/// Where a document is written: straight into the buffer.
#[derive(Debug)]
pub struct Json<'a>(&'a mut BytesMut);

impl Json<'_> {
    /// A part that is JSON already.
    pub fn raw(&mut self, part: &str) {
        self.0.extend_from_slice(part.as_bytes());
    }

    /// A value.
    ///
    /// # Errors
    /// When it has no JSON.
    pub fn value(&mut self, value: &(impl Serialize + ?Sized)) -> serde_json::Result<()> {
        serde_json::to_writer(self, value)
    }
}

impl io::Write for Json<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a stream is made of.
pub trait Source: Send + Unpin + 'static {
    /// What comes: a token, or more.
    type Item;

    /// What is known before the first one.
    fn facts(&self) -> &Facts;

    /// The next one; `None` after the last one and after an error.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Self::Item, ApiError>>>;
}

impl Source for Running {
    type Item = Step;

    fn facts(&self) -> &Facts {
        self.facts()
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Step, ApiError>>> {
        self.poll_next(context)
    }
}

/// What a dialect makes of tokens.
pub trait Translate<I = Step>: Send + Unpin + 'static {
    /// The shape of errors.
    const DIALECT: Dialect;
    /// What the stream is declared as.
    const CONTENT_TYPE: &'static str = "text/event-stream";

    /// A token of sequence `index` arrived.
    fn step(&mut self, index: usize, step: I, events: &mut Events);

    /// Every sequence has ended as it should.
    fn end(&mut self, events: &mut Events);

    /// The last events of a stream that fails.
    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        events.push_raw(&error.body(Self::DIALECT));
        if Self::DIALECT == Dialect::OpenAi {
            events.push_raw(DONE);
        }
    }

    /// A sign of life, when nothing was written for a while.
    fn alive(&mut self, events: &mut Events) {
        events.push_comment();
    }
}

/// Opens a stream. Errors before the first token, or before `first_token` patience ends, have their own status.
///
/// # Errors
/// The first sequence's error, when nothing has been sent.
pub async fn respond<S: Source, T: Translate<S::Item>>(
    state: &AppState,
    runs: Vec<S>,
    translate: T,
) -> Result<Response, ApiError> {
    let characters = runs.iter().map(|run| run.facts().once(run.facts().prompt_characters)).sum();
    let mut body = EventBody {
        runs: runs.into_iter().map(Some).collect(),
        translate,
        events: Events::default(),
        first: First::Awaited,
        metrics: Arc::clone(&state.metrics.requests),
        ended: false,
        keep_alive: state.patience.keep_alive,
        written: Instant::now(),
        timer: Box::pin(tokio::time::sleep(state.patience.first_token)),
        awaits: None,
    };
    poll_fn(|context| body.poll_first(context)).await?;
    let mut response = Body::new(body).into_response();
    let head = response.headers_mut();
    describe(head, T::CONTENT_TYPE);
    headers::describe_prompt(head, &state.settings, characters);
    Ok(response)
}

/// A stream of one event, which is there already.
pub fn one(mut headers: HeaderMap, event: &impl Serialize) -> Response {
    let mut events = Events::default();
    events.push(event);
    describe(&mut headers, "text/event-stream");
    (headers, events.take()).into_response()
}

fn describe(head: &mut HeaderMap, content_type: &'static str) {
    head.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    head.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    head.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
}

/// Where the first token of a stream is.
#[derive(Clone, Copy)]
enum First {
    Awaited,
    Came(Instant),
    Sent,
}

/// The body of a stream.
struct EventBody<S, T> {
    /// `None` where a sequence has ended.
    runs: Vec<Option<S>>,
    translate: T,
    events: Events,
    first: First,
    metrics: Arc<RequestMetrics>,
    /// Whether the last event is in the buffer, or was.
    ended: bool,
    keep_alive: Duration,
    /// When something was last written. The timer is not moved with every token: it looks here when it fires.
    written: Instant,
    timer: Pin<Box<Sleep>>,
    /// Who is woken when the timer fires.
    awaits: Option<Waker>,
}

impl<S: Source, T: Translate<S::Item>> EventBody<S, T> {
    /// Ready with the first event in the buffer, or when the patience for it ends.
    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ApiError>> {
        if let Err(error) = self.collect(context) {
            if self.events.0.is_empty() {
                return Poll::Ready(Err(error));
            }
            self.fail(&error);
        }
        if self.ended || !self.events.0.is_empty() || self.timer.as_mut().poll(context).is_ready() {
            self.restart_timer(Instant::now());
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Takes in all that is ready. An error ends the stream: the sequences that are left are dropped.
    fn collect(&mut self, context: &mut Context<'_>) -> Result<(), ApiError> {
        let mut left = false;
        for (index, place) in self.runs.iter_mut().enumerate() {
            while let Some(run) = place {
                if self.events.0.len() >= FULL {
                    return Ok(());
                }
                let Poll::Ready(step) = run.poll_next(context) else { break };
                if matches!(self.first, First::Awaited) {
                    self.first = First::Came(Instant::now());
                }
                match step {
                    Some(step) => self.translate.step(index, step?, &mut self.events),
                    None => *place = None,
                }
            }
            left |= place.is_some();
        }
        if !left && !self.ended {
            self.ended = true;
            self.translate.end(&mut self.events);
        }
        Ok(())
    }

    /// The last events of a stream that fails.
    fn fail(&mut self, error: &ApiError) {
        if error.is_fault() {
            tracing::warn!(%error, "a stream failed");
        }
        self.runs.clear();
        self.ended = true;
        self.translate.fail(error, &mut self.events);
    }

    fn restart_timer(&mut self, written: Instant) {
        self.written = written;
        self.timer.as_mut().reset(written + self.keep_alive);
        self.awaits = None;
    }

    /// Ready when nothing was written for so long that a sign of life is due.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Asked once by a task, the timer wakes it: with every token it is enough to look.
        let awaited = self.awaits.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if awaited && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        while self.timer.as_mut().poll(context).is_ready() {
            let due = self.written + self.keep_alive;
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(due);
        }
        self.awaits = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<S: Source, T: Translate<S::Item>> http_body::Body for EventBody<S, T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if !this.ended
            && let Err(error) = this.collect(context)
        {
            this.fail(&error);
        }
        if !this.events.0.is_empty() {
            this.written = Instant::now();
            if let First::Came(at) = this.first {
                this.first = First::Sent;
                this.metrics.first_sent(this.written - at);
            }
            return Poll::Ready(Some(Ok(Frame::data(this.events.take()))));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        this.poll_silence(context).map(|()| {
            this.restart_timer(Instant::now());
            this.translate.alive(&mut this.events);
            Some(Ok(Frame::data(this.events.take())))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.events.0.is_empty()
    }
}
