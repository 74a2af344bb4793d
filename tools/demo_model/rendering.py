"""From a document to the text the model sees, by the chat template that ships with it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tools.demo_model.corpus.document import Document

TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@cache
def _compiled() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _to_json
    return environment.from_string(TEMPLATE)


def render(document: Document, add_end: bool = True, add_generation_prompt: bool = False) -> str:
    """The document as text with its special tokens; plain texts get an end token when ``add_end``."""
    if not document.is_chat:
        return f"<|bos|>{document.text}{'<|end|>' if add_end else ''}"
    return _compiled().render(
        messages=[message.to_template() for message in document.messages],
        tools=list(document.tools) or None,
        bos_token="<|bos|>",
        add_generation_prompt=add_generation_prompt,
    )
