"""flash-attn behind the seam of attention: what its functions are asked is what the reference attends to. The functions
are in the place of the package's, written from its documentation in plain torch."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from textgen.ops import AttentionForm
from textgen.ops.cuda import choice, flash
from textgen.ops.cuda.choice import OpsMissing, choose_ops
from textgen.ops.cuda.device import DriverError
from textgen.ops.cuda.flash import FlashMissing, FlashOps, find_flash
from textgen.ops.cuda.ops import CudaOps

from ..cpu.test_attention import Case
from .host_device import HostDevice
from .test_attention import segments

WITHIN = {torch.bfloat16: 2**-6, torch.float16: 2**-9}


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: tuple[int, int], cap: float, slopes: Tensor | None
) -> Tensor:
    """One sequence, whose queries are its last tokens: [tokens, heads, dim] over [context, kv_heads, dim]."""
    share = query.shape[1] // key.shape[1]
    key, value = (x.float().repeat_interleave(share, dim=1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    at = torch.arange(len(query))[:, None] + len(key) - len(query)
    back = at - torch.arange(len(key))
    if slopes is not None:
        scores = scores - slopes[:, None, None] * back.abs()
    hidden = back < 0
    if window[0] >= 0:
        hidden |= back > window[0]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    *, softmax_scale: float, causal: bool, window_size: tuple[int, int], softcap: float, alibi_slopes: Tensor | None,
    block_table: Tensor,
) -> Tensor:  # fmt: skip
    lengths = (cu_seqlens_k[1:] - cu_seqlens_k[:-1]).to(torch.int32)
    assert max_seqlen_k == int(lengths.max()) and k.shape[1] % 256 == 0
    return paged(q, k, v, cu_seqlens_q, lengths, max_seqlen_q, block_table, softmax_scale, causal, window_size, softcap,
                 alibi_slopes)  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, cache_seqlens: Tensor, page_table: Tensor, cu_seqlens_q: Tensor,
    max_seqlen_q: int, softmax_scale: float, causal: bool, window_size: tuple[int, int], softcap: float,
) -> Tensor:  # fmt: skip
    return paged(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, max_seqlen_q, page_table, softmax_scale, causal,
                 window_size, softcap, None)  # fmt: skip


def paged(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, lengths: Tensor, longest: int, tables: Tensor, scale: float,
    causal: bool, window: tuple[int, int], cap: float, slopes: Tensor | None,
) -> Tensor:  # fmt: skip
    assert causal and starts.dtype == lengths.dtype == tables.dtype == torch.int32
    assert longest == int((starts[1:] - starts[:-1]).max()) and int(starts[-1]) == len(q)
    out = []
    for index, length in enumerate(lengths.tolist()):
        pages = tables[index, : -(-length // k.shape[1])].long()
        own = [x[pages].flatten(0, 1)[:length] for x in (k, v)]
        out.append(attend(q[starts[index] : starts[index + 1]], own[0], own[1], scale, window, cap, slopes))
    return torch.cat(out)


def install(monkeypatch: pytest.MonkeyPatch, version: int | None) -> None:
    """`version` of the package; None: none."""
    functions = {2: ("flash_attn", flash_attn_varlen_func), 3: ("flash_attn_interface", flash_attn_with_kvcache)}

    def import_module(name: str) -> Any:
        if version is None or functions[version][0] != name:
            raise ModuleNotFoundError(f"No module named {name!r}")
        module = ModuleType(name)
        setattr(module, functions[version][1].__name__, functions[version][1])
        return module

    monkeypatch.setattr(flash, "import_module", import_module)


FORMS = {"plain": {}, "soft cap": {"soft_cap": 5.0}, "slopes": {"slopes": torch.linspace(0.1, 0.8, 4)}}


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("version", [2, 3])
def test_it_attends_as_the_reference(
    rng: random.Random,
    device: HostDevice,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    kind: str,
    window: int | None,
) -> None:
    install(monkeypatch, version)
    dtype, block = rng.choice(list(WITHIN)), 256 if version == 2 else 16
    ops = FlashOps(device, find_flash(block, dtype))
    form = AttentionForm(0.2, **FORMS[kind])  # type: ignore[arg-type]
    case = Case(rng, dtype, (4, 2), (64, 64), segments(rng, 4, 60), block, form, window)
    query = case.query.view(-1, 4, 64)
    got = ops.attention(case.layout, window, case.keys)(
        query, case.new_keys, case.new_values, case.keys, case.values, form
    )
    torch.testing.assert_close(got.float(), case.expected(torch.float32), rtol=WITHIN[dtype], atol=WITHIN[dtype])
    native = version == 3 and kind == "slopes"  # which FA3 has not
    assert bool(device.launches) == native


def test_what_the_package_has_not_is_left_to_the_kernels(
    rng: random.Random, device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, 3)
    form = AttentionForm(0.2, sinks=torch.randn(4))
    case = Case(rng, torch.float16, (4, 2), (64, 64), segments(rng, 3, 40), 16, form, None)
    ops = FlashOps(device, find_flash(16, torch.float16))
    query = case.query.view(-1, 4, 64)
    got = ops.attention(case.layout, None, case.keys)(
        query, case.new_keys, case.new_values, case.keys, case.values, form
    )
    torch.testing.assert_close(got.float(), case.expected(torch.float32), rtol=2**-9, atol=2**-9)
    assert device.launches


@pytest.mark.parametrize(
    ("version", "block", "dtype", "sentence"),
    [
        (None, 256, torch.float16, "pip install flash-attn"),
        (2, 16, torch.float16, "--block-size 256"),
        (3, 16, torch.float32, "bfloat16 and float16"),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, version: int | None, block: int, dtype: torch.dtype, sentence: str
) -> None:
    install(monkeypatch, version)
    with pytest.raises(FlashMissing, match=sentence):
        find_flash(block, dtype)


def test_each_choice_is_checked(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, None)
    monkeypatch.setattr(choice, "CudaDevice", lambda index: device)
    assert type(choose_ops("auto", 0, torch.float16, 16)[0]) is CudaOps
    assert choose_ops("torch", 0, torch.float16, 16)[1] is None
    with pytest.raises(OpsMissing, match="flash_attn is not there"):
        choose_ops("flash-attn", 0, torch.float16, 16)
    install(monkeypatch, 3)
    assert type(choose_ops("flash-attn", 0, torch.float16, 16)[0]) is FlashOps

    def missing(index: int) -> None:
        raise DriverError("CUDA's bindings are missing; pip install cuda-bindings")

    monkeypatch.setattr(choice, "CudaDevice", missing)
    with pytest.raises(OpsMissing, match="--attention native: .* pip install cuda-bindings; or use --attention torch"):
        choose_ops("native", 0, torch.float16, 16)
    assert not caplog.records
    assert choose_ops("auto", 0, torch.float16, 16)[1] is None
    assert "torch runs every operation" in caplog.text
