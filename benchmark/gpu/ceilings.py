"""What the device reaches at most, measured beside what is held against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmark.gpu.places import Place
from benchmark.report import Row, number

OF_SHEET, OF_COPY = 0.8, 0.88  # what decoding is to reach: of the data sheet's bandwidth, or of a copy's
COPIED, SIZE = 1 << 30, 8192
REHEARSED, SMALL = 1 << 22, 128


@dataclass(frozen=True)
class Ceilings:
    """bandwidth: bytes a second that a large copy reads and writes. sheet: the data sheet's, where it is known. rate:
    operations a second of a product of large matrices in bfloat16."""

    bandwidth: float
    sheet: float | None
    rate: float

    def told(self) -> str:
        """In a sentence."""
        sheet = "" if self.sheet is None else f" of {number(self.sheet / 1e9)} by the data sheet"
        rate = f"products of bfloat16 {number(self.rate / 1e12)} TFLOP/s"
        return f"Copies reach {number(self.bandwidth / 1e9)} GB/s{sheet}, {rate}."

    def bandwidth_rows(self, case: str, metric: str, bytes_a_second: float, wanted: float | None) -> list[Row]:
        """Against the copy and the data sheet. wanted: the part of the data sheet's that is to be reached, or a tenth
        more of the copy's; the bar is on the one of which more is reached."""
        ours, theirs = bytes_a_second / 1e9, {"copy": self.bandwidth / 1e9}
        bars = {} if wanted is None else {"copy": wanted * OF_COPY / OF_SHEET}
        if self.sheet is not None:
            theirs["data sheet"] = self.sheet / 1e9
            bars |= {} if wanted is None else {"data sheet": wanted}
        barred = max(bars, key=lambda peer: ours / theirs[peer] / bars[peer], default=None)
        return [
            Row(case, metric, "GB/s", ours, peer, None, most, f"ratio >= {bars[peer]:.2f}" if peer == barred else None)
            for peer, most in theirs.items()
        ]


def measure_ceilings(place: Place) -> Ceilings:
    return Ceilings(measure_copy(place), place.sheet, measure_products(place))


def measure_copy(place: Place) -> float:
    source = torch.ones(REHEARSED if place.rehearsal else COPIED, dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(place, lambda: target.copy_(source))


def measure_products(place: Place) -> float:
    size = SMALL if place.rehearsal else SIZE
    a, b = (torch.randn(size, size, device=place.device).to(torch.bfloat16) for _ in range(2))
    return float(2 * size**3) / _fastest(place, lambda: a @ b)


def _fastest(place: Place, work: Callable[[], object]) -> float:
    """Seconds of the fastest of ten runs."""
    return min([place.seconds(work) for _ in range(12)][2:])
