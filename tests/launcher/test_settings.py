"""Flags, variables and defaults: precedence, and a sentence for everything that cannot be used."""

from __future__ import annotations

import pytest

from textgen.launcher.arguments import build_parser, differing, parse_settings, variable
from textgen.launcher.errors import MEANINGS, ExitCode, SettingsError
from textgen.launcher.flags import Share, dashed
from textgen.launcher.settings import FIELDS, Settings
from textgen.launcher.tgi import UNAVAILABLE, superseded


def refusal(arguments: list[str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_settings(arguments, environ or {})
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_defaults_are_those_of_tgi_where_it_has_the_setting() -> None:
    settings = parse_settings([], {})
    assert settings == Settings()
    assert (settings.port, settings.max_concurrent_requests, settings.max_best_of) == (3000, 128, 2)
    assert (settings.max_stop_sequences, settings.max_top_n_tokens, settings.max_client_batch_size) == (4, 5, 4)
    # The one that is ours: clients of OpenAI's API ask for more than two.
    assert settings.max_choices == 16
    assert (settings.payload_limit, settings.validation_workers) == (2_000_000, 2)
    assert settings.graceful_termination_timeout == 90
    assert (settings.watermark_gamma, settings.watermark_delta) == (0.5, 2.0)
    assert differing(settings) == {}


def test_a_flag_beats_its_variable_and_a_variable_beats_the_default() -> None:
    environ = {"PORT": "4000", "MAX_INPUT_TOKENS": "7", "JSON_OUTPUT": "true"}
    assert parse_settings([], environ).port == 4000
    settings = parse_settings(["--port", "5000", "--no-json-output"], environ)
    assert (settings.port, settings.max_input_tokens, settings.json_output) == (5000, 7, False)
    assert differing(settings) == {"port": 5000, "max_input_tokens": 7}


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_setting_is_a_flag_and_a_variable(field: object) -> None:
    name: str = field.name  # type: ignore[attr-defined]
    values = {
        "model_id": "x", "revision": "main", "dtype": "float32", "device": "cpu", "num_shard": "1",
        "hostname": "127.0.0.2", "kv_memory": "1GiB",
        "cors_allow_origin": "https://a.b", "json_output": "true", "log_level": "debug",
        "max_total_tokens": "64", "prefix_caching": "false", "max_shard_failures": "2", "longest_prefix_first": "true",
        "tool_call_parser": "hermes", "reasoning_parser": "qwen3", "disable_grammar_support": "true",
        "watermark_gamma": "0.25", "trust_remote_code": "true", "quantize": "int8", "plan": "off", "cpu_isa": "avx2",
        "kv_cache_dtype": "int8", "cpu_bind": "1,0", "attention": "native", "cuda_memory_fraction": "0.5",
        "cuda_graphs": "1,2", "deterministic": "true",
        "allow_unauthenticated": "true", "vertex_predict_route": "/p", "vertex_health_route": "/h",
        "otlp_protocol": "http/protobuf",
    }  # fmt: skip
    value = values.get(name, "3")
    switches = ("json_output", "disable_grammar_support", "trust_remote_code", "allow_unauthenticated", "deterministic")
    switch = name in switches
    # Each is refused without the other.
    others = {
        "trust_remote_code": ["--revision", "0123456789" * 4],
        "tls_cert": ["--tls-key", "k"],
        "attention": ["--device", "cuda"],
        "tls_key": ["--tls-cert", "c"],
    }
    pinned = others.get(name, [])
    by_flag = parse_settings([*pinned, dashed(name), *([] if switch else [value])], {})
    by_variable = parse_settings(pinned, {variable(name): value})
    assert by_flag == by_variable
    if name not in ("device", "num_shard"):  # only their defaults are allowed here
        assert name in differing(by_flag)


def test_short_forms_and_equal_signs() -> None:
    assert parse_settings(["-p", "1"], {}).port == 1
    assert parse_settings(["--port=2"], {}).port == 2
    assert parse_settings(["--max-input-length", "9"], {}).max_input_tokens == 9


def test_an_empty_variable_counts_as_not_set() -> None:
    assert parse_settings([], {"PORT": "", "MODEL_ID": "", "JSON_OUTPUT": ""}) == Settings()


@pytest.mark.parametrize("name", ["b8f2c3d41a77", "my-laptop", "pod-7f9c.internal"])
def test_a_machine_name_in_hostname_is_ignored(name: str) -> None:
    assert parse_settings([], {"HOSTNAME": name}).hostname == "127.0.0.1"
    assert parse_settings(["--hostname", name, "--api-key", "hush"], {}).hostname == name


@pytest.mark.parametrize("address", ["0.0.0.0", "10.1.2.3", "::", "localhost"])
def test_an_address_in_hostname_is_taken(address: str) -> None:
    assert parse_settings([], {"HOSTNAME": address, "ALLOW_UNAUTHENTICATED": "true"}).hostname == address


def test_repeatable_settings() -> None:
    two = ("https://a.example", "https://b.example")
    assert parse_settings(["--cors-allow-origin", two[0], "--cors-allow-origin", two[1]], {}).cors_allow_origin == two
    assert parse_settings([], {"CORS_ALLOW_ORIGIN": ", ".join(two)}).cors_allow_origin == two


@pytest.mark.parametrize(
    ("text", "value"),
    [("4GiB", 4 * 2**30), ("500MB", 500_000_000), ("0.5", Share(0.5)), ("1", Share(1.0)), ("1048576", 2**20)],
)
def test_memory_amounts(text: str, value: int | Share) -> None:
    assert parse_settings(["--kv-memory", text], {}).kv_memory == value


@pytest.mark.parametrize(
    ("text", "value"), [("none", "none"), ("auto", "auto"), ("5", (5,)), ("0-3, 8,6-7", (0, 1, 2, 3, 8, 6, 7))]
)
def test_processors(text: str, value: tuple[int, ...] | str) -> None:
    assert parse_settings(["--cpu-bind", text], {}).cpu_bind == value
    assert parse_settings([], {"CPU_BIND": text}).cpu_bind == value


@pytest.mark.parametrize("name", ["fp8", "FP8", "fp8_e4m3", "fp8_e4m3fn"])
def test_types_of_a_cache_have_other_servers_names_too(name: str) -> None:
    assert parse_settings(["--kv-cache-dtype", name], {}).kv_cache_dtype == "fp8"


def test_log_levels_have_one_spelling() -> None:
    assert parse_settings([], {"LOG_LEVEL": "WARNING"}).log_level == "warn"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--port", "x"], ["--port 'x'", "from 0 to 65535"]),
        (["--port", "65536"], ["--port '65536'", "from 0 to 65535"]),
        (["--port", "-1"], ["--port '-1'"]),
        (["--port"], ["--port", "expected one argument"]),
        (["--port", "9" * 500], ["..."]),
        (["--max-concurrent-requests", "0"], ["from 1 to 1000000"]),
        (["--payload-limit", "0"], ["at least 1"]),
        (["--max-concurrent-requests", "٣"], ["--max-concurrent-requests"]),
        (["--dtype", "int4"], ["--dtype 'int4'", "float32, float16, bfloat16"]),
        (["--quantize", "exl2"], ["--quantize 'exl2'", "take one in GPTQ's or AWQ's"]),
        (["--quantize", "q4"], ["--quantize 'q4'", "int8, int4"]),
        (["--kv-cache-dtype", "fp8_e5m2"], ["--kv-cache-dtype 'fp8_e5m2'", "auto, int8, fp8", "use fp8"]),
        (["--kv-cache-dtype", "int4"], ["--kv-cache-dtype 'int4'", "auto, int8"]),
        (["--cpu-isa", "sse"], ["--cpu-isa 'sse'", "portable, avx2, avxvnni, avx512vnni, avx512, amx"]),
        (["--tls-cert", "c.pem"], ["--tls-cert needs --tls-key"]),
        (["--tls-key", "k.pem"], ["--tls-key needs --tls-cert"]),
        (["--otlp-protocol", "http/json"], ["--otlp-protocol 'http/json'", "grpc, http/protobuf"]),
        (["--otlp-headers", "a=\u00fc"], ["--otlp-headers", "printable ASCII"]),
        (["--log-level", "loud"], ["trace, debug, info, warn, error"]),
        (["--kv-memory", "lots"], ["4GiB"]),
        (["--kv-memory", "0"], ["4GiB"]),
        (["--kv-memory", "-1GiB"], ["--kv-memory"]),
        (["--graceful-termination-timeout", "nan"], ["seconds"]),
        (["--max-request-timeout", "0"], ["--max-request-timeout '0'", "above 0"]),
        (["--priority-ageing", "-1"], ["--priority-ageing", "seconds"]),
        (["--waiting-served-ratio", "much"], ["--waiting-served-ratio 'much'", "at least 0"]),
        (["--max-passes", "-1"], ["--max-passes"]),
        (["--model-id", " "], ["--model-id", "empty"]),
        (["--num-shard", "2"], ["--num-shard 2", "not supported"]),
        (["--attention", "native"], ["--attention native is for GPUs", "--device cuda"]),
        (["--deterministic", "--device", "cuda", "--attention", "torch"], ["leave out", "--attention torch"]),
        (["--attention", "paged"], ["auto, native, flash-attn, torch"]),
        (["--cuda-memory-fraction", "1.1"], ["--cuda-memory-fraction", "at most 1"]),
        (["--cpu-bind", "0-x"], ["--cpu-bind", "none, auto, or processors such as 0-15,32"]),
        (["--cpu-bind", "3-1"], ["--cpu-bind '3-1'"]),
        (["--cpu-bind", "0-2,1"], ["--cpu-bind", "each processor once"]),
        (["--cuda-graphs", "1,x"], ["--cuda-graphs", "1,2,4,8"]),
        (["--cuda-graphs", "5000"], ["--cuda-graphs", "at most 4096"]),
        (["--max-input-tokens", "8", "--max-total-tokens", "8"], ["--max-input-tokens 8", "less than", "lower"]),
        (["--max-total-tokens", "9", "--max-batch-total-tokens", "8"], ["--max-batch-total-tokens 8"]),
        (["--max-batch-prefill-tokens", "9", "--max-batch-total-tokens", "8"], ["--max-batch-prefill-tokens 9"]),
        (["--max-input-tokens", "3", "--max-input-length", "3"], ["two names of one setting"]),
        (["--prot", "1"], ["--prot", "did you mean --port?"]),
        (["--max-input", "1"], ["--max-input is not a flag", "did you mean"]),
        (["--zzzzzz"], ["--zzzzzz", "--help"]),
        (["serve"], ["'serve' is not a flag"]),
        (["-e"], ["--env is not available"]),
    ],
)  # fmt: skip
def test_refusals_name_the_setting_and_the_remedy(arguments: list[str], parts: list[str]) -> None:
    sentence = refusal(arguments)
    assert all(part in sentence for part in parts), sentence
    assert "\n" not in sentence


