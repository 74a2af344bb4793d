"""Writes `docs/settings.md` from the table of settings: `python -m textgen.launcher.docs > docs/settings.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from textgen.launcher.arguments import variable
from textgen.launcher.errors import MEANINGS
from textgen.launcher.flags import Flag, dashed, flag_of
from textgen.launcher.settings import FIELDS
from textgen.launcher.tgi import UNAVAILABLE

_INTRODUCTION = """\
# Settings

<!-- Generated from python/textgen/launcher/settings.py by `make docs-settings`; edit the table there. -->

Every setting of `textgen-launcher` is a flag and an environment variable. The flag wins over the variable, the variable
over the default; an empty variable counts as not set. A value that cannot be used ends the start with one sentence and
exit code 2. Names and meanings are those of Text Generation Inference (TGI) wherever it has the setting.
"""

_DIFFERENCES = """\
## On purpose different from TGI

- `--hostname` is `127.0.0.1`, not `0.0.0.0`: a server is open to a network only when somebody says so. In a
  container, or to serve other machines, give `--hostname 0.0.0.0`.
- `HOSTNAME` is read only when it holds an IP address or `localhost`. Shells and container runtimes put the machine's
  name there, and TGI then listens on every network.
- Without `--model-id` a small built-in model is served.
- Weights in PyTorch's `.bin` form are never converted on the way in; `textgen convert` does it once, see
  [`models-from-the-hub.md`](models-from-the-hub.md).
- `--max-batch-prefill-tokens` bounds a whole step, prompt chunks and next tokens together; longer prompts are cut
  into chunks, so it does not bound `--max-input-tokens`.
- `--dtype auto` takes the model's own data type where Textgen's own kernels run it (`--plan auto`). Where torch runs it
  on a CPU, float32 is taken for float16, and for bfloat16 too if the CPU has no instructions for it.
- A dead shard is restarted and running requests go on; TGI ends.
- Listening on a network takes a key (`--api-key`, `--api-key-file`) or `--allow-unauthenticated`: nobody opens a server
  to everyone by accident.
- `--otlp-endpoint` gets the spans of the router, which knows the times of every stage; shards send none.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_settings(), *_exit_codes(), _DIFFERENCES, *_unavailable()])


def _settings() -> Iterator[str]:
    group = None
    for field in FIELDS:
        flag = flag_of(field)
        if flag.group != group:
            yield from ([] if group is None else [""])
            group = flag.group
            yield from (f"## {group}", "", "| flag | variable | default | meaning |", "|---|---|---|---|")
        yield f"| {_names(field.name, flag)} | `{variable(field.name)}` | {flag.default} | {flag.help} |"
    yield ""


def _names(name: str, flag: Flag) -> str:
    names = [dashed(name), *([flag.short] if flag.short else [])]
    if flag.switch:
        names.append(dashed(f"no-{name}"))
    return ", ".join(f"`{each}`" for each in names)


def _exit_codes() -> Iterator[str]:
    yield from ("## Exit codes", "", "| code | meaning |", "|---|---|")
    yield from (f"| {code:d} | {meaning} |" for code, meaning in MEANINGS.items())
    yield "| 128 + n | stopped at once by a second signal n (130: Ctrl-C, 143: SIGTERM) |"
    yield from ("", "The first SIGTERM or Ctrl-C drains: new requests are answered 503, running ones finish.", "")


def _unavailable() -> Iterator[str]:
    yield from ("## Settings of TGI that this version refuses", "", "| flag | why, and what to do |", "|---|---|")
    yield from (f"| `--{name}` | {why} |" for name, why in UNAVAILABLE.items())
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
