"""`python -m textgen.hub.convert_child CONFIG SOURCE TARGET ...`: `.bin` files as safetensors, one after the other.

Only tensors are read (`weights_only`): a file that asks for more is refused before it can do anything. What is written
is read back and compared. Standard output has one JSON object a line, see `convert.Told`.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

HEADS = ("lm_head.weight", "embed_out.weight")  # names of output layers that configs may tie to the input's


class Refused(Exception):
    """One sentence for the parent."""


def main(config: Path, pairs: Sequence[tuple[Path, Path]]) -> int:
    """Convert each source to its target; the exit code."""
    try:
        tied = _ties(config)
        for source, target in pairs:
            _convert(source, target, tied)
    except Refused as error:
        _tell(error=str(error))
    except OSError as error:
        _tell(error=f"{error.filename or config.parent} cannot be written ({error.strerror}); give another --output")
    return 0


def _convert(source: Path, target: Path, tied: bool) -> None:
    draft = target.with_name(f"{target.name}.converting")
    try:
        tensors = _independent(_load(source), tied)
        save_file(tensors, draft, metadata={"format": "pt"})
        _compare(tensors, draft, source)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    size = sum(tensor.nbytes for tensor in tensors.values())
    _tell(done=source.stat().st_size, file=target.name, names=sorted(tensors), size=size)


def _load(source: Path) -> dict[str, Tensor]:
    try:
        warnings.simplefilter("ignore")  # the library's remarks on old forms are of no use to who converts one
        try:
            found = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the form before PyTorch 1.6 cannot be mapped
            found = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise Refused(
            f"{source} holds more than tensors, or is damaged, so it is not read; choose another model"
        ) from None
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Refused(f"{source} is damaged ({said}); download the model again") from None
    if not isinstance(found, dict) or not found:
        raise Refused(f"{source} holds no weights by name; choose another model")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise Refused(f"{source}: {name!r} is no tensor, so this is a training checkpoint; choose another model")
    return found


def _ties(config: Path) -> bool:
    """Whether the model itself uses the input's table for its output."""
    try:
        return json.loads(config.read_bytes()).get("tie_word_embeddings") is True
    except (OSError, ValueError, AttributeError) as error:
        raise Refused(f"{config} is not valid JSON ({error}); download the model again") from None


def _independent(tensors: dict[str, Tensor], tied: bool) -> dict[str, Tensor]:
    """Tensors that share no memory, as the format wants them.

    An output layer that is another tensor is left out where the config ties them; anything else becomes a copy.
    """
    seen: set[int] = set()
    kept: dict[str, Tensor] = {}
    for name in sorted(tensors, key=lambda name: (name in HEADS, name)):
        tensor = tensors[name]
        storage = tensor.untyped_storage().data_ptr()
        shared = storage in seen and tensor.numel() > 0
        seen.add(storage)
        if tied and name in HEADS and _repeats(tensor, kept):
            continue
        kept[name] = tensor.clone(memory_format=torch.contiguous_format) if shared else tensor.contiguous()
    return kept


def _repeats(tensor: Tensor, others: dict[str, Tensor]) -> bool:
    return any(other.shape == tensor.shape and torch.equal(other, tensor) for other in others.values())


def _compare(tensors: dict[str, Tensor], written: Path, source: Path) -> None:
    with safe_open(written, framework="pt") as file:
        for name, tensor in tensors.items():
            if not torch.equal(file.get_tensor(name).view(torch.uint8), tensor.view(torch.uint8)):
                raise Refused(f"{source}: tensor {name!r} was not written as it was read; check the disk and try again")


def _tell(**said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config, *given = map(Path, sys.argv[1:])
    sys.exit(main(config, list(zip(given[::2], given[1::2], strict=True))))
