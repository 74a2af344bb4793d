"""What `LLM` and `AsyncLLM` have in common: an engine from settings, and its end."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from textgen.launcher.arguments import settings_from
from textgen.launcher.errors import SettingsError
from textgen.launcher.settings import NETWORK, TRACES, Settings, group_of
from textgen.llm.engine import Engine
from textgen.llm.prompts import Body
from textgen.llm.replies import Account

if TYPE_CHECKING:
    from textgen import _router

Self = TypeVar("Self", bound="EngineOwner")

# vLLM's names of settings that have another one here.
SYNONYMS = {
    "max_model_len": "max_total_tokens",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_batch_prefill_tokens",
    "enable_prefix_caching": "prefix_caching",
    "tensor_parallel_size": "num_shard",
}
DEFAULTS = {"log_level": "warn", "max_concurrent_requests": 256}
_OF_CLIENTS = ("max_connections", "header_timeout", "slow_reader_timeout", "graceful_termination_timeout")


class EngineOwner:
    """Owns an engine: a context manager that closes it; so do `close` and the end of the last reference.

    model: as `--model-id` of the launcher; None is the built-in model. settings: the launcher's, by their names in
    Python (`docs/settings.md`), as text or as values; vLLM's `max_model_len`, `max_num_seqs`, `max_num_batched_tokens`,
    `enable_prefix_caching` and `tensor_parallel_size` are known too. The environment's variables are not read.

    Raises `SettingsError`, `ModelError`, `MemoryPlanError` and other `LauncherError`s, each a sentence on what to
    change.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        self.engine = Engine(library_settings(model, settings))
        self._end = weakref.finalize(self, self.engine.close)

    @property
    def model(self) -> str:
        """The model's name."""
        return self.engine.plan.model.name

    def close(self) -> None:
        """End the engine; running requests fail. Harmless when it has ended."""
        self._end()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def library_settings(model: str | None, given: dict[str, Any]) -> Settings:
    """Settings of an engine without a server. Raises `SettingsError`."""
    values: dict[str, Any] = {"model_id": model}
    for said, value in given.items():
        name = SYNONYMS.get(said, said)
        if name in values:
            raise SettingsError(f"{said} and {name} are two names of one setting; give only one of them")
        if group_of(name) in (NETWORK, TRACES) or name in _OF_CLIENTS:
            raise SettingsError(f"{said} is a setting of the server and has no meaning here; leave it out")
        values[name] = value
    return settings_from(DEFAULTS | values)


def begin(calls: _router.Calls, tag: int, body: Body) -> Account:
    """Send a request; where its replies are gathered."""
    (calls.chat if body.chat else calls.complete)(tag, body.content)
    params = body.params
    return Account(str(tag), scored=params.logprobs is not None, prompt_scored=params.prompt_logprobs is not None)
