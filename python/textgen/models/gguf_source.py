"""Weights out of GGUF files: every type of block is turned into numbers as it is read, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from textgen.gguf.config import architecture_of
from textgen.gguf.index import Index, StoredTensor
from textgen.layers.weight import Part
from textgen.models.errors import ModelError
from textgen.models.families.common import Described
from textgen.models.names import LayerNames, Layout, WeightNames
from textgen.models.spec import DecoderSpec
from textgen.ops.pages import let_go
from textgen.quantization.blocks import KINDS, StoredBlocks

CHUNK = 2**20  # numbers that a thread turns at once: a few MB, whatever the tensor's size
DIRECT = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
UNREAD = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "attn_rot_embd.weight",
          "rotary_emb.inv_freq")  # what the configuration has of them  # fmt: skip
LATENT_UP = "attn_kv_b"  # which newer files have in two: keys, stored the other way round, and values

NAMES = LayerNames(
    attention_norm="attn_norm",
    attention_post_norm="post_attention_norm",
    query="attn_q",
    key="attn_k",
    value="attn_v",
    qkv="attn_qkv",
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
    query_down="attn_q_a",
    query_down_norm="attn_q_a_norm",
    query_up="attn_q_b",
    latent="attn_kv_a_mqa",
    latent_norm="attn_kv_a_norm",
    latent_up=LATENT_UP,
    output="attn_output",
    mlp_norm="ffn_norm",
    mlp_post_norm="post_ffw_norm",
    gate="ffn_gate",
    up="ffn_up",
    gate_up="ffn_up",
    down="ffn_down",
    sinks="attn_sinks.weight",
    router="ffn_gate_inp",
    router_correction="exp_probs_b.bias",
    expert_gate="ffn_gate_exps",
    expert_up="ffn_up_exps",
    expert_down="ffn_down_exps",
    shared_gate="ffn_gate_shexp",
    shared_up="ffn_up_shexp",
    shared_down="ffn_down_shexp",
    shared_switch="ffn_gate_inp_shexp",
)


def described_for(index: Index, described: Described) -> Described:
    """The model as its family describes it, with what a GGUF file stores in another way."""
    return Described(_spec(index, described.spec), _names(index))


def _spec(index: Index, spec: DecoderSpec) -> DecoderSpec:
    row = architecture_of(index.architecture, "blk.0.ffn_gate_inp.weight" in index.tensors)
    if row is None:
        raise ModelError(f"GGUF architecture {index.architecture!r} is not supported; start again from the GGUF file")
    attention = spec.attention
    if attention.qk_norm is not None:
        norm = replace(attention.qk_norm.norm, offset=0.0) if row.whole_norms else attention.qk_norm.norm
        weights = "rows" if attention.qk_norm.weights == "tensors" else attention.qk_norm.weights
        attention = replace(attention, qk_norm=replace(attention.qk_norm, norm=norm, weights=weights))
    if row.neighbours:
        turned = [None if at.rotary is None else replace(at.rotary, interleaved=True) for at in spec.layers]
        spec = spec.varied(rotary=turned)
    norm = replace(spec.norm, offset=0.0) if row.whole_norms else spec.norm
    return replace(spec, attention=attention, norm=norm)


def _names(index: Index) -> WeightNames:
    """All architectures have the same names; how much is fused, the tensors say."""

    def has(name: str) -> bool:
        return f"blk.0.{name}.weight" in index.tensors

    layout = Layout(
        qkv="blocks" if has("attn_qkv") else "separate",
        gate_up="separate" if has("ffn_gate") or has("ffn_gate_shexp") else "fused",
        experts="stacks",
    )
    layer = replace(NAMES, layout=layout)
    if not has("ffn_norm") and not has("post_ffw_norm") and has("post_attention_norm"):
        layer = replace(layer, mlp_norm="post_attention_norm")
    if has("attn_norm_2"):
        layer = replace(layer, attention_norm="attn_norm_2", mlp_norm="attn_norm")
    return WeightNames(
        prefix="",
        embedding="token_embd",
        positions="position_embd",
        embedding_norm="token_embd_norm",
        layers="blk.{}.",
        final_norm="output_norm",
        head="output",
        layer=layer,
    )


class GgufFiles:
    """The tensors of GGUF files (a `WeightSource`). Every refusal is a `ModelError` of one sentence."""

    def __init__(self, index: Index) -> None:
        self._tensors, self._read = index.tensors, set[str]()
        self._data = {file: _map(Path(file)) for file in {place.file for place in index.tensors.values()}}
        self._pool = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="weights")
        self._progress = tqdm(
            total=sum(place.nbytes for place in index.tensors.values()),
            desc="loading weights", unit="B", unit_scale=True, leave=False, disable=None,
        )  # fmt: skip

    def __enter__(self) -> GgufFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._progress.close()
        self._data.clear()

    def has(self, name: str) -> bool:
        return name in self._tensors

    def read(self, part: Part, into: Tensor) -> None:
        place = self._tensors.get(part.name)
        if place is None and part.name.endswith(f"{LATENT_UP}.weight"):
            self._read_latent(part, into)
            return
        if place is None:
            raise ModelError(f"the GGUF file has no tensor '{part.name}'; its metadata and its tensors disagree")
        expected = part.shape if part.stacked is None else (part.stacked, *part.shape)
        if _significant(place.shape) != _significant(expected):
            raise ModelError(
                f"{place.file}: tensor '{part.name}' has shape {place.shape}, its metadata asks for {expected}"
            )
        self._read.add(part.name)
        if len(part.shape) == 1:
            values = self._rows(place, 0, 1)[0]
            into.copy_(values[part.rows])
            self._progress.update(place.nbytes)
            return
        rows = range(part.shape[0])[part.rows]
        first = part.index * part.shape[0]
        step = max(CHUNK // part.shape[1], 1)

        def turn(start: int) -> int:
            # In a thread of its own, where the caller's inference mode does not reach.
            with torch.inference_mode():
                chosen = rows[start : start + step]
                values = self._rows(place, first + chosen.start, first + chosen.stop, chosen.step)
                into[start : start + len(chosen)].copy_(values[:, part.columns])
            return len(chosen)

        for count in self._each(turn, range(0, len(rows), step)):
            self._progress.update(count * place.row_bytes)

    def skip(self, part: Part) -> None:
        self._read.add(part.name)
        place = self._tensors.get(part.name)
        self._progress.update(0 if place is None else part.kept[0] * place.row_bytes)

    def read_blocks(self, part: Part) -> StoredBlocks | None:
        """See `BlockSource`: rows as they are stored, where whole rows of such blocks are asked for."""
        place = self._tensors.get(part.name)
        columns = range(part.shape[-1])[part.columns]
        whole = len(part.shape) == 2 and len(columns) == part.shape[1] and not part.transposed
        if (
            place is None
            or place.kind not in KINDS
            or not whole
            or _significant(place.shape) != _significant(part.stored)
        ):
            return None
        self._read.add(part.name)
        rows, size = range(part.shape[0])[part.rows], place.row_bytes
        first = place.offset + part.index * part.shape[0] * size
        data = self._data[place.file][first : first + part.shape[0] * size].reshape(-1, size)
        self._progress.update(len(rows) * size)
        found = np.ascontiguousarray(data[rows.start : rows.stop : rows.step])
        return StoredBlocks(place.kind, torch.from_numpy(found), mapped=rows.step == 1)

    def _read_latent(self, part: Part, into: Tensor) -> None:
        """Some rows of one head, of its key's or its value's: as if both were stored in one matrix, head after head."""
        rank = part.shape[1]
        keys, values = (part.name.replace("attn_kv_b", name) for name in ("attn_k_b", "attn_v_b"))
        heads, _, plain = self._stack(keys)
        _, value, _ = self._stack(values)
        head, first = divmod(part.rows.start, plain + value)
        if first < plain:
            whole = torch.empty(rank, plain, dtype=into.dtype, device=into.device)
            self.read(Part(keys, (rank, plain), index=head, stacked=heads), whole)
            into.copy_(whole.t()[first : first + len(into)])
        else:
            rows = slice(first - plain, first - plain + len(into))
            self.read(Part(values, (value, rank), rows, index=head, stacked=heads), into)

    def _stack(self, name: str) -> tuple[int, int, int]:
        """The shape of a tensor of three dimensions."""
        match self._tensors.get(name):
            case StoredTensor(shape=(heads, rows, columns)):
                return heads, rows, columns
        raise ModelError(f"the GGUF file has no tensor '{name}' of a matrix for each head; download it again")

    def _each(self, turn: object, starts: range) -> Iterator[int]:
        assert callable(turn)
        if len(starts) == 1:
            return iter([turn(0)])
        return self._pool.map(turn, starts)

    def _rows(self, place: StoredTensor, first: int, end: int, step: int = 1) -> Tensor:
        """[rows, columns]: some rows of the tensor seen as one matrix."""
        size = place.row_bytes
        data = self._data[place.file][place.offset + first * size : place.offset + end * size]
        rows: NDArray[np.uint8] = data.reshape(-1, size)[::step]
        try:
            if place.kind in DIRECT:
                return torch.from_numpy(np.array(rows)).view(DIRECT[place.kind])
            return torch.from_numpy(dequantize(rows, GGMLQuantizationType[place.kind]))
        except NotImplementedError:
            raise ModelError(
                f"{place.file}: blocks of type {place.kind} cannot be read by the installed gguf package; give another "
                "file of the model"
            ) from None
        finally:
            let_go(data)

    def read_bytes(self, name: str, shape: tuple[int, ...], index: int) -> Tensor:
        raise ModelError(f"GGUF files have no bytes '{name}'")

    def refuse_unread(self) -> None:
        """What the model has and its family does not know would be missing in every answer."""
        left = [name for name in self._tensors if name not in self._read and not name.endswith(UNREAD)]
        if left:
            raise ModelError(
                f"{self._tensors[left[0]].file}: tensor '{left[0]}' is not part of this architecture as it is known "
                "here; give the model in Hugging Face format"
            )


def _map(path: Path) -> NDArray[np.uint8]:
    try:
        return np.memmap(path, np.uint8, "c")  # nobody writes, but torch has no tensors that cannot be written
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without dimensions of one: a row alone is stored as a vector."""
    return tuple(size for size in shape if size != 1)
