"""Every kernel compiles for every architecture without a GPU, and takes no more of one than its form promises."""

from __future__ import annotations

import pytest
import torch

from textgen.ops import AttentionForm
from textgen.ops.cuda import attention, linear
from textgen.ops.cuda.bricks import Kind
from textgen.ops.cuda.nvrtc import CompileError, Nvrtc, resources_of
from textgen.ops.cuda.source import Binary, Source

ELF = b"\x7fELF"
PLAIN = AttentionForm(1.0)
EVERY = AttentionForm(1.0, 2.0, torch.zeros(1), torch.zeros(1), torch.zeros(1, 1))


def norm(dtype: str, size: int, width: int, threads: int) -> Source:
    return Source.of("rms_norm", T=dtype, SIZE=size, WIDTH=width, ROW_THREADS=threads)


def decode(dtype: torch.dtype, dim: int, group: int, form: AttentionForm = PLAIN) -> Source:
    return attention.decode_source(torch.empty(1, group, dim, dtype=dtype), form, 16, group)


def prompt(dtype: torch.dtype, dim: int, group: int, form: AttentionForm = PLAIN) -> Source:
    return attention.prompt_source(torch.empty(1, group, dim, dtype=dtype), form, 16, group)


def few(kind: Kind, rows: int) -> Source:
    return linear.few_kernel(torch.bfloat16, kind, rows > 8).source


def tiles(kind: Kind, rows: int, dtype: torch.dtype = torch.bfloat16) -> Source:
    return linear.tiles_kernel(dtype, kind, rows, 163 << 10).source


INT4 = Kind("INT4", 128, torch.float16, zeros=True)
INT4_SMALL = Kind("INT4", 32, torch.float16, zeros=False)
INT8 = Kind("INT8", 0, torch.float32, zeros=False)
FP8 = Kind("E4M3", 128, torch.float32, zeros=False)

# Source, and the registers that let a multiprocessor hold as many threads as the kernel is made for.
PROMISES = [
    (norm("bf16", 4096, 8, 128), 64),
    (norm("f16", 16384, 8, 512), 64),
    (norm("float", 2050, 1, 1024), 64),
    (norm("bf16", 32768, 8, 1024), 64),  # the longest
    (norm("bf16", 128, 8, 32), 64),
    (Source.of("activate", T="bf16", WIDTH=8, KIND="SILU", GATED=1), 64),
    (Source.of("activate", T="f16", WIDTH=8, KIND="GELU_TANH", GATED=1), 64),
    (Source.of("activate", T="float", WIDTH=4, KIND="CLAMPED_SILU", GATED=1), 64),
    (Source.of("activate", T="bf16", WIDTH=1, KIND="GELU", GATED=0), 64),
    (Source.of("rotary", T="bf16", WIDTH=8, DIM=128), 96),
    (Source.of("rotary", T="float", WIDTH=1, DIM=20), 96),
    (Source.of("copy_rows", UNIT=16), 64),
    (Source.of("copy_rows", UNIT=1), 64),
    (Source.of("sample"), 64),
    (Source.of("shape"), 64),
    # Three blocks and more on a multiprocessor up to four heads, two with more.
    (decode(torch.bfloat16, 128, 1), 128),
    (decode(torch.bfloat16, 128, 4), 168),
    (decode(torch.float16, 128, 8), 255),
    (decode(torch.bfloat16, 64, 8, EVERY), 255),
    (decode(torch.bfloat16, 80, 4), 168),
    (decode(torch.float16, 256, 8), 255),
    # Three blocks of 128 threads, two with the largest heads.
    (prompt(torch.bfloat16, 128, 4), 168),
    (prompt(torch.float16, 80, 1, EVERY), 168),
    (prompt(torch.bfloat16, 256, 2), 255),
    # Two blocks of 256 threads; one, where 16 rows meet scales of groups.
    *((few(kind, 8), 128) for kind in (INT4, INT4_SMALL, FP8)),
    (few(INT8, 16), 128),
    (few(INT4_SMALL, 16), 255),
    *((tiles(kind, 64), 128) for kind in (INT4, INT4_SMALL, INT8, FP8)),
    (tiles(INT4, 32, torch.float16), 128),
]


@pytest.mark.parametrize(("source", "registers"), PROMISES, ids=lambda value: str(value))
def test_compiles_without_spills(
    nvrtc: Nvrtc, source: Source, registers: int, caplog: pytest.LogCaptureFixture
) -> None:
    binary = nvrtc.compile(source)
    assert not caplog.records, "a warning of the compiler's"
    assert binary.code.startswith(ELF)
    assert source.name in binary.resources
    for name, resources in binary.resources.items():
        assert resources.spill_bytes == 0 and resources.stack_bytes == 0, name
        assert resources.registers <= registers, name
        assert resources.shared_bytes <= 48 << 10, name


def test_an_error_has_the_compilers_log(any_nvrtc: Nvrtc) -> None:
    with pytest.raises(CompileError, match=r"(?s)copy_rows\.cu \(UNIT=3\) does not compile for sm_.*incomplete type"):
        any_nvrtc.compile(Source.of("copy_rows", UNIT=3))


def test_spills_are_told(any_nvrtc: Nvrtc) -> None:
    """The promise above can fail: a row of 65,536 numbers does not fit into the registers of 1,024 threads."""
    resources = any_nvrtc.compile(norm("bf16", 65536, 8, 1024)).resources["rms_norm"]
    assert resources.spill_bytes > 0


def test_an_architecture_that_nobody_knows_is_refused(any_nvrtc: Nvrtc) -> None:
    with pytest.raises(ValueError, match="does not compile for sm_35; it knows .*sm_90"):
        Nvrtc("sm_35")


def test_a_log_of_another_form_is_refused() -> None:
    with pytest.raises(CompileError, match="another form"):
        resources_of("ptxas info    : Compiling entry function 'k' for 'sm_80'\nptxas info    : fine")


def test_an_empty_binary_has_no_resources() -> None:
    assert Binary(b"", resources_of("")).resources == {}