def test_refusals_name_the_variable() -> None:
    assert refusal([], {"PORT": "x"}).startswith("PORT='x' must be")
    assert "true or false" in refusal([], {"JSON_OUTPUT": "maybe"})
    assert "two names" in refusal([], {"MAX_INPUT_TOKENS": "3", "MAX_INPUT_LENGTH": "3"})


@pytest.mark.parametrize("name", UNAVAILABLE)
def test_flags_of_tgi_that_do_not_exist_are_refused_by_name(name: str) -> None:
    for arguments in ([f"--{name}", "value"], [f"--{name}=value"], [f"--{name}"]):
        sentence = refusal(arguments)
        assert f"--{name} is not available: " in sentence
        assert "leave it out" in sentence or "use " in sentence or "127.0.0.1" in sentence


def test_flags_of_tgi_are_either_here_or_refused_with_a_reason() -> None:
    assert not {dashed(field.name).removeprefix("--") for field in FIELDS} & UNAVAILABLE.keys()


def test_a_network_needs_a_key_or_the_wish_to_do_without() -> None:
    sentence = refusal(["--hostname", "0.0.0.0"])
    assert "--api-key" in sentence and "--allow-unauthenticated" in sentence
    for more in (["--api-key", "hush"], ["--api-key-file", "keys.json"], ["--allow-unauthenticated"]):
        assert parse_settings(["--hostname", "0.0.0.0", *more], {}).hostname == "0.0.0.0"
    assert parse_settings(["--hostname", "::"], {"API_KEY": "hush"}).api_key == "hush"


