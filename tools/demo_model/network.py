"""The model as a small Llama in plain torch, with the weight names of Transformers so that its file loads there.

Llama: https://arxiv.org/abs/2302.13971; grouped query attention: https://arxiv.org/abs/2305.13245.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; ``heads`` query heads share ``kv_heads`` key and value heads."""

    vocabulary: int = 2048
    hidden: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 512
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5


class Attention(nn.Module):
    """Causal grouped attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        query, key, value = (
            projection(hidden).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        repeats = self.shape.heads // self.shape.kv_heads
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cosine, sine),
            rotate(key, cosine, sine).repeat_interleave(repeats, 1),
            value.repeat_interleave(repeats, 1),
            is_causal=True,
        )
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return projected


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.norm_epsilon)
        self.mlp = FeedForward(shape)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cosine, sine)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Body(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, shape.norm_epsilon)


class Network(nn.Module):
    """The language model; the embedding is also the output matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                closing = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5 if closing else 0.02)

    def layer(self, index: int) -> Layer:
        """One of the layers, by its type."""
        layer = self.model.layers[index]
        assert isinstance(layer, Layer)
        return layer

    def forward(self, tokens: Tensor) -> Tensor:
        """Final hidden states, float32 ``[batch, length, hidden]``, of int64 ``tokens`` ``[batch, length]``."""
        cosine, sine = rotary_table(tokens.shape[1], self.shape)
        hidden = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            hidden = layer(hidden, cosine, sine)
        out: Tensor = self.model.norm(hidden)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary for final hidden states of any leading shape."""
        return functional.linear(hidden, self.model.embed_tokens.weight)


def rotary_table(length: int, shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[length, head_dim]`` of the rotary embedding (https://arxiv.org/abs/2104.09864)."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply rotary positions to ``[batch, heads, length, head_dim]`` with halves paired as Llama pairs them."""
    left, right = states.chunk(2, -1)
    return states * cosine + torch.cat((-right, left), -1) * sine
