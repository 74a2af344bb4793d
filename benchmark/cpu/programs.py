"""What runs in a process of its own, in the environment of the program that is measured.

``python -m benchmark.cpu.programs NAME TASK`` makes the model of the task, a JSON object, ready and says so; then each
line that comes, a JSON object, is one run, and is answered with the seconds until all streams had their first
token and until all had the last. Every program gets the same token ids and writes greedily past every end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

Tokens: TypeAlias = list[list[int]]


@dataclass(frozen=True)
class Task:
    """models: where the model lies, by form (hf, w8a8, gguf). format: bf16, int8 or int4. cache: a folder for what a
    program makes of the model. streams and tokens: the most that a run has, of one sequence."""

    models: dict[str, str]
    format: str
    threads: int
    cache: str
    streams: int
    tokens: int


@dataclass(frozen=True)
class Times:
    """Seconds from the start of a run: until every stream had a token, and until every stream had all."""

    first: float
    last: float


Run: TypeAlias = Callable[[Tokens, int], Times]
Program: TypeAlias = Callable[[Task], Run]


def _twice(generate: Callable[[Tokens, int], object]) -> Run:
    """For a program that tells of no single token: once for the first token alone, once for all. Where the machine's
    speed drifts the difference of two runs is worth less than two moments of one."""

    def run(prompts: Tokens, new_tokens: int) -> Times:
        began = time.perf_counter()
        generate(prompts, 1)
        first = time.perf_counter() - began
        if new_tokens == 1:
            return Times(first, first)
        began = time.perf_counter()
        generate(prompts, new_tokens)
        return Times(first, time.perf_counter() - began)

    return run


def textgen(task: Task) -> Run:
    from textgen import LLM, SamplingParams

    llm = LLM(
        task.models["hf"], dtype="bfloat16", quantize=None if task.format == "bf16" else task.format, plan="auto",
        threads=task.threads, prefix_caching=False, max_total_tokens=task.tokens, max_batch_size=task.streams,
        max_batch_prefill_tokens=2048, log_level="info",
    )  # fmt: skip

    def run(prompts: Tokens, new_tokens: int) -> Times:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        began = time.time()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        last = time.time() - began
        return Times(max(output.metrics.first_token_time for output in outputs if output.metrics) - began, last)

    return run


def transformers(task: Task) -> Run:
    return _torch_loop(task, compiled=False)


def transformers_compiled(task: Task) -> Run:
    return _torch_loop(task, compiled=True)


def transformers_continuous(task: Task) -> Run:
    """Its continuous batching, ``generate_batch``, which notes when each token came."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = _of_transformers(task)
    # Else it would be sized for the first call, which warms up.
    batching = ContinuousBatchingConfig(
        max_batch_tokens=2048, max_requests_per_batch=task.streams, allow_block_sharing=False
    )
    batching.num_blocks = task.streams * -(-task.tokens // batching.page_size)

    def run(prompts: Tokens, new_tokens: int) -> Times:
        config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        made = model.generate_batch(
            prompts, config, batching, record_timestamps=True, persistent_manager=True, warmup=False
        ).values()
        if [len(output.generated_tokens) for output in made] != [new_tokens] * len(prompts):
            raise RuntimeError("a request had no answer, or a short one")
        began = min(output.created_time for output in made)
        return Times(*(max(output.timestamps[at] for output in made) - began for at in (0, -1)))

    return run


def _of_transformers(task: Task) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(task.threads)
    model = AutoModelForCausalLM.from_pretrained(task.models["hf"], dtype=torch.bfloat16)
    model.train(False)
    return model


def _torch_loop(task: Task, *, compiled: bool) -> Run:
    """The model's own forward pass in a loop, which is faster than `generate`."""
    import torch
    from transformers import DynamicCache, StaticCache

    model = _of_transformers(task)
    forward = torch.compile(model) if compiled else model

    def run(prompts: Tokens, new_tokens: int) -> Times:
        with torch.inference_mode():
            began = time.perf_counter()
            ids = torch.tensor(prompts)
            if compiled:
                cache: Any = StaticCache(config=model.config, max_cache_len=ids.shape[1] + new_tokens)
            else:
                cache = DynamicCache(config=model.config)
            at = torch.arange(ids.shape[1])
            out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1, cache_position=at)
            first = time.perf_counter() - began
            for step in range(1, new_tokens):
                ids = out.logits[:, -1:].argmax(-1)
                at = torch.tensor([len(prompts[0]) + step - 1])
                out = forward(ids, past_key_values=cache, use_cache=True, logits_to_keep=1, cache_position=at)
            return Times(first, time.perf_counter() - began)

    return run


