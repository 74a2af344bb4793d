"""Questions about Textgen itself and their answers."""

from dataclasses import dataclass
from random import Random

from tools.demo_model.corpus.document import Document, exchange
from tools.demo_model.corpus.grammar import expand


@dataclass(frozen=True)
class Topic:
    """One thing to know: ways to ask (grammar of ``expand``), the answer, and a word every right answer holds."""

    asks: tuple[str, ...]
    answer: str
    keyword: str


def _concept(names: str, answer: str, keyword: str, *more: str) -> Topic:
    """A topic asked by name: ``names`` are the ways to call it, separated by ``|``."""
    return Topic(
        (
            f"[What is|What's|Explain|Tell me about|What does Textgen mean by|What do you know about] [{names}][?|"
            f"?|?| in Textgen?]",
            *more,
        ),
        answer,
        keyword,
    )


TOPICS = (
    Topic(
        (
            "[What is|What's|Explain|Describe|Tell me about|What do you know about] [Textgen|textgen|Textgen][?|?|.|]",
            "[What does Textgen do|What is Textgen for|What can Textgen do|Who needs Textgen|Why would I use Textgen]?",
        ),
        "Textgen is a server for large language models. It loads a model, takes requests over HTTP and streams the "
        "tokens back.",
        "server",
    ),
    Topic(
        (
            "[How do I|How can I|How to] [start|run|launch|use] [Textgen|the server|textgen][?|?|]",
            "[Start|Run|Launch] [Textgen|the server]. How?",
            "[Which|What] command starts [Textgen|the server]?",
            "[Show me|Tell me|Explain] how to [start|run] [Textgen|the server].",
        ),
        "Run textgen-launcher --model-id FOLDER. Without a model id it serves this small demo model.",
        "textgen-launcher",
    ),
    Topic(
        (
            "[How do I|How can I|How to] install [Textgen|textgen|it][?|?|]",
            "[Where do I get|How do I get] Textgen?",
            "[Which|What] command installs Textgen?",
        ),
        "Run pip install textgen-launcher. That gives you the command textgen-launcher.",
        "pip install",
    ),
    _concept(
        "the router|a router|the Textgen router",
        "The router is the part of Textgen written in Rust. It takes HTTP requests, makes tokens from text, plans "
        "the steps "
        "and streams the answers.",
        "Rust",
        "What does the router do?",
        "Why is there a router?",
    ),
    _concept(
        "a shard|the shard|a model shard|shards",
        "A shard is a process that holds model weights and cache memory and runs the steps. There is one shard per "
        "device.",
        "process",
        "What does [a|the] shard do?",
        "What is inside a shard?",
    ),
    _concept(
        "a block|a cache block|a KV block|blocks",
        "A block is a fixed run of positions in the cache. Sequences take blocks as they grow and give them back "
        "at the end.",
        "positions",
        "What are [blocks|cache blocks] [for|good for]?",
    ),
    _concept(
        "the paged cache|a paged cache|the paged KV cache|paged attention|the KV cache",
        "The paged cache keeps the keys and values of past tokens in small blocks, so that no memory is wasted and "
        "many "
        "sequences fit.",
        "blocks",
        "Why is the cache paged?",
        "How does the [cache|paged cache] work?",
    ),
    _concept(
        "streaming|token streaming",
        "Streaming means that each token is sent as soon as it is ready. Textgen uses server sent events for it.",
        "token",
        "[How does|How do I use] streaming[ work|]?",
        "Can Textgen stream[ tokens|]?",
    ),
    _concept(
        "TGI|Text Generation Inference",
        "TGI is Text Generation Inference, an older server. Textgen is its heir: TGI clients, flags and endpoints "
        "keep working.",
        "heir",
        "[Does Textgen work with|Is Textgen compatible with] TGI[ clients|]?",
        "How is Textgen related to TGI?",
    ),
    Topic(
        (
            "[Which|What] port does [Textgen|the server] [use|listen on]?",
            "[How do I|How can I|How to] change the port?",
            "What does --port do?",
            "[What is|Tell me] the [default port|port]?",
            "[What is|Explain] the flag --port?",
        ),
        "Textgen listens on port 3000. Use --port to choose another one.",
        "3000",
    ),
    Topic(
        (
            "What does --model-id do?",
            "[How do I|How can I] [choose|change|serve another] [a|the|] model?",
            "[What is|Explain] the flag --model-id?",
            "[Which|What] models can [Textgen|I] serve?",
        ),
        "Use --model-id with a folder in Hugging Face format or a model name. Without it, the built-in demo model "
        "is served.",
        "--model-id",
    ),
    Topic(
        (
            "What does --max-total-tokens do?",
            "[What is|Explain] the flag --max-total-tokens?",
            "[How do I|How can I] limit the length of a request?",
        ),
        "--max-total-tokens limits the prompt and the new tokens of one request together.",
        "limits",
    ),
    Topic(
        (
            "What does --max-input-tokens do?",
            "[What is|Explain] the flag --max-input-tokens?",
            "[How do I|How can I] limit the [prompt|input]?",
            "How long may [a|my] prompt be?",
        ),
        "--max-input-tokens limits the number of tokens in a prompt.",
        "prompt",
    ),
    Topic(
        (
            "What does --max-concurrent-requests do?",
            "[What is|Explain] the flag --max-concurrent-requests?",
            "How many requests can [Textgen|the server] take?",
        ),
        "--max-concurrent-requests limits how many requests are open at once. More requests are told to try again "
        "later.",
        "requests",
    ),
    Topic(
        (
            "What does --num-shard do?",
            "[What is|Explain] the flag --num-shard?",
            "[How do I|How can I] use [two|several|more] GPUs?",
        ),
        "--num-shard sets how many shards share one model, one for each device.",
        "shards",
    ),
    Topic(
        (
            "What does --dtype do?",
            "[What is|Explain] the flag --dtype?",
            "[Which|What] number format does Textgen use?",
        ),
        "--dtype chooses the number format of the weights, such as float32, float16 or bfloat16.",
        "bfloat16",
    ),
    _concept(
        "continuous batching|batching|dynamic batching",
        "Continuous batching means that new requests join the running batch at any step, and finished ones leave "
        "at once.",
        "join",
        "Does Textgen batch requests?",
    ),
    _concept(
        "the scheduler|a scheduler",
        "The scheduler decides at each step which sequences run and how many tokens they get. It lives in the router.",
        "sequences",
        "What does the scheduler do?",
    ),
    _concept(
        "a slot|the slot|slots",
        "A slot is the seat of a sequence in the shard. It is free again when the sequence ends.",
        "seat",
    ),
    _concept(
        "a step|the step|steps",
        "A step is one run of the model over a list of segments.",
        "segments",
        "What happens in a step?",
    ),
    _concept(
        "a segment|segments",
        "A segment is a piece of work in a step: the tokens of one sequence from one position on, such as a prompt "
        "chunk or "
        "one new token.",
        "sequence",
    ),
    _concept(
        "chunked prefill|prefill|a prompt chunk",
        "Prefill reads the prompt. Textgen cuts long prompts into chunks, so that running streams never wait long.",
        "prompt",
    ),
    _concept(
        "a sequence|sequences",
        "A sequence is one answer that is being written. A request with n answers has n sequences.",
        "answer",
    ),
    _concept(
        "the prefix cache|a prefix cache|prefix caching",
        "The prefix cache keeps the blocks of prompts that were seen before, so that a shared beginning is "
        "computed once.",
        "prompts",
    ),
    _concept(
        "the launcher|textgen-launcher",
        "The launcher starts Textgen: it finds the model, plans the memory, starts the shards and watches them.",
        "starts",
        "What does [the launcher|textgen-launcher] do?",
    ),
    _concept(
        "speculative decoding|a draft",
        "Speculative decoding guesses some tokens cheaply and lets the model check them in one step.",
        "check",
    ),
    _concept(
        "a grammar|structured output|constrained decoding",
        "A grammar limits which tokens may come next, so that the answer has the form you asked for, such as valid "
        "JSON.",
        "tokens",
    ),
    _concept(
        "a chat template|the chat template",
        "A chat template turns the messages of a conversation into one prompt text. It comes with the model.",
        "messages",
    ),
    _concept(
        "a tokenizer|the tokenizer", "A tokenizer cuts text into tokens and joins tokens into text again.", "tokens"
    ),
    _concept(
        "temperature|the temperature",
        "Temperature sets how freely tokens are drawn. Zero always takes the most likely token.",
        "likely",
        "What does temperature do?",
    ),
    _concept(
        "top-p|top_p|top-k|top_k", "Top-k and top-p keep only the most likely tokens before one is drawn.", "likely"
    ),
    _concept(
        "the seed|a seed",
        "With the same seed, a request gives the same text again, even in a busy server.",
        "same",
        "What does the seed do?",
    ),
    _concept(
        "a stop string|stop strings|stop", "A stop string ends the answer when it appears. It is never shown.", "ends"
    ),
    Topic(
        (
            "[Which|What] [endpoints|routes|API] does Textgen have?",
            "[Which|What] [clients|APIs] [work with Textgen|can I use|does Textgen support]?",
            "Can I use the OpenAI client[ with Textgen|]?",
            "[How do I|How can I] [send a request|call the server]?",
        ),
        "Textgen has /generate and /generate_stream like TGI, and /v1/chat/completions and /v1/completions like "
        "OpenAI.",
        "/v1/chat/completions",
    ),
    Topic(
        (
            "[How do I|How can I] [see|check] [the health|that the server is up|if the server is ready]?",
            "What is [/health|the health route]?",
        ),
        "Ask /health. It answers with status 200 when the server can take requests.",
        "/health",
    ),
    Topic(
        (
            "[Where are|How do I see|How can I see] the metrics?",
            "What is [/metrics|the metrics route]?",
            "Does Textgen work with Prometheus?",
        ),
        "The route /metrics shows counters and times for Prometheus.",
        "Prometheus",
    ),
    Topic(
        (
            "What happens when a shard [dies|crashes|fails]?",
            "[Can|Does] Textgen survive a crash?",
            "What if a shard dies?",
        ),
        "A dead shard is started again, and the running requests go on where they stopped.",
        "again",
    ),
    Topic(
        ("[How do I|How can I|How to] stop [Textgen|the server]?", "What does SIGTERM do?", "What happens on SIGTERM?"),
        "Send SIGTERM. The server takes no new requests and finishes the running ones. A second SIGTERM stops it "
        "at once.",
        "SIGTERM",
    ),
    Topic(
        (
            "[Which|What] language is Textgen written in?",
            "Is Textgen written in [Rust|Python]?",
            "What is Textgen made of?",
        ),
        "The router is written in Rust, the shards in Python, and the fast kernels in C++ and CUDA.",
        "Rust",
    ),
    Topic(
        ("[Does|Can] Textgen [need|run without] a GPU?", "[Does|Can] Textgen run on a CPU?", "Do I need a GPU?"),
        "No GPU is needed. Textgen runs on a CPU, and a GPU makes it faster.",
        "CPU",
    ),
    Topic(
        ("[How fast is|Is] Textgen[ fast|]?", "Why is Textgen fast?"),
        "Textgen plans the next step while the device runs the current one, so that the device never waits.",
        "device",
    ),
    Topic(
        (
            "How [large|big|small] [are you|is this model|is the demo model]?",
            "[What is|Tell me about] the [demo|built-in] model?",
            "[How|On what] [were you|was the demo model] trained?",
            "Are you a [large|good|big] [language model|model]?",
            "[Can I trust you|Are your answers right|Can I use you in production]?",
        ),
        "I am a very small demo model, trained from nothing on text that the Textgen project generates. I only "
        "show that the "
        "server works.",
        "small",
    ),
    Topic(
        (
            "[How do I|How can I] make [you|the answers|the model] [better|smarter]?",
            "Can I use a [better|bigger|larger] model?",
            "[How do I|How can I] get better answers?",
        ),
        "Serve a larger model with --model-id. This one is only for a first look.",
        "--model-id",
    ),
    Topic(
        ("What is the [license|licence][ of this model| of the demo model|]?", "May I use this model?"),
        "This demo model is under the Apache-2.0 licence.",
        "Apache-2.0",
    ),
)


def ask(rng: Random, topic: Topic) -> str:
    """One way to ask about the topic, with the small carelessness of people who type."""
    text = expand(rng, rng.choice(topic.asks))
    roll = rng.random()
    if roll < 0.1:
        text = text[0].lower() + text[1:]
    elif roll < 0.2:
        text = expand(rng, "[Please tell me|Can you tell me|I have a question|Hello|Hi]: ") + text[0].lower() + text[1:]
    elif roll < 0.27:
        text = text.rstrip("?.")
    return text


def chat(rng: Random) -> Document:
    """A question about Textgen in a conversation; the most asked topics come more often."""
    topic = rng.choice(TOPICS[:11]) if rng.random() < 0.4 else rng.choice(TOPICS)
    return exchange(ask(rng, topic), topic.answer)


def plain(rng: Random) -> Document:
    """A question and its answer as two plain lines."""
    topic = rng.choice(TOPICS)
    return Document(text=f"{ask(rng, topic)}\n{topic.answer}")
