"""The engine as a library: `LLM`, `AsyncLLM`, what they take and what they return. It imports no torch."""

from __future__ import annotations

from textgen.launcher.errors import LauncherError, MemoryPlanError, ModelError, SettingsError
from textgen.llm.async_llm import AsyncLLM
from textgen.llm.errors import EngineClosed, InvalidRequest, RequestError, TextgenError
from textgen.llm.llm import LLM
from textgen.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from textgen.llm.params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from textgen.llm.prompts import TextPrompt, TokensPrompt

__all__ = [
    "LLM", "AsyncLLM", "CompletionOutput", "EngineClosed", "InvalidRequest", "LauncherError", "Logprob",
    "MemoryPlanError", "ModelError", "RequestError", "RequestMetrics", "RequestOutput", "RequestOutputKind",
    "SamplingParams", "SettingsError", "StructuredOutputsParams", "TextPrompt", "TextgenError", "TokensPrompt",
]  # fmt: skip
