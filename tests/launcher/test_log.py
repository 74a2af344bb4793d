"""Log lines: levels, the two forms, and a reader that went away."""

from __future__ import annotations

import io
import json

from textgen.launcher.log import Log


def test_text_lines() -> None:
    output = io.StringIO()
    log = Log(output)
    log.info("hello", blocks=3)
    log.debug("hidden")
    log.block(["a", "b"])
    log.close()
    first, *rest = output.getvalue().splitlines()
    assert first.endswith("Z  INFO textgen_launcher: hello blocks=3")
    assert rest == ["a", "b"]


def test_json_lines_have_the_form_of_tgi() -> None:
    output = io.StringIO()
    log = Log(output, as_json=True, level="warn")
    log.info("hidden")
    log.block(["hidden"])
    log.error('two\nlines "quoted"', code=3)
    log.close()
    (line,) = output.getvalue().splitlines()
    entry = json.loads(line)
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {
        "level": "ERROR", "message": 'two\nlines "quoted"', "code": 3, "target": "textgen_launcher",
    }  # fmt: skip


def test_a_closed_stream_is_no_reason_to_fail() -> None:
    output = io.StringIO()
    log = Log(output)
    output.close()
    log.info("nobody reads this")
    log.close()