def test_a_key_is_shown_nowhere() -> None:
    given = parse_settings([], {"API_KEY": "hush"})
    assert "hush" not in f"{given!r} {given} {differing(given)}"
    assert differing(given) == {"api_key": "(not shown)"}
    for bad in ("hush ", "hu\nsh", "h\u00fcsh"):
        assert bad not in refusal([], {"API_KEY": bad})


def test_settings_of_tgi_that_lost_their_meaning_are_taken_and_said_to_do_nothing() -> None:
    given = parse_settings(["--waiting-served-ratio", "1.2"], {"MAX_WAITING_TOKENS": "20"})
    notice = superseded(given)
    assert notice is not None
    assert "--waiting-served-ratio and --max-waiting-tokens" in notice
    assert superseded(parse_settings([], {})) is None


def test_help_names_every_flag_variable_and_exit_code() -> None:
    text = " ".join(build_parser().format_help().split())
    for field in FIELDS:
        assert dashed(field.name) in text
        assert f"[{variable(field.name)};" in text
    assert MEANINGS.keys() == set(ExitCode)
    assert all(f"{code:d} {meaning}" in text for code, meaning in MEANINGS.items())


@pytest.mark.parametrize("revision", [None, "main", "0123456789abcdef", "z" * 40])
def test_code_is_not_trusted_without_a_commit(revision: str | None) -> None:
    given = ["--trust-remote-code", *([] if revision is None else ["--revision", revision])]
    assert "--trust-remote-code needs --revision with the 40 hexadecimal digits" in refusal(given)
    assert parse_settings(["--trust-remote-code", "--revision", "0123456789" * 4], {}).trust_remote_code
