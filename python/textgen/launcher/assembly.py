"""What server and library put together in the same way: the model that settings name, and the supervisor of a plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from textgen.launcher.log import Log
from textgen.launcher.model import HubOptions, Model, resolve
from textgen.launcher.plan import Plan
from textgen.launcher.process import ShardExited, ShardProcess
from textgen.launcher.read_ahead import read_ahead
from textgen.launcher.router import Router
from textgen.launcher.settings import Settings
from textgen.launcher.supervisor import Supervisor


def find_model(settings: Settings, log: Log) -> Model:
    """The model, downloaded when it has to be. Raises `ModelError`."""
    bar = False if settings.json_output else None
    model = resolve(
        settings.model_id,
        HubOptions(
            revision=settings.revision,
            cache=settings.huggingface_hub_cache,
            say=log.info,
            warn=log.warn,
            bar=bar,
            trust_remote_code=settings.trust_remote_code,
        ),
    )
    if settings.revision and settings.model_id and model.commit is None:
        log.info("--revision is only shown in /info: a folder holds one revision")
    return model


def supervisor(
    plan: Plan, log: Log, folder: Path, router: Callable[[], Router], ready: Callable[[Router, str], None]
) -> Supervisor:
    """Weights begin to be read here. folder: for the shards' sockets. router, ready: as `Supervisor` has them."""
    numbers = itertools.count()
    read_ahead(plan.model.folder, plan.memory_available)

    def spawn(exited: ShardExited) -> ShardProcess:
        return ShardProcess(plan.shard_settings(), folder / f"shard-{next(numbers)}", log, exited)

    return Supervisor(
        spawn, router, ready, log,
        restarts=plan.settings.shard_restarts, drain_seconds=plan.settings.graceful_termination_timeout,
        shard_seconds=plan.settings.shard_termination_timeout,
    )  # fmt: skip