def ctranslate2(task: Task) -> Run:
    import ctranslate2 as library

    kind = {"bf16": "bfloat16", "int8": "int8_float32"}[task.format]
    folder = Path(task.cache) / f"{Path(task.models['hf']).name}-{kind}"
    if not (folder / "model.bin").exists():
        _to_ctranslate2(Path(task.models["hf"]), folder, "int8" if task.format == "int8" else "bfloat16")
    model = library.Generator(str(folder), "cpu", compute_type=kind, inter_threads=1, intra_threads=task.threads)
    words = json.loads((folder / "vocabulary.json").read_text())

    def generate(prompts: Tokens, new_tokens: int) -> None:
        texts = [[words[token] for token in prompt] for prompt in prompts]
        model.generate_batch(
            texts, max_length=new_tokens, min_length=new_tokens, include_prompt_in_result=False, end_token=[],
            max_batch_size=task.streams,
        )  # fmt: skip

    return _twice(generate)


def _to_ctranslate2(source: Path, folder: Path, kind: str) -> None:
    """By its own form of a model: its converter would ask for Transformers."""
    import ctranslate2 as library
    import numpy as np

    config = json.loads((source / "config.json").read_text())
    with (source / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()
    data = np.memmap(source / "model.safetensors", np.uint8, "r", start)

    def read(name: str) -> Any:
        begin, end = header[name]["data_offsets"]
        wide = data[begin:end].view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(header[name]["shape"])

    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    spec = library.specs.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"], heads, activation=library.specs.common_spec.Activation.SWISH, pre_norm=True,
        ffn_glu=True, rms_norm=True, rotary_dim=0, rotary_interleave=False, rotary_base=config["rope_theta"],
        num_heads_kv=None if kv_heads == heads else kv_heads,
    )  # fmt: skip
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = read("model.embed_tokens.weight")
    decoder.projection.weight = decoder.embeddings.weight
    decoder.layer_norm.gamma = read("model.norm.weight")
    for number, layer in enumerate(decoder.layer):
        prefix = f"model.layers.{number}."
        layer.self_attention.layer_norm.gamma = read(f"{prefix}input_layernorm.weight")
        layer.ffn.layer_norm.gamma = read(f"{prefix}post_attention_layernorm.weight")
        rows = [read(f"{prefix}self_attn.{name}_proj.weight") for name in "qkv"]
        layer.self_attention.linear[0].weight = np.concatenate(rows)
        layer.self_attention.linear[1].weight = read(f"{prefix}self_attn.o_proj.weight")
        layer.ffn.linear_0.weight = read(f"{prefix}mlp.gate_proj.weight")
        layer.ffn.linear_0_noact.weight = read(f"{prefix}mlp.up_proj.weight")
        layer.ffn.linear_1.weight = read(f"{prefix}mlp.down_proj.weight")
    words = [f"t{number}" for number in range(config["vocab_size"])]
    spec.register_vocabulary(words)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = words[1], words[2], words[0]
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    spec.validate()
    spec.optimize(quantization=kind)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def openvino(task: Task) -> Run:
    import openvino as runtime
    import openvino_genai as library
    from transformers import AutoTokenizer  # noqa: F401 - the export asks for it: missing, it is said here

    source = Path(task.models["hf"])
    folder = Path(task.cache) / f"{source.name}-{task.format}"
    if not (folder / "openvino_model.bin").exists():
        kind = {"bf16": ["--weight-format", "fp16"], "int8": ["--weight-format", "int8"]}.get(
            task.format, ["--weight-format", "int4", "--sym", "--group-size", "64", "--ratio", "1.0"]
        )
        command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", str(source)]
        command += ["--task", "text-generation-with-past", *kind, str(folder)]
        subprocess.run(command, check=True, stdout=sys.stderr)
    scheduler = library.SchedulerConfig()
    scheduler.cache_size, scheduler.dynamic_split_fuse = 2, True
    scheduler.max_num_batched_tokens, scheduler.max_num_seqs = 2048, task.streams
    pipeline = library.ContinuousBatchingPipeline(
        str(folder), scheduler, "CPU", {"INFERENCE_NUM_THREADS": str(task.threads)}, {}
    )

    def run(prompts: Tokens, new_tokens: int) -> Times:
        """As its `generate`, which adds all and steps until none is left."""
        import numpy as np

        config = library.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        inputs = [runtime.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        began, first = time.perf_counter(), None
        # A request ends with the last reference to its handle.
        handles = [pipeline.add_request(number, given, config) for number, given in enumerate(inputs)]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            if first is None and all(handle.can_read() for handle in handles):
                first = time.perf_counter() - began
        last = time.perf_counter() - began
        return Times(last if first is None else first, last)

    return run


def vllm(task: Task) -> Run:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": str(task.threads), "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{task.threads - 1}", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    from vllm import LLM, SamplingParams

    llm = LLM(
        task.models["w8a8" if task.format == "int8" else "hf"], skip_tokenizer_init=True, dtype="bfloat16",
        max_model_len=task.tokens, max_num_seqs=task.streams, max_num_batched_tokens=2048, enable_prefix_caching=False,
        disable_log_stats=False,
    )  # fmt: skip

    def run(prompts: Tokens, new_tokens: int) -> Times:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        began = time.time()
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        last = time.time() - began
        moments = [output.metrics.arrival_time + output.metrics.first_token_latency for output in outputs]
        return Times(max(moments) - began, last)

    return run


def llama_cpp(task: Task) -> Run:
    """Its own program for batches, which is given no prompts but makes some up."""
    tools = Path(sys.prefix) / "llama.cpp" / "bin"
    source = Path(task.models["gguf"])
    kind = {"bf16": "bf16", "int8": "Q8_0", "int4": "Q4_0"}[task.format]
    model = source if kind == "bf16" else Path(task.cache) / f"{source.stem}-{kind}.gguf"
    if not model.exists():
        part = model.with_suffix(".part")
        command = [str(tools / "llama-quantize"), str(source), str(part), kind, str(task.threads)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        part.rename(model)

    def run(prompts: Tokens, new_tokens: int) -> Times:
        streams, prompt, threads = len(prompts), len(prompts[0]), str(task.threads)
        command = [str(tools / "llama-batched-bench"), "-m", str(model), "-t", threads, "-tb", threads]
        command += ["-c", str((prompt + new_tokens) * streams + 256), "-b", "2048", "-ub", "512", "-npp", str(prompt)]
        command += ["-ntg", str(new_tokens), "-npl", str(streams), "--output-format", "jsonl"]
        for _ in range(2):  # now and then it ends well and has told nothing
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            if lines:
                break
        else:
            raise RuntimeError(f"llama-batched-bench ended with {done.returncode}: {done.stderr[-300:]}")
        return Times(lines[-1]["t_pp"], lines[-1]["t_pp"] + lines[-1]["t_tg"])

    return run


PROGRAMS: dict[str, Program] = {
    "textgen": textgen,
    "llama.cpp": llama_cpp,
    "ctranslate2": ctranslate2,
    "openvino": openvino,
    "transformers": transformers,
    "transformers compiled": transformers_compiled,
    "transformers continuous": transformers_continuous,
    "vllm": vllm,
}


def main() -> None:
    # What libraries print goes to the log; the answers have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    began = time.perf_counter()
    run = PROGRAMS[sys.argv[1]](Task(**json.loads(sys.argv[2])))
    run([[5, 6, 7, 8]], 1)
    print(json.dumps({"ready": time.perf_counter() - began}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            print(json.dumps(asdict(run(asked["prompts"], asked["new_tokens"]))), file=answers)
        except Exception as error:  # whatever another program says of it becomes a line in the report
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:400]}), file=answers)


if __name__ == "__main__":
    main()
