"""From --model-id to facts, and what is said about folders that cannot be served."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.folders import CONFIG, TENSORS, make_folder, safetensors
from textgen.launcher import model as module
from textgen.launcher.errors import ModelError
from textgen.launcher.model import HubOptions, resolve

COMMIT = "5f0a" * 10


def refusal(model_id: str | None) -> str:
    with pytest.raises(ModelError) as caught:
        resolve(model_id)
    assert caught.value.exit_code == 3
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_a_folder_is_read_without_its_tensors(tmp_path: Path) -> None:
    model = resolve(str(make_folder(tmp_path / "m", dtype="BF16")))
    assert model.checkpoint.parameters == 100 * 64 + 64
    assert model.checkpoint.dtype == "bfloat16"
    assert (model.spec.num_layers, model.spec.num_kv_heads, model.spec.head_dim) == (3, 2, 16)
    assert (model.name, model.built_in) == (str(tmp_path / "m"), False)


def test_a_sharded_checkpoint_adds_up(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    files = {f"model-{index}.safetensors": {name: shape} for index, (name, shape) in enumerate(TENSORS.items())}
    for name, tensors in files.items():
        (folder / name).write_bytes(safetensors(tensors))
    index = {"weight_map": {tensor: name for name, tensors in files.items() for tensor in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert resolve(str(folder)).checkpoint.parameters == 100 * 64 + 64


def test_no_model_id_means_the_built_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUILT_IN", tmp_path / "none")
    assert "no built-in model" in refusal(None)
    monkeypatch.setattr(module, "BUILT_IN", make_folder(tmp_path / "m"))
    model = resolve(None)
    assert (model.built_in, model.name) == (True, "textgen-demo")


@pytest.mark.parametrize("model_id", ["gpt2", "org/model", "Org-1/Model.v2"])
def test_a_name_that_is_no_folder_is_one_of_the_hub(
    model_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    sentence = refusal(model_id)
    assert f"{model_id} at main is not in {tmp_path}" in sentence
    assert ("there is no such folder" in sentence) == ("/" not in model_id)


def test_a_snapshot_of_the_hub_knows_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    store = tmp_path / "cache" / "models--org--model"
    (store / "snapshots").mkdir(parents=True)
    folder = make_folder(store / "snapshots" / COMMIT)
    (store / "refs").mkdir()
    (store / "refs" / "main").write_text(COMMIT)
    model = resolve("org/model", HubOptions(cache=str(tmp_path / "cache")))
    assert (model.folder, model.name, model.commit) == (folder, "org/model", COMMIT)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="is not in"):
        resolve("org/model", HubOptions(cache=str(tmp_path / "cache")))


@pytest.mark.parametrize(
    "model_id", ["org/model.gguf", "./model.gguf", "model.gguf", "org/:Q4_K_M", "org/model/../x.gguf/y"]
)
def test_a_gguf_file_that_is_not_there(model_id: str) -> None:
    sentence = refusal(model_id)
    assert "there is no such folder or file" in sentence
    assert "ORG/NAME:Q4_K_M" in sentence


@pytest.mark.parametrize("wanted", ["org/model:Q4_K_M", "org/model/sub/model-q4_k_m.gguf", "org/model:model-Q8_0"])
def test_a_gguf_file_of_the_cache(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that only look like some get as far as to their reader, which says which of them was chosen."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    store = tmp_path / "cache" / "models--org--model"
    snapshot = store / "snapshots" / COMMIT
    (snapshot / "sub").mkdir(parents=True)
    (store / "refs").mkdir()
    (store / "refs" / "main").write_text(COMMIT)
    for name in ("sub/model-q4_k_m.gguf", "model-Q8_0.gguf", "mmproj-model-Q4_K_M.gguf"):
        (snapshot / name).write_bytes(b"none")
    with pytest.raises(ModelError) as caught:
        resolve(wanted, HubOptions(cache=str(tmp_path / "cache")))
    chosen = "model-Q8_0.gguf" if "Q8" in wanted else "sub/model-q4_k_m.gguf"
    sentence = f"--model-id {wanted}: {snapshot / chosen} is no GGUF file; give one, or a folder in Hugging Face format"
    assert str(caught.value) == sentence


@pytest.mark.parametrize("model_id", ["./missing", "/no/such/folder", "~/none-such"])
def test_a_missing_folder(model_id: str) -> None:
    assert "there is no such folder" in refusal(model_id)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    file = make_folder(tmp_path / "m") / "model.safetensors"
    assert f"{file} is no GGUF file; give one, or a folder" in refusal(str(file))


def damage(name: str, text: str | bytes | None) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return act


def header(text: bytes, data: int = 0) -> bytes:
    return struct.pack("<Q", len(text)) + text + bytes(data)


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DAMAGES: list[tuple[Callable[[Path], None], list[str]]] = [
    (damage("config.json", None), ["no config.json"]),
    (damage("config.json", "{"), ["config.json", "not valid JSON"]),
    (damage("config.json", "[1]"), ["config.json", "object"]),
    (damage("config.json", b"\xff\xfe"), ["config.json"]),
    (damage("config.json", "[" * 100_000), ["config.json"]),
    (damage("config.json", json.dumps(CONFIG | {"architectures": ["BertModel"]})), ["BertModel", "LlamaForCausalLM"]),
    (damage("config.json", json.dumps(CONFIG | {"hidden_size": -1})), ["hidden_size", "-1"]),
    (damage("tokenizer.json", None), ["no tokenizer.json"]),
    (damage(WEIGHTS, None), ["neither model.safetensors nor"]),
    (damage(WEIGHTS, b""), ["model.safetensors is damaged", "cut off", "download"]),
    (damage(WEIGHTS, struct.pack("<Q", 2**63) + b"{}"), ["is damaged", "cut off"]),
    (damage(WEIGHTS, header(b"not json")), ["is damaged", "header"]),
    (damage(WEIGHTS, header(b"[]")), ["is damaged", "header"]),
    (damage(WEIGHTS, header(b"{}")), ["holds no weights"]),
    (damage(WEIGHTS, header(b'{"a": {"dtype": "F32"}}')), ["is damaged", "'a'"]),
    (damage(WEIGHTS, header(b'{"a":{"dtype":"I4","shape":[2],"data_offsets":[0,1]}}')), ["type I4", "unquantized"]),
    (damage(WEIGHTS, header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', 4)), ["disagree"]),
    (damage(WEIGHTS, header(b'{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', 8)), ["is damaged"]),
    (damage(WEIGHTS, safetensors(TENSORS)[:-10]), ["is damaged", "ends before tensor 'model.norm.weight'"]),
]  # fmt: skip


@pytest.mark.parametrize(("act", "parts"), DAMAGES, ids=range(len(DAMAGES)))
def test_damaged_folders_are_named_with_the_file(act: Callable[[Path], None], parts: list[str], tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    act(folder)
    sentence = refusal(str(folder))
    assert all(part in sentence for part in parts), sentence
    assert str(folder) in sentence


@pytest.mark.parametrize(
    ("index", "part"),
    [
        ("{", "is damaged"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "outside its folder"),
        ('{"weight_map": {"a": "model-2.safetensors"}}', "model-2.safetensors is missing"),
        ('{"weight_map": {}}', "holds no weights"),
    ],
)
def test_damaged_indexes(index: str, part: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(index)
    assert part in refusal(str(folder))
