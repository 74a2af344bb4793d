"""Where models come from and where they are kept: the one place that asks the environment."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from textgen.hub.errors import HubError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """A hub and the folder its models are cached in."""

    endpoint: str  # without a slash at its end
    cache: Path
    token: str | None = field(default=None, repr=False)
    offline: bool = False

    @property
    def shown(self) -> str:
        """The endpoint as people may see it: a name and password in it are left out."""
        parts = urlsplit(self.endpoint)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def connect(cache: str | None = None) -> Hub:
    """The hub of this environment, in the variables that `huggingface_hub` documents: `HF_ENDPOINT`, `HF_TOKEN`,
    `HUGGING_FACE_HUB_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and the token that `hf auth login` stored.

    cache: a folder to use instead of the environment's. Raises `HubError` for variables that cannot be used.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # variables that were for older versions of the library do no harm
            from huggingface_hub import constants, errors, get_token  # here: a start from a folder has no use for it
    except ValueError as error:
        raise HubError(f"a variable that begins with HF_ has a value that cannot be used ({error})") from None
    folder = Path(cache).expanduser() if cache else Path(constants.HF_HUB_CACHE)
    offline = bool(constants.HF_HUB_OFFLINE)
    try:
        token = None if offline or constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    except (OSError, getattr(errors, "OIDCError", OSError)) as error:
        raise HubError(f"no token can be had ({type(error).__name__}); set HF_TOKEN") from None
    return Hub(endpoint=constants.ENDPOINT.rstrip("/"), cache=folder, token=token, offline=offline)
