"""The launcher's settings: the one table that flags, environment names and `docs/settings.md` come from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from textgen.launcher.flags import (
    Share,
    batch_sizes,
    boolean,
    choice,
    flag_of,
    integer,
    is_address,
    memory,
    part,
    portion,
    processors,
    ratio,
    route,
    seconds,
    secret,
    setting,
    some_seconds,
    text,
)
from textgen.launcher.rules import check_rules
from textgen.quantization.formats import kv_cache_name, quantize_name

MODEL = "Model"
LIMITS = "Limits of a request"
GRAMMARS = "Structured output"
QUEUE = "Queue and fairness"
BATCHING = "Batching and memory"
NETWORK = "Network"
OBSERVING = "Logs"
TRACES = "Traces"
LIFE = "Life cycle"
ATTENTIONS = ("auto", "native", "flash-attn", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a person can set, filled once. `None` means: found at start, from the model or the machine."""

    model_id: str | None = setting(
        text, None,
        "Folder of a model in Hugging Face format (config.json, tokenizer.json, *.safetensors), a GGUF file, or a "
        "model of the hub as ORG/NAME, which is downloaded into the cache; ORG/NAME:Q4_K_M or ORG/NAME/FILE.gguf "
        "for one of its GGUF files; or gs://BUCKET/FOLDER of Google Cloud Storage.",
        group=MODEL, default="the built-in model", metavar="MODEL",
    )  # fmt: skip
    revision: str | None = setting(
        text, None,
        "Branch, tag or commit of a model of the hub. A folder has only one: the value is shown to clients in /info.",
        group=MODEL, default="main",
    )  # fmt: skip
    trust_remote_code: bool = setting(
        boolean, False,
        "Run the code that comes with a model, where Transformers has none for it. It can do all that the server's "
        "user can; --revision must name the commit whose code was read.",
        group=MODEL, default="false", switch=True,
    )  # fmt: skip
    huggingface_hub_cache: str | None = setting(
        text, None, "Folder that models of the hub are kept in, shared with every Hugging Face tool.",
        group=MODEL, default="HF_HUB_CACHE, else hub in HF_HOME", metavar="FOLDER",
    )  # fmt: skip
    dtype: str = setting(
        choice("auto", "float32", "float16", "bfloat16"), "auto",
        "Data type of weights and, but for --kv-cache-dtype, of the KV cache. auto: the model's own where the device "
        "computes in it, else float32.",
        group=MODEL, metavar="TYPE",
    )  # fmt: skip
    quantize: str | None = setting(
        quantize_name, None,
        "Make the weights of linear layers smaller while they are loaded: int8 (a scale for each output) or int4 (a "
        "scale for 32 numbers). On a processor activations become 8-bit as they come, and products are of integers; on "
        "a GPU activations keep --dtype. docs/cpu.md helps to choose. Checkpoints that are in few bits stay as they "
        "are; Text Generation Inference's other names are taken too (docs/compatibility.md).",
        group=MODEL, default="weights have --dtype", metavar="FORMAT",
    )  # fmt: skip
    kv_cache_dtype: str = setting(
        kv_cache_name, "auto",
        "Data type of the KV cache: auto (that of --dtype), or one that holds about twice as many tokens as bfloat16: "
        "int8 (with a scale for each token and head) or, on a GPU, fp8 (E4M3 without scales).",
        group=MODEL, metavar="TYPE",
    )  # fmt: skip
    device: str = setting(
        choice("auto", "cpu", "cuda"), "cpu",
        "Device of the shard: cpu, cuda (an NVIDIA GPU) or auto (a GPU where there is one that torch can use). No GPU "
        "has served yet: docs/gpu.md says what is checked without one.",
        group=MODEL, metavar="DEVICE",
    )  # fmt: skip
    tool_call_parser: str | None = setting(
        text, None,
        "How the model writes calls of tools, in vLLM's names (hermes, llama3_json, mistral, …); none leaves calls "
        "in the text.",
        group=MODEL, default="found out from the chat template", metavar="NAME",
    )  # fmt: skip
    reasoning_parser: str | None = setting(
        text, None,
        "How the model writes reasoning, in vLLM's names (deepseek_r1, qwen3, …) or as the texts around it, "
        "START...END; none leaves it in the text.",
        group=MODEL, default="found out from the chat template", metavar="NAME",
    )  # fmt: skip
    num_shard: int = setting(
        integer(1, 1024), 1, "Processes that one model is spread over; this version supports only 1.", group=MODEL
    )

    max_concurrent_requests: int = setting(
        integer(1, 1_000_000), 128,
        "Requests in the house at once, each of n, best_of or several prompts counted; one more is answered 429.",
        group=LIMITS,
    )  # fmt: skip
    max_input_tokens: int | None = setting(
        integer(1), None, "Longest prompt, in tokens. --max-input-length is its old name.",
        group=LIMITS, default="max-total-tokens - 1", alias="max-input-length",
    )  # fmt: skip
    max_total_tokens: int | None = setting(
        integer(2), None, "Longest prompt and answer together, in tokens.",
        group=LIMITS, default="the model's positions, at most 8192",
    )  # fmt: skip
    max_best_of: int = setting(
        integer(1, 1024), 2, "Largest best_of a request may ask for on native routes.", group=LIMITS
    )
    max_choices: int = setting(
        integer(1, 1024), 16,
        "Largest n, best_of or number of beams a request may ask for on OpenAI's routes.", group=LIMITS,
    )  # fmt: skip
    max_stop_sequences: int = setting(integer(0, 1024), 4, "Most stop sequences in a request.", group=LIMITS)
    max_logit_bias: int = setting(
        integer(0, 1_000_000), 1024, "Most tokens in the logit_bias of a request.", group=LIMITS
    )
    max_bad_words: int = setting(integer(0, 1024), 128, "Most strings in the bad_words of a request.", group=LIMITS)
    watermark_gamma: float = setting(
        part, 0.5, "Share of the vocabulary that a watermark makes likelier, chosen anew by each token.", group=LIMITS
    )
    watermark_delta: float = setting(ratio, 2.0, "What a watermark adds to the logits of that share.", group=LIMITS)
    max_top_n_tokens: int = setting(integer(0, 20), 5, "Largest top_n_tokens a request may ask for.", group=LIMITS)
    max_client_batch_size: int = setting(
        integer(1, 1024), 4, "Most prompts in one /v1/completions request.", group=LIMITS
    )
    payload_limit: int = setting(integer(1), 2_000_000, "Largest request body, in bytes.", group=LIMITS)
    response_store_bytes: int = setting(
        integer(0), 64 << 20,
        "Memory for the responses of /v1/responses that can be asked for again; the oldest of the API key that has the "
        "most go first. 0 keeps none.",
        group=LIMITS, metavar="BYTES",
    )  # fmt: skip
    response_store_time: int = setting(
        integer(1, 31_536_000), 3600, "Seconds for which they are kept.", group=LIMITS, metavar="SECONDS",
    )  # fmt: skip
    async_tools_timeout: int = setting(
        integer(1, 86_400), 60,
        "Seconds that a chat with async_tools waits for the result of a call once the model has nothing more to say.",
        group=LIMITS, metavar="SECONDS",
    )  # fmt: skip
    stream_buffer: int = setting(
        integer(1, 1_000_000), 2048, "Tokens kept for a stream whose client lags; one more and it is cut off.",
        group=LIMITS,
    )  # fmt: skip
    slow_reader_timeout: int = setting(
        integer(1, 86_400), 30, "Seconds after which a connection is closed whose client takes nothing of its answer.",
        group=LIMITS, metavar="SECONDS",
    )  # fmt: skip
    max_connections: int = setting(
        integer(1, 1_000_000), 4096, "Connections open at once; more wait until one closes.", group=LIMITS
    )
    header_timeout: int = setting(
        integer(1, 86_400), 60,
        "Seconds in which the head of a request must arrive; a connection that is idle for as long is closed.",
        group=LIMITS, metavar="SECONDS",
    )  # fmt: skip
    max_shard_failures: int = setting(
        integer(0, 1000), 3, "Shards that may die under one request before it is failed as their likely cause.",
        group=LIMITS,
    )  # fmt: skip

    max_request_timeout: float | None = setting(
        some_seconds, None,
        "Seconds a request may take, waiting included, before it is answered 504; clients may ask for less with the "
        "header x-request-timeout.",
        group=LIMITS, default="no limit but the client's own", metavar="SECONDS",
    )  # fmt: skip

    disable_grammar_support: bool = setting(
        boolean, False, "Refuse grammars, schemas and forced calls of tools.",
        group=GRAMMARS, default="false", switch=True,
    )  # fmt: skip
    grammar_compile_timeout_ms: int = setting(
        integer(1, 600_000), 1000,
        "Milliseconds that a request waits for its grammar to be compiled before it is refused as too complex.",
        group=GRAMMARS, metavar="MS",
    )  # fmt: skip
    grammar_max_bytes: int = setting(
        integer(1), 262_144, "Largest grammar or schema of a request, in bytes.", group=GRAMMARS
    )
    grammar_cache_mb: int = setting(
        integer(0, 1_048_576), 256, "Memory for compiled grammars that later requests find again, in MiB.",
        group=GRAMMARS, metavar="MIB",
    )  # fmt: skip

    max_queue_size: int | None = setting(
        integer(0, 1_000_000), None, "Requests that may wait beyond --max-batch-size; one more is answered 503.",
        group=QUEUE, default="what --max-concurrent-requests lets in",
    )  # fmt: skip
    max_queue_tokens: int | None = setting(
        integer(0), None,
        "Expected tokens that may wait beyond what the KV cache holds; more is answered 503. Expected are the prompt "
        "and the part of max_new_tokens that answers have taken lately.",
        group=QUEUE, default="no limit",
    )  # fmt: skip
    max_requests_per_key: int | None = setting(
        integer(1, 1_000_000), None,
        "Requests of one API key (or of all without one) that may wait and run at once; one more is answered 429.",
        group=QUEUE, default="no limit",
    )  # fmt: skip
    max_tokens_per_key: int | None = setting(
        integer(1), None, "Expected tokens of one API key that may wait and run at once; more is answered 429.",
        group=QUEUE, default="no limit",
    )  # fmt: skip
    priority_ageing: float = setting(
        seconds, 5.0, "Seconds after which a waiting request of a later class goes up one; 0 is never.",
        group=QUEUE, default="5", metavar="SECONDS",
    )  # fmt: skip
    max_passes: int = setting(
        integer(0, 1_000_000), 16,
        "Requests that may get a seat before one that came first and finds no room or a shorter cached prefix. "
        "With 0 short prompts do not go before longer ones that were begun either.",
        group=QUEUE,
    )  # fmt: skip
    longest_prefix_first: bool = setting(
        boolean, False,
        "Whether of one key's requests those go first that find the most in the prefix cache: true or false.",
        group=QUEUE, default="false",
    )  # fmt: skip
    waiting_served_ratio: float | None = setting(
        ratio, None, "Of Text Generation Inference; has no effect, because prompts and answers share every step.",
        group=QUEUE, default="none",
    )  # fmt: skip
    max_waiting_tokens: int | None = setting(
        integer(0), None, "Of Text Generation Inference; has no effect, because prompts and answers share every step.",
        group=QUEUE, default="none",
    )  # fmt: skip

    max_batch_prefill_tokens: int | None = setting(
        integer(1), None, "Tokens one step may run: prompt chunks and the next tokens of running answers together.",
        group=BATCHING, default="256 per thread on a CPU, but 512 to 2048; 4096 on a GPU",
    )  # fmt: skip
    max_prefill_per_stream: int | None = setting(
        integer(0), None,
        "Tokens of prompts that one step runs for each running stream in it, though half a step in any case: the fewer "
        "streams there are, the sooner each goes on. 0: no limit; nor is there one with --target-itl-ms.",
        group=BATCHING, default="8 on a CPU, no limit on a GPU",
    )  # fmt: skip
    max_batch_total_tokens: int | None = setting(
        integer(1), None, "Most tokens of context over all running sequences; bounds the KV cache.",
        group=BATCHING, default="what the KV cache holds",
    )  # fmt: skip
    max_batch_size: int | None = setting(
        integer(1, 4096), None, "Most sequences that run at once.",
        group=BATCHING, default="max-concurrent-requests, at most 256",
    )  # fmt: skip
    target_itl_ms: int | None = setting(
        integer(1, 60_000), None,
        "Milliseconds between tokens that running streams should keep to: prompts are cut into smaller parts for it.",
        group=BATCHING, metavar="MS",
        default="no target: --max-batch-prefill-tokens and --max-prefill-per-stream bound a step",
    )  # fmt: skip
    measure_steps_ms: int | None = setting(
        integer(0, 600_000), None,
        "Milliseconds at the start in which steps of several sizes are run, to see how long they take: --target-itl-ms "
        "begins with what is found, and the log tells it. 0: none.",
        group=BATCHING, default="1000 with --target-itl-ms, else 0", metavar="MS",
    )  # fmt: skip
    kv_memory: int | Share | None = setting(
        memory, None,
        "Memory for the KV cache: an amount (4GiB, 500MB, bytes) or a share of what is free beside the weights (0.8).",
        group=BATCHING, metavar="AMOUNT",
        default="0.5, on a GPU all of it; and never more than max-batch-size full sequences need",
    )  # fmt: skip
    attention: str = setting(
        choice(*ATTENTIONS), "auto",
        "Who attends on a GPU: native (Textgen's own kernels, compiled where they run), flash-attn (the package "
        "flash_attn, if installed; the rest stays native), torch (torch runs every operation) or auto (native, or "
        "torch where the kernels cannot be compiled).",
        group=BATCHING, metavar="NAME", from_environment=lambda value: value in ATTENTIONS,
    )  # fmt: skip
    cuda_memory_fraction: float = setting(
        portion, 1.0,
        "Share of a GPU's memory that the shard may take in all: weights, steps, CUDA graphs and KV cache.",
        group=BATCHING, metavar="SHARE",
    )  # fmt: skip
    cuda_graphs: tuple[int, ...] | None = setting(
        batch_sizes, None,
        "Batch sizes that steps of one token for each sequence are captured for as CUDA graphs, once they occur: "
        "numbers with commas between, such as 1,2,4,8; 0 is none. A batch is filled up to the next size.",
        group=BATCHING, default="1, 2, 4, and so on in finer steps up to --max-batch-size", metavar="SIZES",
        from_environment=lambda value: not set(value) - set("0123456789, "),
    )  # fmt: skip
    deterministic: bool = setting(
        boolean, False,
        "Whether a request's tokens must not depend on what else is in its batch: on a GPU by kernels that sum in one "
        "order, at some speed. docs/gpu.md says what holds; on a CPU it changes nothing.",
        group=BATCHING, default="false", switch=True,
    )  # fmt: skip
    prefix_caching: bool = setting(
        boolean, True, "Keep what was computed for prompts that begin alike: true or false.",
        group=BATCHING, default="true",
    )  # fmt: skip
    block_size: int | None = setting(
        integer(1, 256), None, "Positions in one block of the KV cache.", group=BATCHING,
        default="16; on a CPU up to 64, so that a layer's part of a block has 32 KiB",
    )  # fmt: skip
    threads: int | None = setting(
        integer(1, 4096), None, "Threads the shard computes with.", group=BATCHING, default="one per core it may use"
    )
    cpu_bind: tuple[int, ...] | str = setting(
        processors, "none",
        "Processors that these threads are bound to, one each: auto (one of each core), numbers such as 0-15,32, or "
        "none (the system moves threads as it sees fit). For a machine that does nothing else.",
        group=BATCHING, metavar="CPUS", from_environment=lambda value: value in ("none", "auto") or value[:1].isdigit(),
    )  # fmt: skip
    plan: str = setting(
        choice("auto", "off"), "auto",
        "Whether a model on a CPU is recorded once and then run by Textgen's own kernels: auto (where they have all "
        "that it takes; a line in the log says what they lack) or off (torch runs each operation).",
        group=BATCHING, metavar="WHEN", from_environment=lambda value: value in ("auto", "off"),
    )  # fmt: skip
    cpu_isa: str | None = setting(
        choice("portable", "avx2", "avxvnni", "avx512vnni", "avx512", "amx", "neon"), None,
        "Instruction set of those kernels: portable, avx2, avxvnni, avx512vnni, avx512, amx or neon.",
        group=BATCHING, default="the best that the machine has", metavar="NAME",
    )  # fmt: skip
    weights_cache: str | None = setting(
        text, None,
        "Folder that packed weights are kept in: the next start of the same model in the same format maps them at "
        "once. For models that Textgen's own kernels run (--plan auto).",
        group=BATCHING, default="weights are packed anew at each start", metavar="FOLDER",
    )  # fmt: skip
    validation_workers: int = setting(integer(1, 256), 2, "Threads that tokenize and check requests.", group=BATCHING)

    hostname: str = setting(
        text, "127.0.0.1",
        "Address to listen on; 0.0.0.0 is every network. From the environment only an IP address or localhost is "
        "taken, because shells and containers put the machine's name into HOSTNAME.",
        group=NETWORK, metavar="ADDRESS", from_environment=is_address,
    )  # fmt: skip
    port: int = setting(
        integer(0, 65_535), 3000, "Port to listen on; 0 lets the system choose.", group=NETWORK, short="-p"
    )
    grpc_port: int | None = setting(
        integer(0, 65_535), None,
        "Port for gRPC, the Open Inference Protocol of KServe and Triton; 0 lets the system choose. The limits of HTTP "
        "hold there too: --hostname, --payload-limit, --max-connections, --header-timeout, and "
        "--max-concurrent-requests for the calls of one connection.",
        group=NETWORK, default="no gRPC",
    )  # fmt: skip
    api_key: str | None = setting(
        secret, None,
        "Key that every call but those for health must send, as `authorization: Bearer KEY` or `x-api-key: KEY`. "
        "Better given by its variable: other users of the machine can see a command line.",
        group=NETWORK, default="none is asked for", metavar="KEY", hidden=True,
    )  # fmt: skip
    api_key_file: str | None = setting(
        text, None,
        'JSON file with more keys, read again when it changes: {"keys": [{"name": …, "key": … or "sha256": …, '
        '"max_requests": …, "max_tokens": …}, …]}. The limits are those of --max-requests-per-key and '
        "--max-tokens-per-key for this key alone.",
        group=NETWORK, default="none", metavar="FILE",
    )  # fmt: skip
    allow_unauthenticated: bool = setting(
        boolean, False,
        "Serve a network without asking for a key. Without it, an address other than this machine's own needs "
        "--api-key or --api-key-file.",
        group=NETWORK, default="false", switch=True,
    )  # fmt: skip
    vertex_predict_route: str | None = setting(
        route, None,
        "Path by which Vertex AI calls the server, besides /vertex. A path that the server has keeps its meaning.",
        group=NETWORK, default="/vertex", metavar="PATH",
    )  # fmt: skip
    vertex_health_route: str | None = setting(
        route, None,
        "Path by which Vertex AI asks whether the server lives, besides /health; no key is asked for there.",
        group=NETWORK, default="/health", metavar="PATH",
    )  # fmt: skip
    tls_cert: str | None = setting(
        text, None,
        "PEM file with the server's certificate, and behind it those of its issuers: --port and --grpc-port speak TLS. "
        "Read again when it changes, and so is the key.",
        group=NETWORK, default="no TLS", metavar="FILE",
    )  # fmt: skip
    tls_key: str | None = setting(
        text, None, "PEM file with the private key of --tls-cert, without a password.",
        group=NETWORK, default="no TLS", metavar="FILE",
    )  # fmt: skip
    tls_handshake_timeout: int = setting(
        integer(1, 86_400), 10, "Seconds that a TLS handshake may take.", group=NETWORK, metavar="SECONDS"
    )
    max_tls_handshakes: int = setting(
        integer(1, 1_000_000), 1024,
        "TLS handshakes in flight, at most half of --max-connections; one more takes the place of the oldest.",
        group=NETWORK,
    )  # fmt: skip
    cors_allow_origin: tuple[str, ...] = setting(
        text, (), "Origin that browsers may call from; repeat the flag for several (in the environment: commas).",
        group=NETWORK, default="every origin", metavar="ORIGIN", repeatable=True,
    )  # fmt: skip

    json_output: bool = setting(
        boolean, False, "Write logs as one JSON object per line.", group=OBSERVING, default="false", switch=True
    )
    log_level: str = setting(
        choice("trace", "debug", "info", "warn", "error", synonyms={"warning": "warn"}), "info",
        "Least important log lines to show: trace, debug, info, warn or error.", group=OBSERVING, metavar="LEVEL",
    )  # fmt: skip
    compute_type: str | None = setting(
        text, None, "What answers say they were computed on, in the header x-compute-type.",
        group=OBSERVING, default="the kind of device", metavar="NAME",
    )  # fmt: skip
    otlp_endpoint: str | None = setting(
        text, None,
        "Collector of traces (OTLP), such as http://localhost:4317: a span for each call and for each of its stages, "
        "never what was written. An https:// address is trusted as the system trusts it.",
        group=TRACES, default="no traces", metavar="ADDRESS",
    )  # fmt: skip
    otlp_protocol: str = setting(
        choice("grpc", "http/protobuf"), "grpc",
        "How the collector is spoken to: grpc (port 4317 where the address names none) or http/protobuf (4318, and "
        "/v1/traces behind the address); the port of https:// is 443.",
        group=TRACES, metavar="PROTOCOL",
    )  # fmt: skip
    otlp_service_name: str = setting(
        text, "text-generation-inference.router", "What this server is called in traces.", group=TRACES, metavar="NAME"
    )
    otlp_headers: str | None = setting(
        secret, None,
        "Headers for the collector, as NAME=VALUE,NAME=VALUE. Better given by its variable: other users of the machine "
        "can see a command line.",
        group=TRACES, default="none", metavar="HEADERS", hidden=True,
    )  # fmt: skip
    otlp_queue_size: int = setting(
        integer(1, 1_000_000), 8192,
        "Spans that wait for the collector; what comes beyond them is lost and counted.", group=TRACES,
    )  # fmt: skip

    graceful_termination_timeout: float = setting(
        seconds, 90.0, "Seconds that running requests get to finish after a stop was asked for.",
        group=LIFE, default="90", metavar="SECONDS",
    )  # fmt: skip
    shard_restarts: int = setting(
        integer(0, 1000), 5, "Times within 10 minutes that a dead shard is started again before giving up.", group=LIFE
    )

    shard_step_timeout: float = setting(
        seconds, 600.0,
        "Seconds that one step of the shard may take before it counts as hung and is started again; 0 is any time.",
        group=LIFE, default="600", metavar="SECONDS",
    )  # fmt: skip
    shard_termination_timeout: float = setting(
        seconds, 5.0, "Seconds that a shard gets to end when it is not needed any more; then it is killed.",
        group=LIFE, default="5", metavar="SECONDS",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Raises `SettingsError`."""
        check_rules(self)


FIELDS = dataclasses.fields(Settings)
FIELD_OF = {field.name: field for field in FIELDS}


def group_of(name: str) -> str | None:
    """The group of a setting; None when there is none of that name."""
    return flag_of(FIELD_OF[name]).group if name in FIELD_OF else None
