"""`.bin` to safetensors: the same numbers, no code run, nothing half written."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.hub.mock_hub import MockHub, Repo
from tests.hub.repos import text_files
from tests.hub.test_commands import start
from tests.models.tiny import make_model
from textgen.hub import convert as module
from textgen.hub import convert_child
from textgen.hub.convert import convert
from textgen.hub.errors import HubError
from textgen.hub.progress import Progress
from textgen.models.load import load_model
from textgen.ops import select_ops
from textgen.parallel import Parallel

BIN, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
TENSORS = {
    "a.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b.weight": torch.tensor([float("nan"), -0.0, 1.5], dtype=torch.bfloat16),
    "c.bias": torch.empty(0, dtype=torch.float16),
}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's work in this process, since importing torch takes longer than any of these tests; one of them starts
    the real one."""

    def run(folder: Path, sources: list[Path], targets: list[Path]) -> Iterator[bytes]:
        out = io.StringIO()
        with redirect_stdout(out):
            convert_child.main(folder / "config.json", list(zip(sources, targets, strict=True)))
        yield from out.getvalue().encode().splitlines()

    monkeypatch.setattr(module, "in_child", run)


def folder_with(folder: Path, files: dict[str, object], **config: object) -> Path:
    folder.mkdir()
    for name, data in text_files(**config).items():
        (folder / name).write_bytes(data)
    for name, tensors in files.items():
        torch.save(tensors, folder / name)
    return folder


def same(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left.contiguous().view(torch.uint8), right.view(torch.uint8))


def listing(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.usefixtures("here")
def test_the_same_numbers(tmp_path: Path, progress: Progress, said: list[str]) -> None:
    folder = folder_with(tmp_path / "m", {BIN: TENSORS})
    assert convert(folder, None, progress) == folder
    found = load_file(folder / "model.safetensors")
    assert set(found) == set(TENSORS)
    assert all(same(TENSORS[name], tensor) for name, tensor in found.items())
    (sentence,) = said
    assert sentence.startswith(f"converted {folder}")
    with pytest.raises(HubError, match="already"):
        convert(folder, None, progress)


@pytest.mark.usefixtures("here")
def test_several_files_and_another_folder(tmp_path: Path, progress: Progress) -> None:
    parts = {
        f"pytorch_model-0000{n}-of-00002.bin": {name: TENSORS[name]} for n, name in ((1, "a.weight"), (2, "b.weight"))
    }
    folder = folder_with(tmp_path / "m", dict(parts))
    weight_map = {next(iter(tensors)): name for name, tensors in parts.items()}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    before = listing(folder)
    out = convert(folder, tmp_path / "out", progress)
    assert listing(folder) == before
    names = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    assert listing(out) == set(text_files()) | names | {"model.safetensors.index.json"}
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == names
    assert index["metadata"]["total_size"] == 12 * 4 + 3 * 2
    for name, file in index["weight_map"].items():
        assert same(TENSORS[name], load_file(out / file)[name])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("zipped", [True, False])
def test_both_forms_of_the_format(zipped: bool, tmp_path: Path, progress: Progress) -> None:
    folder = folder_with(tmp_path / "m", {})
    torch.save({"a": TENSORS["a.weight"]}, folder / BIN, _use_new_zipfile_serialization=zipped)
    convert(folder, None, progress)
    assert same(TENSORS["a.weight"], load_file(folder / "model.safetensors")["a"])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("tied", [True, False])
def test_shared_tensors(tied: bool, tmp_path: Path, progress: Progress) -> None:
    table = torch.arange(20, dtype=torch.float32).reshape(5, 4)
    shared = {"lm_head.weight": table, "model.embed_tokens.weight": table, "slice": table[1:3], "turned": table.T}
    folder = folder_with(tmp_path / "m", {BIN: shared}, tie_word_embeddings=tied)
    convert(folder, None, progress)
    found = load_file(folder / "model.safetensors")
    assert set(found) == set(shared) - ({"lm_head.weight"} if tied else set())
    assert all(torch.equal(shared[name], tensor) for name, tensor in found.items())


@pytest.mark.usefixtures("here")
def test_a_tied_model_is_what_it_was(tmp_path: Path, progress: Progress) -> None:
    """The whole way: Transformers' weights as `.bin`, converted, and Transformers again."""
    folder = tmp_path / "m"
    before = make_model(folder, tie_word_embeddings=True).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(before, folder / BIN)
    convert(folder, None, progress)
    after = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert "lm_head.weight" in before
    assert before.keys() == after.keys()
    assert all(same(before[name], tensor) for name, tensor in after.items())
    load_model(folder, torch.float32, torch.device("cpu"), Parallel(), select_ops())


class Bomb:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_never_run(zipped: bool, tmp_path: Path, progress: Progress) -> None:
    folder = folder_with(tmp_path / "m", {})
    torch.save({"a": Bomb(tmp_path / "hit")}, folder / BIN, _use_new_zipfile_serialization=zipped)
    before = listing(folder)
    with pytest.raises(HubError, match="holds more than tensors"):
        convert(folder, None, progress)
    assert not (tmp_path / "hit").exists()
    assert listing(folder) == before
    torch.load(folder / BIN, weights_only=False)
    assert (tmp_path / "hit").exists(), "the bomb was none"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "is damaged"),
        (b"no pickle", "holds more than tensors, or is damaged"),
        (pickle.dumps([1, 2]), "damaged|no weights"),
    ],
)
def test_damaged_files(data: bytes, part: str, tmp_path: Path, progress: Progress) -> None:
    folder = folder_with(tmp_path / "m", {})
    (folder / BIN).write_bytes(data)
    with pytest.raises(HubError, match=part):
        convert(folder, None, progress)
    assert not (folder / "model.safetensors").exists()


