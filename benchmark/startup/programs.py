"""What starts beside the servers: each from nothing to its first token, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmark.servers import SECONDS, Models, NotStarted, Program, Started, last_line, python_of_ours

# Its process says when each phase ended, in seconds since it was asked to start.
_TRANSFORMERS = """
import json, sys, time
last = float(sys.argv[2])
def end(name):
    global last
    now = time.time()
    phases[name], last = now - last, now
phases = {}
import torch
from transformers import AutoModelForCausalLM
end("import")
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
end("load")
with torch.inference_mode():
    model.generate(torch.tensor([[1, 5, 6, 7]]), max_new_tokens=1, do_sample=False)
end("first")
phases["peak"] = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps(phases))
"""


class Transformers(Program):
    """No server: its process loads the model and generates."""

    name = "transformers"

    def __init__(self) -> None:
        self.roots = python_of_ours()

    def start(self, models: Models, threads: int, log: Path) -> Started:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-c", _TRANSFORMERS, str(models.folder), str(time.time())]
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=SECONDS, text=True)
        log.write_text(done.stderr)
        if done.returncode:
            raise NotStarted(last_line(log))
        told = json.loads(done.stdout.splitlines()[-1])
        ready = told["import"] + told["load"]
        return Started(ready, ready + told["first"], told["peak"])
