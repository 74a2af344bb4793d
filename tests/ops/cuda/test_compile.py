"""Every kernel compiles for every architecture without a GPU, and takes no more of one than its form promises."""

from __future__ import annotations

import pytest
import torch

from textgen.models.spec import RouterSpec
from textgen.ops.cuda import experts, grouped, linear
from textgen.ops.cuda.attention_kernels import AttentionKernel, Shape, kernel_for
from textgen.ops.cuda.bricks import Kind
from textgen.ops.cuda.nvrtc import CompileError, Nvrtc, resources_of
from textgen.ops.cuda.source import Binary, Source

ELF = b"\x7fELF"
FLOAT, BFLOAT, HALF, INT8, FP8 = torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn


def norm(dtype: str, size: int, width: int, threads: int) -> Source:
    return Source.of("rms_norm", T=dtype, SIZE=size, WIDTH=width, ROW_THREADS=threads)


def attention(
    dtype: torch.dtype, dim: int, share: int, stored: torch.dtype | None = None, every: bool = False
) -> AttentionKernel:
    kernel = kernel_for(Shape(dtype, stored or dtype, dim, dim, share, 16, every, every, every), 227 << 10)
    assert kernel is not None
    return kernel


def latent(dtype: torch.dtype, share: int, stored: torch.dtype | None = None, kibibytes: int = 227) -> AttentionKernel:
    shape = Shape(dtype, stored or dtype, 576, 512, share, 16, False, False, False, latent=True)
    kernel = kernel_for(shape, kibibytes << 10)
    assert kernel is not None
    return kernel


def tile(shape: grouped.TileShape, dtype: torch.dtype) -> Source:
    """Whose last stage is not full, for many experts."""
    return grouped.grouped_source(shape, dtype, 4104, 256)


def few(kind: Kind, rows: int, experts: int = 0) -> Source:
    return linear.few_kernel(torch.bfloat16, kind, rows > 8, experts).source


def tiles(kind: Kind, rows: int, dtype: torch.dtype = torch.bfloat16, experts: int = 0) -> Source:
    return linear.tiles_kernel(dtype, kind, rows, 163 << 10, experts).source


INT4_ZEROS = Kind("INT4", 128, torch.float16, torch.uint8)
INT4_SMALL = Kind("INT4", 32, torch.float16, None)
INT4_MINIMA = Kind("INT4", 32, torch.float16, torch.float16)
MXFP4 = Kind("E2M1", 32, torch.bfloat16, None)
INT8_WEIGHTS = Kind("INT8", 0, torch.float32, None)
INT8_BLOCKS = Kind("INT8", 32, torch.float16, None)
FP8_WEIGHTS = Kind("E4M3", 128, torch.float32, None)

# That of CUDA 12, which comes with older wheels of torch, takes more registers for one of them.
OLD_COMPILER = (torch.version.cuda or "").startswith("12.")

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
    (Source.of("rotary", T="bf16", STORED="bf16", WIDTH=8, DIM=128), 96),
    (Source.of("rotary", T="float", STORED="float", WIDTH=1, DIM=20), 96),
    (Source.of("rotary", T="bf16", STORED="i8", WIDTH=8, DIM=128), 96),
    (Source.of("rotary", T="float", STORED="e4m3", WIDTH=4, DIM=64), 96),
    (Source.of("copy_rows", UNIT=16), 64),
    (Source.of("copy_rows", UNIT=1), 64),
    (Source.of("sample"), 64),
    (Source.of("shape"), 64),
    # Two blocks of 128 threads with 64 by 64 sums for each warp; five with few rows, bound by the memory.
    (tile(grouped.largest(227 << 10), torch.bfloat16), 255),
    (tile(grouped.largest(163 << 10), torch.float16), 255),
    (tile(grouped.largest(99 << 10), torch.bfloat16), 255),
    (tile(grouped.MIDDLE, torch.bfloat16), 128),
    (tile(grouped.FLAT, torch.bfloat16), 96),
    (tile(grouped.NARROW, torch.float16), 96),
    (tile(grouped.MIDDLE, torch.float32), 128),
    (tile(grouped.NARROW, torch.float32), 128),
    (experts.route_source(torch.float32, 256, RouterSpec(top_k=8, score="sigmoid")), 64),
    (experts.route_source(torch.bfloat16, 1024, RouterSpec(top_k=8, score="chosen")), 192 if OLD_COMPILER else 168),
    (Source.of("group_rows", THREADS=experts.SORTERS), 64),
    (Source.of("weighted_sum", T="bf16", WIDTH=8), 64),
    # Two blocks of 128 threads and more on a multiprocessor.
    (attention(FLOAT, 128, 4).source, 128),
    (attention(FLOAT, 128, 4, INT8).source, 255),
    (attention(BFLOAT, 128, 4).combine, 64),
    # Three, two with the largest heads.
    (attention(BFLOAT, 128, 4).source, 168),
    (attention(HALF, 64, 8, every=True).source, 168),
    (attention(BFLOAT, 256, 2).source, 255),
    (attention(BFLOAT, 128, 4, INT8).source, 168),
    (attention(HALF, 128, 8, FP8, every=True).source, 168),
    (attention(HALF, 256, 1, INT8).source, 255),
    # One of 256 threads, or two of 128.
    (latent(BFLOAT, 128).source, 255),
    (latent(BFLOAT, 128, INT8).source, 255),
    (latent(HALF, 16).source, 255),
    # Two blocks of 256 threads; one, where 16 rows meet scales of groups; three of 128 threads with minima.
    *((few(kind, 8), 128) for kind in (INT4_ZEROS, INT4_SMALL, FP8_WEIGHTS)),
    (few(INT4_MINIMA, 8), 168),
    (few(INT8_WEIGHTS, 16), 128),
    *((few(kind, 16), 255) for kind in (INT4_SMALL, INT4_MINIMA)),
    *((tiles(kind, 64), 128) for kind in (INT4_ZEROS, INT4_SMALL, INT4_MINIMA, INT8_WEIGHTS, FP8_WEIGHTS)),
    (tiles(INT4_ZEROS, 32, torch.float16), 128),
    # The same with 256 experts.
    (few(INT4_MINIMA, 8, 256), 168),
    *((few(kind, 8, 256), 128) for kind in (INT4_ZEROS, MXFP4, INT8_BLOCKS, FP8_WEIGHTS)),
    (few(INT8_WEIGHTS, 16, 256), 128),
    *((few(kind, 16, 256), 255) for kind in (INT4_MINIMA, MXFP4)),
    *(
        (tiles(kind, 64, experts=256), 128)
        for kind in (INT4_ZEROS, INT4_MINIMA, MXFP4, INT8_WEIGHTS, INT8_BLOCKS, FP8_WEIGHTS)
    ),
    (tiles(MXFP4, 32, torch.float16, 1024), 128),
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


@pytest.mark.parametrize("stored", [BFLOAT, INT8, FP8], ids=str)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_attention_has_room_on_the_smallest_multiprocessor(dim: int, stored: torch.dtype) -> None:
    """100 KiB of shared memory, one of them each block's own: a block for the largest heads, two for others."""
    for share in (1, 4, 16):
        blocks = 1 if dim == 256 else 2 if dim == 64 or stored != BFLOAT else 1
        assert (attention(BFLOAT, dim, share, stored).shared_bytes + 1024) * blocks <= 100 << 10
    for share in (16, 128):
        assert latent(BFLOAT, share, stored, 99).shared_bytes <= 99 << 10


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