@pytest.mark.usefixtures("here")
def test_what_is_no_model(tmp_path: Path, progress: Progress) -> None:
    folder = folder_with(tmp_path / "m", {BIN: {"epoch": 3, "state": {"a": TENSORS["a.weight"]}}})
    with pytest.raises(HubError, match="'epoch' is no tensor"):
        convert(folder, None, progress)
    (folder / BIN).unlink()
    with pytest.raises(HubError, match="nothing to convert"):
        convert(folder, None, progress)
    (folder / "config.json").unlink()
    with pytest.raises(HubError, match="no config.json"):
        convert(folder, None, progress)


@pytest.mark.usefixtures("here")
def test_a_second_file_that_fails_takes_the_first_with_it(tmp_path: Path, progress: Progress) -> None:
    folder = folder_with(tmp_path / "m", {"1.bin": {"a": TENSORS["a.weight"]}})
    (folder / "2.bin").write_bytes(b"x")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "1.bin", "b": "2.bin"}}))
    before = listing(folder)
    with pytest.raises(HubError):
        convert(folder, None, progress)
    assert listing(folder) == before


@pytest.mark.parametrize(
    ("command", "part"),
    [(["sh", "-c", "kill -9 $$"], "ended by SIGKILL, most likely for want of memory"), (["false"], "exit code 1")],
)
def test_a_child_that_is_lost(
    command: list[str], part: str, tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMAND", command)
    with pytest.raises(HubError, match=part):
        convert(folder_with(tmp_path / "m", {BIN: TENSORS}), None, progress)


@pytest.mark.usefixtures("here")
def test_too_little_room(tmp_path: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(HubError, match="10 bytes are free"):
        convert(folder_with(tmp_path / "m", {BIN: TENSORS}), None, progress)


def test_from_the_hub(mock: MockHub, environment: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / BIN)
    mock.repos["test/old"] = Repo(text_files() | {BIN: (tmp_path / BIN).read_bytes(), "tf_model.h5": b"x"})
    out = tmp_path / "out"
    done: subprocess.CompletedProcess[str] = start(environment(), "convert", "test/old", "--output", str(out), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"folder": str(out)}
    assert listing(out) == set(text_files()) | {"model.safetensors"}
    assert "tf_model.h5" not in mock.asked()
    assert start(environment(), "convert", "test/old").returncode == 3
