"""What running a model by Transformers' own modelling takes, with an encoder and without.

Its attention function and its masks are replaced by ours, which do what the pass that is running wants of them; of the
whole model's head is asked for what the base's hidden states give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from textgen.models.errors import ModelError
from textgen.models.spec import DecoderSpec

Pass = TypeVar("Pass")


class Running(Generic[Pass]):
    """The pass of a model that is running in this thread."""

    def __init__(self, name: str) -> None:
        self._now: ContextVar[Pass | None] = ContextVar(name, default=None)

    def get(self) -> Pass | None:
        return self._now.get()

    @contextmanager
    def during(self, pass_: Pass) -> Iterator[None]:
        token = self._now.set(pass_)
        try:
            yield
        finally:
            self._now.reset(token)


@dataclass(frozen=True, slots=True)
class Seen:
    """In place of a mask: what made it, and the window it was made with."""

    function: Callable[..., Tensor] | None
    window: int | None

    def must_be_causal(self) -> None:
        """Each token sees itself and those before it within the window, or `ModelError`."""
        if self.function is None:
            return
        reach, zero = self.window or 32, torch.tensor(0)
        for at in (0, reach - 1, reach, 2 * reach + 1):
            keys = torch.arange(at + 3)
            wanted = keys <= at
            if self.window is not None:
                wanted &= keys > at - self.window
            if not torch.equal(self.function(zero, zero, torch.tensor(at), keys).expand(len(keys)).bool(), wanted):
                raise ModelError("its tokens see others than those before them, or than those of a window")


def mask(mask_function: Callable[..., Tensor], local_size: int | None = None, **_: Any) -> Seen:
    """What Transformers calls instead of making a mask."""
    return Seen(mask_function, local_size)


def load_whole(
    auto: Any, folder: Path, dtype: torch.dtype, device: torch.device, name: str, attention: Any, trust: bool
) -> Any:
    """The folder's model in Transformers, with our attention under that name. Raises `ModelError`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    try:
        loaded = auto.from_pretrained(
            folder, dtype=dtype, attn_implementation=name, local_files_only=True, use_safetensors=True,
            trust_remote_code=trust,
        )  # fmt: skip
    except Exception as error:  # of a library, and of code that came with the model
        raise ModelError(f"{folder}: Transformers cannot load the model ({line(error)})") from None
    return loaded.to(device).eval()


class Headed:
    """A whole model, its part below the head replaced by `forward`."""

    def __init__(self, whole: Any, below: Any, name: str) -> None:
        self.whole, self.own_forward, self._name = whole, below.forward, name
        self._given: Tensor | None = None  # hidden states that stand for the part's, while the head runs alone
        below.forward = self._forward

    def logits(self, hidden: Tensor, **inputs: Any) -> Tensor:
        """[rows, vocab] float32 from rows of `hidden`, by the whole model's own last steps."""
        self._given = hidden[None]
        try:
            logits: Tensor = self.whole(**inputs, use_cache=False).logits[0]
        finally:
            self._given = None
        return logits.float()

    def own_logits(self, **inputs: Any) -> Tensor:
        """[tokens, vocab] float32 of one sequence, by the model's own attention."""
        self.whole.set_attn_implementation("eager")
        try:
            logits: Tensor = self.whole(**inputs, use_cache=False).logits[0]
        finally:
            self.whole.set_attn_implementation(self._name)
        return logits.float()

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """Stands for the part's own."""
        from transformers.modeling_outputs import MoEModelOutputWithPastAndCrossAttentions

        if self._given is not None:
            return MoEModelOutputWithPastAndCrossAttentions(last_hidden_state=self._given)
        return self.own_forward(*args, **kwargs)


def must_match(found: Mapping[int, tuple[int, ...]], spec: DecoderSpec, what: str) -> None:
    """Raises `ModelError` where layers are not as the config says. found: heads, key-value heads, sizes by layer."""
    if sorted(found) != list(range(spec.num_layers)):
        raise ModelError(f"only {len(found)} of its {spec.num_layers} {what} over a cache")
    expected = (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim)
    for number, sizes in found.items():
        if sizes != expected:
            raise ModelError(f"layer {number} has heads, key-value heads and sizes {sizes}, its config says {expected}")


def line(error: Exception) -> str:
    """The first line of what an error says."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
