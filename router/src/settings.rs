//! What the launcher tells the router, once, as JSON: every limit of the process in one typed struct.

use std::path::PathBuf;

use serde::Deserialize;

use crate::secret::Secret;

/// The two forms of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum OtlpProtocol {
    /// gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// Protocol Buffers over HTTP.
    #[serde(rename = "http/protobuf")]
    Http,
}

/// Settings of a router. The launcher owns flags, environment variables and defaults; here they only have types.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Address to listen on; `None` is nowhere, and requests come from this process alone.
    pub hostname: Option<String>,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// Port for gRPC; 0 lets the system choose, `None` serves none.
    pub grpc_port: Option<u16>,
    /// Folder with `tokenizer.json`, `config.json` and the chat template.
    pub model_dir: PathBuf,
    /// The name clients see.
    pub model_id: String,
    /// Revision of the model, when it came from a hub.
    pub model_sha: Option<String>,
    /// Data type of the weights, for `/info`.
    pub model_dtype: String,
    /// Kind of device the shard runs on (`cpu`, `cuda`), for `/info`.
    pub model_device_type: String,
    /// What `x-compute-type` says; the kind of device when `None`.
    pub compute_type: Option<String>,
    /// Version of the package, for `/info` and fingerprints.
    pub version: String,
    /// Requests in the house at once; one more is answered 429.
    pub max_concurrent_requests: usize,
    /// Largest `best_of` a client may ask for on native routes.
    pub max_best_of: usize,
    /// Largest `n`, `best_of` or number of beams a client may ask for on OpenAI's routes.
    pub max_choices: usize,
    /// Most stop sequences in one request.
    pub max_stop_sequences: usize,
    /// Most tokens in one request's `logit_bias`.
    pub max_logit_bias: usize,
    /// Most strings in one request's `bad_words`.
    pub max_bad_words: usize,
    /// Share of the vocabulary that a watermark makes likelier.
    pub watermark_gamma: f32,
    /// What a watermark adds to the logits of that share.
    pub watermark_delta: f32,
    /// Largest `top_n_tokens` a client may ask for.
    pub max_top_n_tokens: u32,
    /// Longest prompt, in tokens.
    pub max_input_tokens: usize,
    /// Longest prompt plus output, in tokens.
    pub max_total_tokens: usize,
    /// Token budget of one step.
    pub max_batch_prefill_tokens: u32,
    /// Most tokens of context over all running sequences; `None` leaves it to the KV pool.
    pub max_batch_total_tokens: Option<u32>,
    /// Most sequences that run at once; `None` leaves it to the shard.
    pub max_batch_size: Option<u32>,
    /// Milliseconds between tokens that running streams should keep to; prompts are cut for it.
    pub target_itl_ms: Option<u32>,
    /// Tokens of prompts in a step for each stream in it, where there is no such target; 0 or `None`: no limit.
    pub max_prefill_per_stream: Option<u32>,
    /// Whether what was computed is kept for prompts that begin alike.
    pub prefix_caching: bool,
    /// Most prompts in one `/v1/completions` call.
    pub max_client_batch_size: usize,
    /// Largest request body, in bytes.
    pub payload_limit: usize,
    /// Threads that tokenize, template and validate.
    pub validation_workers: usize,
    /// Threads that serve HTTP.
    pub http_threads: usize,
    /// Bytes of the responses that can be asked for again; 0 keeps none.
    pub response_store_bytes: u64,
    /// Seconds for which they are kept.
    pub response_store_time: u32,
    /// Seconds that an answer with asynchronous calls waits for a result.
    pub async_tools_timeout: u32,
    /// Token events buffered for one stream before a reader that stalls is cut off.
    pub stream_buffer: usize,
    /// Seconds after which a connection is closed whose client takes nothing of what was sent to it.
    pub slow_reader_timeout: u32,
    /// Connections open at once; more wait until one closes.
    pub max_connections: usize,
    /// Seconds in which a request's head must arrive; an idle connection is closed after them.
    pub header_timeout: u32,
    /// Times a request may be in flight while the shard dies before it is failed.
    pub max_shard_failures: u32,
    /// Seconds that a step may take before its shard counts as hung; 0 is any time.
    pub shard_step_timeout: f64,
    /// Sequences that may wait beyond those that run at once; `None` leaves it to `max_concurrent_requests`.
    pub max_queue_size: Option<usize>,
    /// Expected tokens that may wait beyond those that the KV pool holds; `None` is no limit.
    pub max_queue_tokens: Option<u64>,
    /// Sequences of one API key in the house at once; `None` is no limit.
    pub max_requests_per_key: Option<usize>,
    /// Expected tokens of one API key in the house at once; `None` is no limit.
    pub max_tokens_per_key: Option<u64>,
    /// Seconds a request may take, waiting included, and the most that a client may ask for; `None` is no limit.
    pub max_request_timeout: Option<f64>,
    /// Seconds after which a waiting request goes up a class; 0 is never.
    pub priority_ageing: f64,
    /// How many may be seated before one that came first and finds no room.
    pub max_passes: u32,
    /// Whether of one key's requests those go first that find the most in the prefix cache.
    pub longest_prefix_first: bool,
    /// How the model writes calls of tools; `None` is found out from the chat template, `none` looks for none.
    pub tool_call_parser: Option<String>,
    /// How it writes reasoning, likewise.
    pub reasoning_parser: Option<String>,
    /// Whether answers can be held to no grammar.
    pub disable_grammar_support: bool,
    /// Milliseconds that a request waits for its grammar to be compiled.
    pub grammar_compile_timeout_ms: u32,
    /// Largest grammar a client may send, in bytes.
    pub grammar_max_bytes: usize,
    /// Megabytes of compiled grammars kept for later requests.
    pub grammar_cache_mb: usize,
    /// The key that every call needs; `None` and no file of keys ask for none.
    pub api_key: Option<Secret>,
    /// File with more keys.
    pub api_key_file: Option<PathBuf>,
    /// Path by which Vertex AI calls, besides `/vertex`.
    pub vertex_predict_route: Option<String>,
    /// Path by which it asks whether the server lives, besides `/health`.
    pub vertex_health_route: Option<String>,
    /// File with the server's certificate and those of its issuers, in PEM; with `tls_key`, both ports speak TLS.
    pub tls_cert: Option<PathBuf>,
    /// File with the key of that certificate.
    pub tls_key: Option<PathBuf>,
    /// Seconds that a TLS handshake may take.
    pub tls_handshake_timeout: u32,
    /// TLS handshakes of a server in flight; one more takes the place of the oldest.
    pub max_tls_handshakes: usize,
    /// Address of a collector of traces; `None` makes none.
    pub otlp_endpoint: Option<String>,
    /// How it is spoken to.
    pub otlp_protocol: OtlpProtocol,
    /// What this server is called in traces.
    pub otlp_service_name: String,
    /// Headers for the collector, as `name=value,name=value`; they may hold a key.
    pub otlp_headers: Option<Secret>,
    /// Spans that wait for the collector; what comes beyond them is lost.
    pub otlp_queue_size: usize,
    /// Origins allowed by CORS; empty allows every origin.
    pub cors_allow_origin: Vec<String>,
}
