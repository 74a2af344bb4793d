//! A server with an engine that does what the test says.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use textgen_router::http::keys::KeyRing;
use textgen_router::http::{AppState, Patience, ShardOps, app};
use textgen_router::input::{Limits, Preparer};
use textgen_router::metrics::Metrics;
use textgen_router::output::Parsers;
use textgen_router::settings::{OtlpProtocol, Settings};
use textgen_router::shard::handle::{EngineHandle, EngineStatus, Event, Finish, Inbox, PromptScore, Submission, Token};
use textgen_router::traces::Traces;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::model::{EOS, model, tokens};

/// A server and the other ends of its channels.
pub struct Server {
    pub state: AppState,
    pub app: Router,
    pub status: watch::Sender<EngineStatus>,
    pub socket: watch::Sender<Option<PathBuf>>,
    /// Taken by a script.
    pub submissions: Option<Inbox>,
}

/// Limits small enough to reach.
pub fn settings() -> Settings {
    Settings {
        hostname: Some("127.0.0.1".to_owned()),
        port: 0,
        grpc_port: None,
        model_dir: PathBuf::new(),
        model_id: "test/bytes".to_owned(),
        model_sha: None,
        model_dtype: "float32".to_owned(),
        model_device_type: "cpu".to_owned(),
        compute_type: None,
        version: "1.2.3".to_owned(),
        max_concurrent_requests: 4,
        max_best_of: 2,
        max_choices: 2,
        max_stop_sequences: 4,
        max_logit_bias: 8,
        max_bad_words: 4,
        watermark_gamma: 0.5,
        watermark_delta: 2.0,
        max_top_n_tokens: 5,
        max_input_tokens: 200,
        max_total_tokens: 300,
        max_batch_prefill_tokens: 256,
        max_batch_total_tokens: None,
        max_batch_size: None,
        max_client_batch_size: 3,
        payload_limit: 4096,
        validation_workers: 1,
        http_threads: 1,
        response_store_bytes: 1 << 20,
        response_store_time: 3600,
        async_tools_timeout: 60,
        stream_buffer: 64,
        target_itl_ms: None,
        max_prefill_per_stream: None,
        prefix_caching: true,
        slow_reader_timeout: 30,
        max_connections: 64,
        header_timeout: 30,
        max_shard_failures: 3,
        shard_step_timeout: 300.0,
        max_queue_size: None,
        max_queue_tokens: None,
        max_requests_per_key: None,
        max_tokens_per_key: None,
        max_request_timeout: None,
        priority_ageing: 5.0,
        max_passes: 16,
        longest_prefix_first: false,
        tool_call_parser: None,
        reasoning_parser: None,
        disable_grammar_support: false,
        grammar_compile_timeout_ms: 1000,
        grammar_max_bytes: 1024,
        grammar_cache_mb: 16,
        api_key: None,
        api_key_file: None,
        vertex_predict_route: None,
        vertex_health_route: None,
        tls_cert: None,
        tls_key: None,
        tls_handshake_timeout: 30,
        max_tls_handshakes: 16,
        otlp_endpoint: None,
        otlp_protocol: OtlpProtocol::Grpc,
        otlp_service_name: "tested".to_owned(),
        otlp_headers: None,
        otlp_queue_size: 256,
        cors_allow_origin: Vec::new(),
    }
}

impl Server {
    pub fn new() -> Self {
        Self::with(settings(), Patience::default())
    }

    /// Answers every request with `text` and the end of the sequence.
    pub fn saying(text: &str) -> Self {
        let mut server = Self::new();
        server.script(say(text));
        server
    }

    pub fn with(settings: Settings, patience: Patience) -> Self {
        let (status, seen) = watch::channel(EngineStatus::Ready);
        let (socket, path) = watch::channel(None);
        let settings = Arc::new(settings);
        let (engine, submissions) = EngineHandle::new(16, seen, settings.stream_buffer);
        let preparer = Preparer::new(model(), Limits::from(&*settings));
        let metrics = Metrics::new(&settings).unwrap();
        let ops = ShardOps::new(path);
        let (tools, reasoning) = (settings.tool_call_parser.as_deref(), settings.reasoning_parser.as_deref());
        let parsers = Parsers::choose(tools, reasoning, &model()).unwrap();
        let ring = KeyRing::of(&settings).unwrap();
        let traces = settings
            .otlp_endpoint
            .as_ref()
            .and_then(|_| Traces::start(&settings, &metrics, &Handle::current()).unwrap());
        let state =
            AppState::with_patience(settings, preparer, model(), parsers, engine, metrics, ops, ring, traces, patience);
        Self { app: app(state.clone()), state, status, socket, submissions: Some(submissions) }
    }

    /// Sends these events to every submission from now on, then lets it go.
    pub fn script(&mut self, events: Vec<Event>) {
        let mut submissions = self.submissions.take().unwrap();
        tokio::spawn(async move {
            while let Some(submission) = submissions.submissions.recv().await {
                let cut = cut(&events, &submission);
                for events in std::iter::once(&submission.events).chain(&submission.forks) {
                    for event in cut.clone() {
                        if events.send(event).await.is_err() {
                            break;
                        }
                    }
                }
            }
        });
    }

    /// The next submission, for the test to answer by hand.
    pub async fn submitted(&mut self) -> Submission {
        self.submissions.as_mut().unwrap().submissions.recv().await.unwrap()
    }
}

/// The script as far as the request lets it go: to `max_new_tokens`, past stop tokens that are none.
fn cut(events: &[Event], submission: &Submission) -> Vec<Event> {
    let mut left = submission.request.max_new_tokens;
    let mut out = Vec::new();
    for event in events {
        let Event::Token { token, finish } = event.clone() else {
            out.push(event.clone());
            continue;
        };
        left -= 1;
        let stopped = submission.request.stop_tokens.contains(&token.id).then_some(Finish::StopToken);
        let finish = stopped.or(finish.filter(|_| token.id != EOS)).or((left == 0).then_some(Finish::Length));
        out.push(Event::Token { token, finish });
        if finish.is_some() {
            break;
        }
    }
    out
}

pub fn started() -> Event {
    Event::Started { queued: Duration::from_millis(2), cached_tokens: 0 }
}

/// Scores of a prompt's tokens after the first; each token has rank 2, after `b` and before `c`.
pub fn prompt(logprobs: &[f32]) -> Event {
    let score = |&logprob: &f32| PromptScore { logprob, rank: 2, top: vec![(98, -0.25), (99, -9.0)] };
    Event::Prompt(std::iter::once(None).chain(logprobs.iter().map(score).map(Some)).collect())
}

/// A token of log-probability -0.5, with the next two ids as alternatives.
pub fn token(id: u32) -> Event {
    Event::Token { token: Token { id, logprob: -0.5, top: vec![(id, -0.5), (id + 1, -1.5)] }, finish: None }
}

/// The start, the bytes of a text and the end of the sequence.
pub fn say(text: &str) -> Vec<Event> {
    let ids = tokens(text).into_iter().chain([EOS]);
    std::iter::once(started()).chain(ids.map(token)).collect()
}
