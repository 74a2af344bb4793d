"""What is left open is filled in from model and machine, and both processes are told the same."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.launcher.folders import make_folder
from textgen import __version__
from textgen.launcher.checkpoint import Checkpoint
from textgen.launcher.errors import MemoryPlanError, SettingsError
from textgen.launcher.flags import Share
from textgen.launcher.gpu import Gpu
from textgen.launcher.hardware import Hardware
from textgen.launcher.model import Model, resolve
from textgen.launcher.plan import Plan, make_plan
from textgen.launcher.settings import Settings
from textgen.models.spec import EncoderSpec
from textgen.quantization.formats import Blocks, quantize_name, weight_bytes
from textgen.shard.settings import parse_settings

GIB = 2**30


def machine(gib: float = 8, **changes: Any) -> Hardware:
    values: dict[str, Any] = {"memory_limit": "the machine", "cores": 4, "bfloat16": False}
    values |= {"kernels": True, "allowed": tuple(range(8)), "processors": (0, 1, 2, 3)}
    return Hardware(memory_available=int(gib * GIB), **(values | changes))


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return resolve(str(make_folder(tmp_path / "m", dtype="BF16")))


def plan(model: Model, hardware: Hardware | None = None, **settings: Any) -> Plan:
    return make_plan(Settings(**settings), model, hardware or machine())


def test_defaults(model: Model) -> None:
    made = plan(model)
    assert (made.max_total_tokens, made.max_input_tokens) == (512, 511)
    assert (made.max_batch_tokens, made.max_slots, made.dtype, made.threads) == (1024, 128, "bfloat16", 4)
    assert made.block_size == 64
    assert made.memory.num_blocks == 128 * 512 // 64


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"threads": 1}, 512), ({"threads": 4}, 1024), ({"threads": 64}, 2048), ({"max_batch_total_tokens": 600}, 600),
        ({"threads": 2, "max_batch_size": 700}, 700), ({"threads": 2, "max_batch_prefill_tokens": 300}, 300),
    ],
)  # fmt: skip
def test_a_step_takes_about_as_long_whatever_the_threads(model: Model, given: dict[str, Any], tokens: int) -> None:
    assert plan(model, **given).max_batch_tokens == tokens


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 2), (64, 4)])
def test_half_of_the_cores_have_a_thread_for_http(model: Model, cores: int, threads: int) -> None:
    """The kernels want the others."""
    assert plan(model, machine(cores=cores)).http_threads == threads


def test_memory_is_made_early_for_weights_that_kernels_are_given(model: Model) -> None:
    def told(made: Plan) -> int:
        return parse_settings(made.shard_settings()).weight_bytes

    def planned(form: str | None) -> int:
        return weight_bytes(model.spec, model.checkpoint.parameters, 2, form)

    assert told(plan(model)) == planned("compact") < planned(None)
    assert told(plan(model, cpu_isa="amx")) == planned("compact")
    assert told(plan(model, cpu_isa="portable")) == planned(None)
    assert told(plan(model, quantize="int8")) < told(plan(model))
    assert told(plan(model, plan="off")) == told(plan(model, machine(kernels=False))) == 0
    assert told(plan(model, weights_cache="/cache")) == 0


@pytest.mark.parametrize(
    "given, threads, cpus",
    [
        ({}, 4, ()),
        ({"cpu_bind": "auto"}, 4, (0, 1, 2, 3)),
        ({"cpu_bind": "auto", "threads": 2}, 2, (0, 1)),
        ({"cpu_bind": (6, 4, 7)}, 3, (6, 4, 7)),
        ({"cpu_bind": (6, 4, 7), "threads": 1}, 1, (6,)),
    ],
)
def test_threads_are_bound_as_asked(model: Model, given: dict[str, Any], threads: int, cpus: tuple[int, ...]) -> None:
    made = plan(model, **given)
    told = parse_settings(made.shard_settings())
    assert (made.threads, made.cpus) == (told.threads, told.cpus) == (threads, cpus)


def test_less_time_than_processors(model: Model) -> None:
    made = plan(model, machine(cores=2), cpu_bind="auto")
    assert (made.threads, made.cpus) == (2, (0, 1))


@pytest.mark.parametrize(
    "given, told",
    [
        ({"cpu_bind": "auto", "threads": 5}, "--threads 5 cannot be bound to 4 processors"),
        ({"cpu_bind": (1, 2), "threads": 3}, "--threads 3 cannot be bound to 2 processors"),
        ({"cpu_bind": (0, 9)}, "names processor 9, which this process may not use; it may use 0, 1, 2"),
    ],
)
def test_threads_that_cannot_be_bound(model: Model, given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(told)):
        plan(model, **given)


def test_a_step_has_room_for_the_input_of_an_encoder(model: Model) -> None:
    """All of it at once, in whole blocks, beside a token of every sequence; its attention takes memory."""
    spec = dataclasses.replace(model.spec, max_positions=2**15, encoder=EncoderSpec(num_heads=4, mlp_width=96))
    encoded = dataclasses.replace(model, spec=spec)
    plain = plan(dataclasses.replace(model, spec=dataclasses.replace(spec, encoder=None)), max_total_tokens=2048)
    made = plan(encoded)
    assert (made.max_total_tokens, made.max_input_tokens, made.max_batch_tokens) == (2048, 2047, 2048 + 128)
    small = plan(encoded, max_input_tokens=100, max_total_tokens=150, max_batch_size=4, max_batch_prefill_tokens=132)
    assert small.max_batch_tokens == 132
    assert small.memory.num_blocks == -(-4 * (150 + 2 * 64) // 64), "input and output end in blocks of their own"
    with pytest.raises(SettingsError, match="--max-batch-prefill-tokens 131 is too few.*give at least 132"):
        plan(encoded, max_input_tokens=100, max_total_tokens=150, max_batch_size=4, max_batch_prefill_tokens=131)
    step = next(line for line in made.memory.table if "largest step" in line)
    assert step not in plain.memory.table


def test_long_models_get_a_bound_that_a_setting_lifts(tmp_path: Path) -> None:
    model = resolve(str(make_folder(tmp_path / "m", max_position_embeddings=131_072)))
    assert plan(model).max_total_tokens == 8192
    assert plan(model, max_total_tokens=20_000).max_total_tokens == 20_000
    assert plan(model, max_input_tokens=10_000).max_total_tokens == 10_001


@pytest.mark.parametrize(
    ("stored", "asked", "native", "planned", "by_torch"),
    [
        ("BF16", "auto", False, "bfloat16", "float32"), ("BF16", "auto", True, "bfloat16", "bfloat16"),
        ("F16", "auto", True, "float16", "float32"), ("F32", "auto", True, "float32", "float32"),
        ("BF16", "float16", False, "float16", "float16"),
    ],
)  # fmt: skip
def test_data_types(stored: str, asked: str, native: bool, planned: str, by_torch: str, tmp_path: Path) -> None:
    """Our own kernels multiply 16-bit numbers everywhere; torch needs instructions for them."""
    model = resolve(str(make_folder(tmp_path / "m", dtype=stored)))
    assert plan(model, machine(bfloat16=native), dtype=asked).dtype == planned
    assert plan(model, machine(bfloat16=native), dtype=asked, plan="off").dtype == by_torch
    assert plan(model, machine(bfloat16=native, kernels=False), dtype=asked).dtype == by_torch
    assert plan(dataclasses.replace(model, fallback=True), machine(bfloat16=native), dtype=asked).dtype == by_torch


def test_a_smaller_data_type_halves_the_cache(model: Model) -> None:
    whole, half = plan(model, dtype="float32").memory, plan(model, dtype="bfloat16").memory
    assert (whole.num_blocks, whole.kv_bytes) == (half.num_blocks, 2 * half.kv_bytes)
    assert whole.kv_bytes == whole.num_blocks * 64 * 2 * 3 * 2 * 16 * 4  # positions, k and v, layers, heads, dim, bytes


def test_a_cache_of_integers_counts_its_scales(model: Model) -> None:
    plans = {dtype: plan(model, dtype=dtype, kv_cache_dtype="int8") for dtype in ("float32", "bfloat16")}
    for made in plans.values():
        rows = made.memory.num_blocks * 64 * 2 * 3 * 2  # positions, k and v, layers, heads
        assert made.memory.kv_bytes == rows * (16 + 4), "a byte for each number, and a float32"
        assert parse_settings(made.shard_settings()).kv_cache_dtype == "int8"


def test_a_gpus_cache_has_8_bits_too(model: Model) -> None:
    plans = {name: plan(model, gpu(), device="cuda", kv_cache_dtype=name) for name in ("auto", "int8", "fp8")}
    sizes = {name: made.memory.kv_bytes // made.memory.num_blocks for name, made in plans.items()}
    rows = 16 * 2 * 3 * 2  # positions, k and v, layers, heads
    assert (sizes["int8"], sizes["fp8"]) == (rows * (16 + 4), rows * 16) and sizes["auto"] >= 2 * sizes["fp8"]
    assert parse_settings(plans["fp8"].shard_settings()).kv_cache_dtype == "fp8"
    with pytest.raises(SettingsError, match="--kv-cache-dtype fp8 is there for --device cuda alone; use int8"):
        plan(model, kv_cache_dtype="fp8")


def test_a_cache_of_integers_is_refused_where_there_is_none(model: Model) -> None:
    with pytest.raises(SettingsError, match="--kv-cache-dtype int8 is not there for a model that Transformers runs"):
        plan(dataclasses.replace(model, fallback=True), kv_cache_dtype="int8")


@pytest.mark.parametrize(
    ("settings", "changes", "numbers"),
    [
        ({}, {}, 0.5625),
        ({"plan": "off"}, {}, 2),
        ({}, {"kernels": False}, 2),
        ({"dtype": "float32"}, {}, 4),
        ({"dtype": "float16"}, {}, 0.5625),
        ({"quantize": "int8"}, {}, 1.016),
    ],
)
def test_blocks_of_gguf_files_count_as_they_are_kept(
    settings: dict[str, Any], changes: dict[str, Any], numbers: float, model: Model
) -> None:
    """Gigabytes of weights of which all but few are in blocks."""
    count = 2**31
    blocks = Blocks({"Q4_0": count}, dense=0)
    packed = dataclasses.replace(model, checkpoint=Checkpoint(count, "bfloat16", blocks=blocks))
    made = plan(packed, machine(16, **({"bfloat16": True} | changes)), **({"plan": "auto"} | settings))
    line = next(line for line in made.memory.table if "weights" in line)
    gib = float(re.search(r"([\d.]+) GiB", line)[1])  # type: ignore[index]
    assert abs(gib - 2 * numbers) < 0.06, line


def test_max_batch_total_tokens_bounds_the_cache(model: Model) -> None:
    made = plan(model, max_batch_total_tokens=1024)
    assert made.memory.num_blocks == 16
    assert made.max_batch_tokens == 1024


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"max_total_tokens": 513}, ["--max-total-tokens 513", "512 positions"]),
        ({"max_input_tokens": 512}, ["--max-input-tokens 512", "at most 511"]),
        ({"max_batch_size": 9, "max_batch_prefill_tokens": 8}, ["--max-batch-size 9", "--max-batch-prefill-tokens 8"]),
        ({"device": "cuda"}, ["--device cuda: nobody has looked for one"]),
    ],
)
def test_settings_that_do_not_fit_model_or_machine(settings: dict[str, Any], parts: list[str], model: Model) -> None:
    with pytest.raises(SettingsError) as caught:
        plan(model, **settings)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_too_little_memory(model: Model) -> None:
    with pytest.raises(MemoryPlanError, match="does not fit"):
        plan(model, machine(0.1))


def gpu(**changes: Any) -> Hardware:
    values: dict[str, Any] = {"name": "H", "capability": (9, 0), "total": 8 * GIB, "free": 6 * GIB}
    return machine(0.1, gpu=Gpu(**(values | changes)))


def test_a_gpu_is_given_as_many_blocks_as_are_of_use(model: Model) -> None:
    """How many there can be, the shard measures."""
    made = plan(model, gpu(), device="cuda", cuda_memory_fraction=0.9, cuda_graphs=(1, 8), attention="native")
    assert (made.dtype, made.memory.num_blocks, made.max_batch_tokens) == ("bfloat16", 128 * 512 // 16, 4096)
    table = "\n".join(made.memory.table)
    assert "H (sm_90)" in table and "--cuda-memory-fraction 0.9" in table and "at most 4096 blocks" in table
    told = parse_settings(made.shard_settings())
    assert (told.device, told.attention, told.memory_fraction, told.kv_share) == ("cuda", "native", 0.9, 1.0)
    assert (told.graphs, told.least_blocks, told.deterministic) == ((1, 8), 512 // 16 + 1, False)
    assert parse_settings(plan(model, gpu(), device="cuda", kv_memory=Share(0.25)).shard_settings()).kv_share == 0.25
    assert parse_settings(plan(model, gpu(), device="cuda", deterministic=True).shard_settings()).deterministic
    assert plan(model, gpu(), device="cuda", kv_memory=GIB // 64).memory.kv_bytes <= GIB // 64


@pytest.mark.parametrize(
    ("hardware", "settings", "sentence"),
    [
        ({"free": GIB // 4}, {}, "the model does not fit: .* are missing"),
        ({}, {"cuda_memory_fraction": 0.3}, "the model does not fit"),
        ({}, {"kv_memory": 6 * GIB}, "--kv-memory 6.0 GiB does not fit beside the weights"),
        ({}, {"kv_memory": 1000}, "--kv-memory is too little for one sequence of 512 tokens"),
    ],
)
def test_what_cannot_fit_a_gpu(model: Model, hardware: dict[str, Any], settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MemoryPlanError, match=sentence):
        plan(model, gpu(**hardware), device="cuda", **settings)


@pytest.mark.parametrize(
    ("checkpoint", "settings", "numbers"),
    [
        ({}, {}, 2),
        ({}, {"quantize": "int8"}, 1.016),
        ({}, {"quantize": "int4"}, 0.5625),
        ({"bits": 4}, {}, 0.594),
        ({"bits": 8}, {}, 1.0625),
        ({"scaled": 2**31}, {}, 1.031),
        ({"scaled": 2**31}, {"dtype": "float32"}, 4),
        ({"scaled": 2**31}, {"attention": "torch"}, 2),
        ({"scaled": 2**31}, {"quantize": "int4"}, 0.5625),
        ({"blocks": Blocks({"MXFP4": 2**31}, 0)}, {}, 0.5625),
        ({"blocks": Blocks({"Q8_0": 2**30, "Q4_K": 2**30}, 0)}, {}, 0.844),
        ({"blocks": Blocks({"Q5_K": 2**30, "Q5_1": 2**30}, 0)}, {}, 1.53),
        ({"blocks": Blocks({"Q4_0": 2**31}, 0)}, {"attention": "torch"}, 2),
    ],
)
def test_weights_count_as_a_gpu_holds_them(
    model: Model, checkpoint: dict[str, Any], settings: dict[str, Any], numbers: float
) -> None:
    large = dataclasses.replace(model, checkpoint=Checkpoint(2**31, "bfloat16", **checkpoint))
    made = plan(large, gpu(total=64 * GIB, free=60 * GIB), device="cuda", **settings)
    line = next(line for line in made.memory.table if "weights" in line)
    gib = float(re.search(r"([\d.]+) GiB", line)[1])  # type: ignore[index]
    assert abs(gib - 2 * numbers) < 0.06, line


@pytest.mark.parametrize(
    ("said", "checkpoint", "quantize"),
    [
        ("bitsandbytes", {}, "int8"),
        ("eetq", {}, "int8"),
        ("bitsandbytes-nf4", {}, "int4"),
        ("fp8", {}, "int8"),
        ("fp8", {"scaled": 2**20}, None),
        ("GPTQ", {"bits": 4}, None),
        ("marlin", {"bits": 8}, None),
        ("awq", {"blocks": Blocks({"Q8_0": 2**20}, 0)}, None),
    ],
)
def test_names_of_text_generation_inference(
    model: Model, said: str, checkpoint: dict[str, Any], quantize: str | None
) -> None:
    """What is stored in few bits is read as it is."""
    stored = dataclasses.replace(model, checkpoint=Checkpoint(2**20, "bfloat16", **checkpoint))
    assert plan(stored, quantize=quantize_name(said)).settings.quantize == quantize


def test_a_checkpoint_of_numbers_is_in_no_form_that_was_named(model: Model) -> None:
    with pytest.raises(SettingsError, match="--quantize gptq is for checkpoints that are stored so"):
        plan(model, quantize="gptq")


def test_auto_takes_the_gpu_that_is_there(model: Model) -> None:
    assert plan(model, gpu(), device="auto").settings.device == "cuda"
    without = plan(model, device="auto", attention="native")
    assert (without.settings.device, without.settings.attention) == ("cpu", "auto")
    with pytest.raises(SettingsError, match="--attention flash-attn takes bfloat16 and float16"):
        plan(model, gpu(), device="cuda", attention="flash-attn", dtype="float32")


@pytest.mark.parametrize(
    ("heads", "given", "size"),
    [
        (1, {}, 64), (3, {}, 64), (4, {}, 32), (8, {}, 16), (32, {}, 16), (8, {"kv_cache_dtype": "int8"}, 32),
        (8, {"dtype": "float32"}, 16), (4, {"dtype": "float32"}, 16), (1, {"block_size": 8}, 8),
    ],
)  # fmt: skip
def test_a_block_is_as_long_as_memory_is_read_well_in(
    model: Model, heads: int, given: dict[str, Any], size: int
) -> None:
    spec = dataclasses.replace(model.spec, num_heads=32, num_kv_heads=heads, head_dim=64)
    assert plan(dataclasses.replace(model, spec=spec), **given).block_size == size


def test_blocks_of_a_gpu_are_small(model: Model) -> None:
    assert plan(model, gpu(), device="cuda").block_size == 16


def test_the_shard_takes_its_settings(model: Model) -> None:
    made = plan(model, json_output=True, threads=3, block_size=32)
    settings = parse_settings(made.shard_settings())
    assert settings.model_dir == str(model.folder)
    assert (settings.num_blocks, settings.block_size) == (made.memory.num_blocks, 32)
    assert (settings.max_context, settings.max_slots, settings.max_batch_tokens) == (512, 128, 768)
    assert (settings.threads, settings.log_json, settings.max_top_n) == (3, True, 64)


def test_prompts_have_a_share_of_a_processors_steps(model: Model) -> None:
    assert plan(model).stream_tokens == 8
    assert plan(model, max_prefill_per_stream=3).stream_tokens == 3
    assert plan(model, max_prefill_per_stream=0).stream_tokens == 0
    assert plan(model, gpu(), device="cuda").stream_tokens == 0


def test_the_router_is_told_every_setting_of_its_struct(model: Model) -> None:
    source = Path(__file__).parents[2] / "router" / "src" / "settings.rs"
    fields = [line.split()[1].rstrip(":") for line in source.read_text().splitlines() if line.startswith("    pub ")]
    told = msgspec.json.decode(plan(model, revision="abc").router_settings())
    assert set(told) == set(fields)
    assert (told["version"], told["model_sha"], told["model_dtype"]) == (__version__, "abc", "bfloat16")
    assert json.dumps(told["cors_allow_origin"]) == "[]"
