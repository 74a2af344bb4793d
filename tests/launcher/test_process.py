"""A shard's log lines and its end."""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from textgen.launcher import log as log_module
from textgen.launcher.log import Log
from textgen.launcher.process import LONGEST_SOCKET_PATH, ShardProcess, SocketFolder

WRITE = "import os, sys; [os.write(2, part) for part in {parts!r}]"


def run(script: str, log: Log, folder: Path) -> tuple[ShardProcess, int]:
    """Run a script as a shard, to its end."""
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    shard = ShardProcess("{}", folder / "ops", log, lambda _, code: ends.put(code), (sys.executable, "-ISc", script))
    shard.handed_over()
    return shard, ends.get(timeout=60)


@pytest.mark.parametrize("as_json", [False, True])
def test_lines_become_log_lines(as_json: bool, tmp_path: Path) -> None:
    output = io.StringIO()
    log = Log(output, as_json=as_json)
    parts = [
        b"plain\n",
        b'{"level": "INFO"}\n',
        b"half ",
        b"a line\n\n",
        b"bad \xff bytes\n",
        b"error: it broke\n",
        b"no end",
    ]
    shard, code = run(WRITE.format(parts=parts), log, tmp_path)
    log.close()
    lines = output.getvalue().splitlines()
    assert (code, shard.error) == (0, "it broke")
    texts = ["plain", '{"level": "INFO"}', "half a line", "bad \ufffd bytes", "no end"]
    if as_json:
        read = [json.loads(line) for line in lines]
        assert read[1] == {"level": "INFO"}
        assert [entry["message"] for entry in read if "message" in entry] == [texts[i] for i in (0, 2, 3, 4)]
        assert read[0]["target"] == "textgen_shard"
    else:
        assert lines == texts


def test_a_stalled_reader_never_blocks_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "QUEUED_LINES", 10)
    opened = threading.Event()

    class Stalled(io.StringIO):
        def write(self, text: str) -> int:
            opened.wait()
            return super().write(text)

    output = Stalled()
    log = Log(output)
    _, code = run("import sys; [print('x' * 99, file=sys.stderr) for _ in range(50_000)]", log, tmp_path)
    assert code == 0
    opened.set()
    log.close()
    assert output.getvalue().count("\n") < 50
    assert "log lines were dropped" in output.getvalue()


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    output = io.StringIO()
    log = Log(output)
    run("import sys; sys.stderr.write('y' * 300_000)", log, tmp_path)
    log.close()
    assert max(map(len, output.getvalue().splitlines())) <= 64 * 1024


def test_exit_codes_and_signals_are_told(tmp_path: Path) -> None:
    log = Log(io.StringIO())
    assert run("import os; os._exit(3)", log, tmp_path)[1] == 3
    assert run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", log, tmp_path)[1] == -signal.SIGKILL
    log.close()


def test_a_shard_gets_its_descriptors_and_nothing_else(tmp_path: Path) -> None:
    output = io.StringIO()
    log = Log(output)
    extra = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(extra, True)
    script = (
        "import json, os, stat, sys\n"
        "values = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "link, memory = int(values['--socket-fd']), int(values['--memory-fd'])\n"
        "found = {int(name) for name in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + name)}\n"
        "assert stat.S_ISSOCK(os.fstat(link).st_mode) and stat.S_ISREG(os.fstat(memory).st_mode)\n"
        "assert found == {0, 1, 2, link, memory}, found\n"
        "os.ftruncate(memory, 4096)\n"
        "assert os.getsid(0) == os.getpid()\n"
        "assert json.loads(values['--settings']) == {} and values['--ops-socket'].endswith('/ops')\n"
    )
    _, code = run(script, log, tmp_path)
    os.close(extra)
    log.close()
    assert code == 0, output.getvalue()


def test_the_socket_folder_is_private_short_and_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with SocketFolder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(str(folder / "shard-1000")) < LONGEST_SOCKET_PATH
    assert not folder.exists()
    assert list(deep.iterdir()) == []


def test_a_stopped_shard_is_ended_within_what_it_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears neither the end of its link nor a signal: half of the time for each, and it is killed."""
    shard = ShardProcess(
        "{}",
        tmp_path / "ops",
        Log(io.StringIO()),
        lambda *_: None,
        (sys.executable, "-ISc", "import signal; signal.pause()"),
    )
    os.kill(shard.pid, signal.SIGSTOP)
    waited: list[float] = []
    own = shard._process.wait

    def never(seconds: float | None = None) -> int:
        if seconds is None:  # the thread that waits for the end
            return own()
        waited.append(seconds)
        raise subprocess.TimeoutExpired("a shard", seconds)

    shard.handed_over()
    monkeypatch.setattr(shard._process, "wait", never)
    shard.finish(8.0)
    assert waited[:2] == [4.0, 4.0]
    assert not shard.alive()
