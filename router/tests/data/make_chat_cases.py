"""Writes `chat_cases.json`: what Transformers renders for our templates and snippets, for the router's tests.

Run with `transformers` installed: `python router/tests/data/make_chat_cases.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

Message = dict[str, Any]


def system(content: Any) -> Message:
    return {"role": "system", "content": content}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> Message:
    return {"role": "assistant", "content": content, **fields}


def result(content: str, call: str = "abc123def") -> Message:
    return {"role": "tool", "content": content, "tool_call_id": call}


def call(name: str, arguments: Any, identity: str = "abc123def") -> Message:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def parts(*texts: str) -> list[Message]:
    return [{"type": "text", "text": text} for text in texts]


ARGUMENTS = {"city": "Zürich", "days": 3, "wind": True, "near": None, "at": [47.4, 8.5], "note": 'a "b" <c> & \\ \n'}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the <weather> & wind's speed",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Zürich", "東京"]}, "days": {"type": "integer"}},
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {}}}
PLAIN = [user("Hi "), assistant(" Hello\n"), user(" How are you? ")]
WITH_SYSTEM = [system(" Be brief. "), *PLAIN]
WITH_CALL = [
    user("Weather?"),
    assistant("", tool_calls=[call("weather", ARGUMENTS)]),
    result("sunny 🌞"),
    assistant("It is sunny."),
    user("Thanks"),
]
TWO_CALLS = [
    user("Weather and time?"),
    assistant("Let me see.", tool_calls=[call("weather", {"city": "a"}), call("clock", {}, "123456789")]),
    result("rain"),
    result("noon", "123456789"),
]
THOUGHTS = [
    user("1+1?"),
    assistant("<think>\neasy\n</think>\n\n2"),
    user("And 2+2?"),
    assistant("4", reasoning_content="also easy\n"),
    user("<result>x</result>"),
]

# name, template, messages, options. Options go to Transformers; `client` is what a client sends when that differs.
CONVERSATIONS: list[tuple[str, str, list[Message], dict[str, Any]]] = [
    ("plain", "chatml", PLAIN, {}),
    ("prompt", "chatml", PLAIN, {"add_generation_prompt": True}),
    ("system", "chatml", WITH_SYSTEM, {"add_generation_prompt": True}),
    ("joined parts", "chatml", [user("a b c")], {"client": [user(parts("a b", " c"))]}),
    ("empty content", "chatml", [user(""), assistant("")], {"client": [user(None), {"role": "assistant"}]}),
    ("continue", "chatml", [user("Hi"), assistant("Hello, ")], {"continue_final_message": True}),
    ("continue nothing", "chatml", [user("Hi"), assistant("")], {"continue_final_message": True}),
    ("continue trimmed", "trims_last", [user("Hi"), assistant(" Hello,  ")], {"continue_final_message": True}),
    ("continue parts", "text_or_parts", [user("Hi"), assistant(parts("a", "b "))], {"continue_final_message": True}),
    ("continue dropped", "drops_last", [user("Hi"), assistant("Hello")], {"continue_final_message": True}),
    ("headers", "header_ids", PLAIN, {"add_generation_prompt": True}),
    ("headers, system", "header_ids", WITH_SYSTEM, {"fixed_date": "1 May 2030"}),
    ("headers, tools", "header_ids", WITH_SYSTEM, {"tools": [WEATHER, CLOCK], "add_generation_prompt": True}),
    ("headers, call", "header_ids", WITH_CALL, {"tools": [WEATHER]}),
    ("headers, calls", "header_ids", TWO_CALLS, {"tools": [WEATHER]}),
    ("brackets", "instructions", WITH_SYSTEM, {}),
    ("brackets, tools", "instructions", WITH_SYSTEM, {"tools": [WEATHER, CLOCK]}),
    ("brackets, calls", "instructions", TWO_CALLS, {}),
    ("brackets, order", "instructions", [user("a"), user("b")], {}),
    ("brackets, id", "instructions", [user("a"), assistant("", tool_calls=[call("f", {}, "short")])], {}),
    ("turns", "turns", WITH_SYSTEM, {"add_generation_prompt": True}),
    ("turns, parts", "turns", [system(parts("Rules")), user(parts(" a ", "b "))], {}),
    ("turns, order", "turns", [assistant("a")], {}),
    ("thinking", "thinking", WITH_SYSTEM, {"add_generation_prompt": True, "thinking": False}),
    ("thinking, thoughts", "thinking", THOUGHTS, {"add_generation_prompt": True}),
    ("thinking, last", "thinking", [user("a"), assistant("b", reasoning_content="c")], {}),
    ("thinking, other name", "thinking", [user("a"), assistant("b", reasoning="c")], {}),
    ("thinking, calls", "thinking", TWO_CALLS, {"tools": [WEATHER, CLOCK], "add_generation_prompt": True}),
    (
        "parsed arguments",
        "thinking",
        WITH_CALL,
        {
            "client": [
                WITH_CALL[0],
                assistant(None, tool_calls=[call("weather", json.dumps(ARGUMENTS))]),
                *WITH_CALL[2:],
            ]
        },
    ),
    (
        "text arguments",
        "string_arguments",
        [
            system("Rules."),
            user("a"),
            assistant(None, tool_calls=[call("f", '{"x": 1}'), call("g", "{}")]),
            result("r"),
        ],
        {"add_generation_prompt": True},
    ),
    ("text arguments, plain", "string_arguments", [user("a"), assistant("<think>b</think>c"), user("d")], {}),
    ("parts only", "parts_only", [user(parts("a", "b"))], {"add_generation_prompt": True}),
    (
        "parts only, text",
        "parts_only",
        [user(parts("a")), assistant(parts("b"))],
        {"client": [user("a"), assistant("b")]},
    ),
    ("generation", "generation_marks", PLAIN, {"add_generation_prompt": True}),
    ("text or parts", "text_or_parts", [user(parts("a", "b")), assistant("c")], {}),
]

VALUES: dict[str, Any] = {
    "numbers": [3, 1, 2, 5],
    "words": ["apple", "pear"],
    "record": {"name": "Ada", "age": 36, "tags": ["x"]},
    "nested": {"z": [1, {"b": None, "a": True}], "a": "é<>&'", "empty": [], "none": {}},
    "people": [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 25}],
    "text": "line\nquote\" <tag> & 'x' \\ é 🌞",
    "floats": [1.0, 0.1, 1e16, 123456789012345.0, 1e-5, 0.0001, -2.5e-7, 1.5e300],
    "big": [9007199254740993, -9223372036854775808, 18446744073709551615],
}

BLOCKS = {
    "trim and strip": "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "strip with text before": "a {% if true %} b {% endif %} c\n",
    "no strip": "a\n  {%+ if true %}\n  b\n  {%+ endif %}\nc",
    "no trim": "{% if true +%}\n  b\n{% endif %}\n",
    "minus": "a  \n  {%- if true -%}  \n  b  \n  {%- endif -%}  \n  c",
    "comment lines": "a\n  {# note #}\nb\n{#- note -#}\nc",
    "set lines": "{% set x = 1 %}\n{% set y = 2 %}\n{{ x }}\n{{ y }}\n",
    "trailing lines": "{{ 1 }}\n\n",
    "last newline": "{{ 1 }}\n",
    "crlf": "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\n",
    "generation": "a\n  {% generation %}\n  b\n  {% endgeneration %}\nc {%- generation -%} d {%- endgeneration %} e",
    "quoted end": "{% if '%' in 'a%}' %}yes{% endif %}",
    "scope": "{% for n in [1, 2] %}\n{% set x = n %}\n{{ x }}\n{% endfor %}\n{{ x is defined }}",
    "long if": "{% if false %}a{% elif 1 == 1 and 'x' == \"x\" %}b{% else %}c{% endif %}",
    "nested loops": "{% for a in 'xy' %}{% set o=loop %}{% for b in 'xy' %}{{ o.index ~ b }}{% endfor %}{% endfor %}",
    "multi line string": "{{ 'a\n  b' }}",
    "deep set": "{% set ns = namespace() %}{% set ns.found = 'x' %}{{ ns.found }}{{ ns.other is defined }}",
    "loop over string": "{% for c in 'añ🌞' %}{{ c }}.{% endfor %}",
    "tools loop": "{% for tool in tools or [] %}{{ tool }}{% else %}none{% endfor %}",
    "empty": "",
}


def render(template: str, messages: list[Message], options: dict[str, Any]) -> dict[str, Any]:
    """`expected` text, or `error`: the template's own message, or true for any other failure."""
    arguments: dict[str, Any] = {"conversations": [messages], "chat_template": template, **TOKENS, **options}
    try:
        rendered: Any = render_jinja_template(**arguments)[0]
    except jinja2.exceptions.UndefinedError:
        return {"error": True}
    except jinja2.exceptions.TemplateError as error:
        return {"error": error.message}
    except (TypeError, ValueError):
        return {"error": True}
    return {"expected": rendered[0]}


def main() -> None:
    """Renders the conversations with templates from files, and the pieces of the language with `VALUES` in reach."""
    templates = HERE / "templates"
    cases = []
    for name, file, messages, options in CONVERSATIONS:
        source = (templates / f"{file}.jinja").read_text(encoding="utf-8")
        given = dict(options)
        client = given.pop("client", messages)
        outcome = render(source, messages, given)
        cases.append({"name": name, "file": f"{file}.jinja", "messages": client, "options": given, **outcome})
    lines = (templates / "snippets.txt").read_text(encoding="utf-8").splitlines()
    for name, source in ({f"line {number}": line for number, line in enumerate(lines, 1)} | BLOCKS).items():
        outcome = render(source, [user("Hi")], VALUES)
        cases.append({"name": name, "template": source, "messages": [user("Hi")], **outcome})
    text = json.dumps({"values": VALUES, "cases": cases}, ensure_ascii=False, indent=1)
    (HERE / "chat_cases.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
