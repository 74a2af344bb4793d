"""Random tiny models of Transformers, saved as folders that the shard can load."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import PreTrainedModel

from .families import TINY


def make_model(folder: Path, architecture: str = "LlamaForCausalLM", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Save a random model in `folder` and return it, in float32 and ready to compare with."""
    torch.manual_seed(seed)
    tiny = TINY[architecture]
    settings = getattr(transformers, f"{tiny.config}Config")(**{**tiny.sizes, **changes})
    settings._attn_implementation = tiny.attention
    settings._experts_implementation = "eager"  # others ask for aligned sizes
    model: PreTrainedModel = getattr(transformers, architecture)(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # Transformers starts norms and biases at 1 and 0, which would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.2)
    model.save_pretrained(folder)
    return model


def edit_config(folder: Path, changes: Mapping[str, Any], drop: tuple[str, ...] = ()) -> None:
    """Change values of the folder's config.json."""
    path = folder / "config.json"
    values = {name: value for name, value in json.loads(path.read_text()).items() if name not in drop}
    path.write_text(json.dumps({**values, **changes}))


def random_prompt(rng: random.Random, length: int, vocab: int = 77) -> list[int]:
    return [rng.randrange(vocab) for _ in range(length)]


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab] float32: one forward pass without a cache."""
    logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


@torch.inference_mode()
def well_chosen(model: PreTrainedModel, tokens: list[int]) -> int:
    """How many tokens come before the first whose choice of experts is nearly a tie, so that rounding may decide it.

    Each router is asked again with inputs that are changed a little; all tokens when there are no routers.
    """
    first, rng = [len(tokens)], torch.Generator().manual_seed(0)

    def ask_again(router: torch.nn.Module, inputs: tuple[torch.Tensor], output: tuple[torch.Tensor, ...]) -> None:
        chosen, x = output[2].sort(dim=-1).values, inputs[0]
        for _ in range(4):
            noise = torch.randn(x.shape, generator=rng) * x.square().mean().sqrt() * 1e-4
            again = router.forward(x + noise)[2].sort(dim=-1).values
            changed = (again != chosen).any(dim=-1).flatten().nonzero()
            first.append(int(changed[0]) if len(changed) else len(tokens))

    routers = [module for module in model.modules() if type(module).__name__.endswith("Router")]
    handles = [router.register_forward_hook(ask_again) for router in routers]
    reference_logits(model, tokens)
    for handle in handles:
        handle.remove()
    return min(first)


def generate(model: PreTrainedModel, ids: torch.Tensor, **settings: Any) -> torch.Tensor:
    """Transformers' own generate: [sequences, tokens]."""
    made: torch.Tensor = cast(Any, model).generate(ids, **settings)
    return made


def reference_greedy(model: PreTrainedModel, prompt: list[int], new: int, **changes: Any) -> list[int]:
    """The next `new` greedy tokens by Transformers' own generate."""
    ids = torch.tensor([prompt])
    settings = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **changes}
    out = generate(model, ids, attention_mask=torch.ones_like(ids), **settings)  # else it would mask out token 0
    return list(out[0].tolist())[len(prompt) :]
