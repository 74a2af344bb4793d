"""A page of `/metrics`, read by Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Metrics:
    """Samples by name; each with its labels and value."""

    kinds: Mapping[str, str]
    samples: Mapping[str, list[tuple[dict[str, str], float]]]

    @classmethod
    def parse(cls, page: str) -> Metrics:
        declared = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
        kinds: dict[str, str] = {}
        samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(page):
            kinds[family.name] = family.type
            for sample in family.samples:
                # The parser adds `_total` to counters without it, which those of TGI are.
                added = family.type == "counter" and family.name in declared
                name = sample.name.removesuffix("_total") if added else sample.name
                samples.setdefault(name, []).append((sample.labels, sample.value))
        return cls(kinds, samples)

    def has(self, name: str) -> bool:
        return name in self.samples

    def value(self, name: str, **labels: str) -> float:
        """The sum over every sample of this name with at least these labels; 0 when there is none."""
        return sum(value for own, value in self.samples.get(name, []) if labels.items() <= own.items())
