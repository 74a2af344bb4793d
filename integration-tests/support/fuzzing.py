"""What schemathesis is told of this server, as its hooks."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis.specs.openapi.checks import negative_data_rejection

# How schemathesis describes a call with a header that the document does not name.
UNKNOWN = "object with unexpected properties"


@schemathesis.check
def wrong_data_is_refused(context: Any, response: Any, case: Any) -> bool | None:
    """Its own `negative_data_rejection`, but for headers that nobody knows, which are ignored as ever in HTTP, and for
    calls that ask for nothing."""
    data = case.meta.phase.data if case.meta is not None else None
    place = getattr(getattr(data, "parameter_location", None), "name", "")
    if place == "HEADER" and (getattr(data, "description", None) or "").lower() == UNKNOWN:
        return None
    # Ollama's way to ask whether a model is loaded: nothing is generated, so nothing else is looked at.
    if case.operation.path.startswith("/api/") and '"done_reason":"load"' in response.text:
        return None
    refused: bool | None = negative_data_rejection(context, response, case)
    return refused
