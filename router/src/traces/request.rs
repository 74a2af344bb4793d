//! The trace of one call: a span from its arrival to its last byte, and one inside it for each stage.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use super::body::Traced;

/// Names a trace and one of its spans, as the W3C's Trace Context writes it.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What others along the way have to say of the trace.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// What a call goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Template, tokens and validation.
    Tokenize,
    /// Compilation of a grammar.
    Grammar,
    /// Waiting for the first step.
    Queue,
    /// From the first step to the first token.
    Prefill,
    /// From the first token to the last.
    Decode,
    /// From the last token to the last byte.
    Send,
}

impl Stage {
    const fn name(self) -> &'static str {
        match self {
            Self::Tokenize => "tokenize",
            Self::Grammar => "grammar",
            Self::Queue => "queue",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Send => "send",
        }
    }
}

/// The trace of one call. Its span ends when nobody holds it any more.
pub struct Trace {
    tracer: SdkTracer,
    /// Holds the call's own span.
    context: Context,
    /// The same moment on two clocks: stages are measured by the first, told by the second.
    begun: (Instant, SystemTime),
    sums: Mutex<Sums>,
}

/// What all sequences of a call add to.
#[derive(Default)]
struct Sums {
    input_tokens: u64,
    output_tokens: u64,
    last_token: Option<Instant>,
    failure: Option<&'static str>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Trace {
    pub(super) fn begin(tracer: SdkTracer, caller: &Context, name: &str, model: &str) -> Self {
        let begun = (Instant::now(), SystemTime::now());
        let span = tracer
            .span_builder(name.to_owned())
            .with_kind(SpanKind::Server)
            .with_start_time(begun.1)
            .with_attributes([KeyValue::new("gen_ai.request.model", model.to_owned())])
            .start_with_context(&tracer, caller);
        Self { tracer, context: caller.with_span(span), begun, sums: Mutex::default() }
    }

    /// What the trace is called.
    #[must_use]
    pub fn id(&self) -> String {
        self.context.span().span_context().trace_id().to_string()
    }

    /// A stage that took from one time to another.
    pub fn stage(&self, stage: Stage, from: Instant, to: Instant) {
        self.stage_of(stage, from, to, Vec::new());
    }

    fn stage_of(&self, stage: Stage, from: Instant, to: Instant, attributes: Vec<KeyValue>) {
        // One that its caller does not want is not recorded at all.
        if !self.context.span().is_recording() {
            return;
        }
        let builder =
            self.tracer.span_builder(stage.name()).with_start_time(self.told(from)).with_attributes(attributes);
        builder.start_with_context(&self.tracer, &self.context).end_with_timestamp(self.told(to));
    }

    fn told(&self, time: Instant) -> SystemTime {
        let (begun, since) = self.begun;
        match time.checked_duration_since(begun) {
            Some(after) => since + after,
            None => since - begun.duration_since(time),
        }
    }

    /// A prompt of so many tokens was taken.
    pub fn read(&self, tokens: u64) {
        self.sums().input_tokens += tokens;
    }

    /// A sequence got so many tokens between these times.
    pub fn wrote(&self, tokens: u64, first: Instant, last: Instant) {
        {
            let mut sums = self.sums();
            sums.output_tokens += tokens;
            sums.last_token = sums.last_token.max(Some(last));
        }
        let count = i64::try_from(tokens).unwrap_or(i64::MAX);
        self.stage_of(Stage::Decode, first, last, vec![KeyValue::new("gen_ai.usage.output_tokens", count)]);
    }

    /// The call failed, for a reason with this name.
    pub fn failed(&self, reason: &'static str) {
        self.sums().failure.get_or_insert(reason);
    }

    /// The answer to an HTTP request, whose body keeps the trace until it is sent.
    #[must_use]
    pub fn answered(self: Arc<Self>, method: &str, route: &str, response: Response) -> Response {
        let (span, status) = (self.context.span(), response.status());
        span.update_name(format!("{method} {route}"));
        span.set_attributes([
            KeyValue::new("http.request.method", method.to_owned()),
            KeyValue::new("http.route", route.to_owned()),
            KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
        ]);
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
        let named = span.span_context();
        let parent = format!("00-{}-{}-{:02x}", named.trace_id(), named.span_id(), named.trace_flags().to_u8());
        let mut response = response.map(|body| Body::new(Traced::new(body, Arc::clone(&self))));
        if let Ok(parent) = HeaderValue::from_str(&parent) {
            response.headers_mut().insert(TRACEPARENT, parent);
        }
        response
    }

    /// The last byte of the answer is written, or will never be.
    pub(super) fn sent(&self) {
        let last = self.sums().last_token;
        if let Some(last) = last {
            self.stage(Stage::Send, last, Instant::now());
        }
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let sums = self.sums.get_mut().unwrap_or_else(PoisonError::into_inner);
        let span = self.context.span();
        let count = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        if sums.input_tokens > 0 {
            span.set_attribute(KeyValue::new("gen_ai.usage.input_tokens", count(sums.input_tokens)));
            span.set_attribute(KeyValue::new("gen_ai.usage.output_tokens", count(sums.output_tokens)));
        }
        if let Some(failure) = sums.failure {
            span.set_attribute(KeyValue::new("error.type", failure));
            span.set_status(Status::error(failure));
        }
        span.end();
    }
}
