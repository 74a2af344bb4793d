"""``make bench-startup``: from nothing to the first token with a random model of a billion numbers, phase by phase.

We, Transformers and, where `llama-cpp-python` is installed, llama.cpp start in turns, each in a process of its own,
with the file in the system's cache. Loading is held against reading the file into memory at full speed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

from benchmark.report import Report, Row
from benchmark.startup.model import write, write_gguf
from textgen import __version__

Phases = dict[str, float]
SECONDS = 600.0
_READY = re.compile(r"ready on (http://\S+) after [\d.]+ s \((.+?)\)")
_PHASE = re.compile(r"([\w -]+?) (\d+\.\d+) s")
# What the others' process runs: it says when each phase ended, in seconds since it was asked to start.
_PEERS = {
    "transformers": """
import torch
from transformers import AutoModelForCausalLM
end("import")
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
end("load")
with torch.inference_mode():
    model.generate(torch.tensor([[1, 5, 6, 7]]), max_new_tokens=1, do_sample=False)
end("first token")
""",
    "llama.cpp": """
from llama_cpp import Llama
end("import")
model = Llama(path, n_ctx=512, verbose=False, logits_all=False)
end("load")
model.eval([1, 5, 6, 7])
end("first token")
""",
}
_BEFORE = """
import json, sys, time
path, began = sys.argv[1], float(sys.argv[2])
phases, last = {}, began
def end(name):
    global last
    now = time.time()
    phases[name], last = now - last, now
"""
_AFTER = """
phases["peak"] = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps(phases))
"""


def read_at_full_speed(path: Path) -> float:
    """Seconds to have the file's bytes in memory of our own: less cannot be asked of a loader."""
    began = time.perf_counter()
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        into, done = memoryview(bytearray(size)), 0
        while done < size:
            done += file.readinto(into[done:]) or size
    return time.perf_counter() - began


def ours(model: Path, threads: int, folder: Path) -> Phases:
    """One start of the launcher until the first token came."""
    log = folder / "launcher.log"
    command = [sys.executable, "-m", "textgen.launcher", "--model-id", str(model), "--port", "0", "--dtype", "bfloat16",
               "--threads", str(threads), "--max-total-tokens", "512"]  # fmt: skip
    began = time.time()
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        found = None
        while found is None:
            if process.poll() is not None or time.time() - began > SECONDS:
                sys.exit(f"error: the launcher did not start:\n{log.read_text()}")
            time.sleep(0.01)
            found = _READY.search(log.read_text(errors="replace"))
        ready = time.time()
        body = json.dumps({"inputs": "a b c", "parameters": {"max_new_tokens": 1}}).encode()
        request = urllib.request.Request(f"{found[1]}/generate", body, {"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=SECONDS).read()
        phases = {name.strip(" ,"): float(seconds) for name, seconds in _PHASE.findall(found[2])}
        phases |= {"ready": ready - began, "first token": time.time() - ready, "peak": _peak_of_shard(process.pid)}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    return phases


def _peak_of_shard(launcher: int) -> float:
    """MiB that the shard had at most, the mapped file included."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    peaks = [re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{child}/status").read_text()) for child in children]
    return max((int(peak[1]) / 1024 for peak in peaks if peak), default=0.0)


def peer(name: str, model: Path, threads: int) -> Phases:
    """One start of another program until the first token came."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", _BEFORE + _PEERS[name] + _AFTER, str(model), str(time.time())]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=SECONDS)
    if done.returncode:
        sys.exit(f"error: {name} did not start:\n{done.stderr.decode(errors='replace')}")
    phases: Phases = json.loads(done.stdout.splitlines()[-1])
    return phases | {"ready": phases["import"] + phases["load"]}


def rows(runs: dict[str, list[Phases]], full: list[float], versions: dict[str, str], size: int) -> list[Row]:
    """What is told of the runs: medians."""

    def middle(name: str, phase: str) -> float:
        return median(run.get(phase, 0.0) for run in runs[name])

    case, found = f"{size / 1e9:.1f} GB in bfloat16", []
    for name in runs:
        if name != "textgen":
            for metric, bar in (("ready", "ratio <= 1" if name == "transformers" else None), ("first token", None)):
                found.append(
                    Row(case, f"{metric}, after the start" if metric == "ready" else f"{metric}, after that", "s",
                        middle("textgen", metric), name, versions[name], middle(name, metric), bar)
                )  # fmt: skip
            found.append(Row(case, "memory at most, mapped file included", "MiB", middle("textgen", "peak"), name,
                             versions[name], middle(name, "peak")))  # fmt: skip
    load = middle("textgen", "shard load")
    found.append(Row(case, "weights in place", "GB/s", size / 1e9 / load, "reading the file", None,
                     size / 1e9 / median(full), "ratio >= 0.8"))  # fmt: skip
    done = {"ready", "first token", "peak"}
    found += [Row(case, phase, "s", middle("textgen", phase)) for phase in runs["textgen"][0] if phase not in done]
    return found


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--layers", type=int, default=16, help="fewer make a smaller model")
    parser.add_argument("--no-report", action="store_true", help="print only")
    given = parser.parse_args()
    versions = {"textgen": __version__, "transformers": importlib.metadata.version("transformers")}
    notes = [f"Load average {os.getloadavg()[0]:.1f} when it began.", f"Medians of {given.rounds} rounds; "
             f"{given.threads} threads each; the file is in the system's cache."]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-startup-") as scratch:
        folder = Path(scratch)
        model = write(folder / "model", num_hidden_layers=given.layers)
        models = {"transformers": model}
        if importlib.util.find_spec("llama_cpp") is not None:
            versions["llama.cpp"] = f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"
            models["llama.cpp"] = write_gguf(model, folder / "model.gguf")
        else:
            notes.append("llama-cpp-python is not installed, so llama.cpp was not measured.")
        weights = model / "model.safetensors"
        full, runs = [], {name: list[Phases]() for name in ("textgen", *models)}
        read_at_full_speed(weights)  # into the cache
        for _ in range(given.rounds):
            full.append(read_at_full_speed(weights))
            runs["textgen"].append(ours(model, given.threads, folder))
            for name, path in models.items():
                runs[name].append(peer(name, path, given.threads))
        found = rows(runs, full, versions, weights.stat().st_size)
    for row in found:
        theirs = "" if row.theirs is None else f"  {row.peer} {row.theirs:.4g}  ratio {row.ratio:.2f}"
        print(f"{row.case:22} {row.metric:40} {row.ours:9.4g} {row.unit}{theirs}  {row.bar or ''} {row.holds}")
    if given.no_report:
        return
    arguments = " ".join(sys.argv[1:])
    command = "make bench-startup" + (f' ARGS="{arguments}"' if arguments else "")
    Report("startup", command, versions, found, notes=notes).save()


if __name__ == "__main__":
    main()
