"""Textgen: serve large language models, or run them in this process (`LLM`, `AsyncLLM`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_LIBRARY = (
    "LLM", "AsyncLLM", "SamplingParams", "StructuredOutputsParams", "RequestOutputKind", "RequestOutput",
    "RequestMetrics", "CompletionOutput", "Logprob", "TextPrompt", "TokensPrompt", "TextgenError", "RequestError",
    "InvalidRequest", "EngineClosed",
)  # fmt: skip
__all__ = ["__version__", *_LIBRARY]

if TYPE_CHECKING:
    from textgen.llm import LLM as LLM
    from textgen.llm import AsyncLLM as AsyncLLM
    from textgen.llm import CompletionOutput as CompletionOutput
    from textgen.llm import EngineClosed as EngineClosed
    from textgen.llm import InvalidRequest as InvalidRequest
    from textgen.llm import Logprob as Logprob
    from textgen.llm import RequestError as RequestError
    from textgen.llm import RequestMetrics as RequestMetrics
    from textgen.llm import RequestOutput as RequestOutput
    from textgen.llm import RequestOutputKind as RequestOutputKind
    from textgen.llm import SamplingParams as SamplingParams
    from textgen.llm import StructuredOutputsParams as StructuredOutputsParams
    from textgen.llm import TextgenError as TextgenError
    from textgen.llm import TextPrompt as TextPrompt
    from textgen.llm import TokensPrompt as TokensPrompt


def __getattr__(name: str) -> Any:
    """The library's names, imported when one is asked for: launcher and shard do without them."""
    if name in _LIBRARY:
        from textgen import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
