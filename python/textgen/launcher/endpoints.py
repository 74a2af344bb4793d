"""What a cloud tells a container about the model and the port it is to serve, as variables of the launcher's own.

`docs/endpoints.md` is this table for people; a test holds each of its rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from textgen.launcher.arguments import variable
from textgen.launcher.errors import SettingsError
from textgen.launcher.flags import flag_of, is_address
from textgen.launcher.settings import FIELDS

EVERYWHERE = "0.0.0.0"

_FLAGS = {variable(field.name): flag_of(field) for field in FIELDS}


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of a contract and the variable of ours that it gives. says: whether a value means anything."""

    name: str
    target: str
    says: Callable[[str], bool] = bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What one cloud promises.

    applies: whether this start is under it. variables: they beat ours, for the cloud wrote them and images have
    defaults; of two that give the same the later one wins. folder: where the cloud puts a model, served when nothing
    names one. port: where it calls, unless a variable says.
    """

    name: str
    applies: Callable[[Sequence[str], Mapping[str, str]], bool]
    variables: tuple[Variable, ...]
    folder: str | None = None
    port: int | None = None


HUGGING_FACE = Contract(
    name="Hugging Face",
    applies=lambda arguments, environ: True,  # it is TGI's: its variables are the launcher's own
    variables=(),
    folder="/repository",
)
SAGEMAKER = Contract(
    name="SageMaker",
    applies=lambda arguments, environ: list(arguments[:1]) == ["serve"],
    variables=(
        Variable("HF_MODEL_ID", "MODEL_ID"),
        Variable("HF_MODEL_REVISION", "REVISION"),
        Variable("HF_MODEL_QUANTIZE", "QUANTIZE"),
        Variable("HF_MODEL_TRUST_REMOTE_CODE", "TRUST_REMOTE_CODE"),
        Variable("SM_NUM_GPUS", "NUM_SHARD", says=lambda value: value not in ("", "0")),  # 0: a machine without
        Variable("SAGEMAKER_BIND_TO_PORT", "PORT"),
    ),
    folder="/opt/ml/model",
    port=8080,
)
VERTEX = Contract(
    name="Vertex AI",
    applies=lambda arguments, environ: bool(environ.get("AIP_HTTP_PORT")),
    variables=(
        Variable("AIP_HTTP_PORT", "PORT"),
        Variable("AIP_HEALTH_ROUTE", "VERTEX_HEALTH_ROUTE"),
        Variable("AIP_PREDICT_ROUTE", "VERTEX_PREDICT_ROUTE"),
        Variable("AIP_STORAGE_URI", "MODEL_ID"),
    ),
)
CONTRACTS = (HUGGING_FACE, SAGEMAKER, VERTEX)


@dataclass(frozen=True, slots=True)
class Start:
    """A start in the launcher's own words: its arguments, and the variables that go before the environment's."""

    arguments: list[str]
    environ: dict[str, str]


def translate(arguments: Sequence[str], environ: Mapping[str, str], root: Path = Path("/")) -> Start:
    """A container's start as one of the launcher. root: below which the clouds' folders are.

    Raises `SettingsError` that names the cloud's variable.
    """
    under = [contract for contract in CONTRACTS if contract.applies(arguments, environ)]
    given: dict[str, str] = {}
    for contract in under:
        if contract.port is not None:
            given["PORT"] = str(contract.port)
        for each in contract.variables:
            value = environ.get(each.name, "")
            if each.says(value):
                given[each.target] = _checked(each, value)
    if not (given.get("MODEL_ID") or environ.get("MODEL_ID")):
        for contract in reversed(under):
            if contract.folder and _holds_a_model(root / contract.folder.lstrip("/")):
                given["MODEL_ID"] = str(root / contract.folder.lstrip("/"))
                break
    if not is_address(environ.get("HOSTNAME", "")):  # a container's own name, while its port is for everyone
        given["HOSTNAME"] = EVERYWHERE
    rest = list(arguments)
    return Start(rest[1:] if SAGEMAKER in under else rest, given)


def _holds_a_model(folder: Path) -> bool:
    """Whether there is one, or what we may not look into: then the launcher says what is wrong with it."""
    try:
        return S_ISREG(os.stat(folder / "config.json").st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def _checked(each: Variable, value: str) -> str:
    """The value, if the launcher can use it: else its sentence would name a variable that nobody set."""
    try:
        _FLAGS[each.target].parse(value)
    except ValueError as error:
        raise SettingsError(f"{each.name}={value!r} {error}") from None
    return value
