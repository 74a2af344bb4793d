"""How the extension module is met."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import textgen
from textgen.launcher.errors import ExitCode, LauncherError, ModelError
from textgen.launcher.hardware import inspect
from textgen.launcher.model import resolve
from textgen.launcher.plan import make_plan
from textgen.launcher.router import start_router
from textgen.launcher.settings import Settings


@pytest.mark.parametrize(
    ("sentence", "code", "words"),
    [
        ("the router's settings cannot be read: unknown field `new`", ExitCode.INTERNAL, "build it with `make build`"),
        ("tokenizer.json cannot be read", ExitCode.MODEL, "tokenizer.json"),
    ],
)
def test_an_extension_of_another_version_is_not_the_models_fault(
    monkeypatch: pytest.MonkeyPatch, sentence: str, code: ExitCode, words: str
) -> None:
    def refuse(settings: str) -> None:
        raise ValueError(sentence)

    extension = ModuleType("textgen._router")
    vars(extension).update(Router=refuse, init_logging=lambda as_json, level: None)
    monkeypatch.setitem(sys.modules, "textgen._router", extension)
    monkeypatch.setattr(textgen, "_router", extension, raising=False)
    plan = make_plan(Settings(), resolve(None), inspect())
    with pytest.raises(LauncherError) as caught:
        start_router(plan)
    assert caught.value.exit_code == code
    assert words in str(caught.value)
    assert isinstance(caught.value, ModelError) == (code == ExitCode.MODEL)
