"""What a generator returns: one plain text, or one conversation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A function the assistant asks to be called, with its arguments."""

    name: str
    arguments: Json


@dataclass(frozen=True)
class Message:
    """One message of a conversation; ``role`` is system, user, assistant or tool."""

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()

    def to_template(self) -> dict[str, Any]:
        """The message in the form that chat templates take."""
        plain: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.calls:
            plain["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in self.calls
            ]
        return plain


@dataclass(frozen=True)
class Document:
    """One training document: ``text`` when plain, otherwise ``messages`` and the tools offered."""

    text: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[Json, ...] = field(default=())

    @property
    def is_chat(self) -> bool:
        return bool(self.messages)


def exchange(question: str, answer: str) -> Document:
    """A conversation of one question and one answer."""
    return Document(messages=(Message("user", question), Message("assistant", answer)))
