"""The shard's own metrics, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from textgen.shard.protocol import Done, Times, unpack_u32
from textgen.shard.runner import Outcome
from textgen.shard.slots import Slots

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 3, 10, 30)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """Written by the executor after each step; read by the ops app."""

    def __init__(self, slots: Slots, num_blocks: int) -> None:
        # When each series began: as many series again, and nobody's question.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        seconds = Histogram(
            "textgen_shard_step_seconds", "Time of a step by phase", ["phase"], buckets=_SECONDS, registry=registry
        )
        self._queue, self._forward, self._sample = (seconds.labels(phase) for phase in ("queue", "forward", "sample"))
        self._mask_wait = Histogram(
            "textgen_shard_mask_wait_seconds",
            "Time a step waits for grammar masks",
            buckets=_SECONDS,
            registry=registry,
        )
        self._step_tokens = Histogram(
            "textgen_shard_step_tokens", "Tokens run by a step", buckets=_TOKENS, registry=registry
        )
        self._steps = Counter("textgen_shard_steps", "Steps run", registry=registry)
        self._segments = Counter("textgen_shard_segments", "Segments run", registry=registry)
        self._tokens = Counter("textgen_shard_tokens", "Tokens run, prompt and output", registry=registry)
        self._sampled = Counter("textgen_shard_sampled_tokens", "Tokens sampled", registry=registry)
        self._failures = Counter("textgen_shard_failures", "Failed frames sent", ["kind"], registry=registry)
        Gauge(
            "textgen_shard_kv_blocks", "KV blocks (pages, where layers have windows) there are", registry=registry
        ).set(num_blocks)
        in_use = Gauge(
            "textgen_shard_kv_blocks_in_use",
            "KV blocks (pages, where layers have windows) that a sequence refers to",
            registry=registry,
        )
        in_use.set_function(slots.blocks_in_use)
        seated = Gauge("textgen_shard_slots_in_use", "Slots with a sequence", registry=registry)
        seated.set_function(slots.in_use)

    def observe(self, outcome: Outcome) -> None:
        """Count a step and what it answered."""
        self._observe_size(outcome.segments, outcome.tokens)
        if outcome.mask_wait is not None:
            self._mask_wait.observe(outcome.mask_wait)
        for frame in outcome.frames:
            if not isinstance(frame, Done):
                self.failure(frame.kind)
                continue
            self._observe_done(unpack_u32(frame.counts, "counts").size, frame.times)

    def observe_step(self, sequences: int, times: Times) -> None:
        """Count a step of a token for each sequence."""
        self._observe_size(sequences, sequences)
        self._observe_done(sequences, times)

    def _observe_size(self, segments: int, tokens: int) -> None:
        self._steps.inc()
        self._segments.inc(segments)
        self._tokens.inc(tokens)
        self._step_tokens.observe(tokens)

    def _observe_done(self, sampled: int, times: Times) -> None:
        self._sampled.inc(sampled)
        self._queue.observe(times.queue_ns * 1e-9)
        self._forward.observe(times.forward_ns * 1e-9)
        self._sample.observe(times.sample_ns * 1e-9)

    def failure(self, kind: str) -> None:
        self._failures.labels(kind).inc()

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
