"""The supervisor over a scripted shard and a fake router: signals, restarts, refusals, and nothing left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.launcher.fakes import DIES, FOREIGN, HELLO, PATIENCE, READY, STUBBORN, Server, await_one, end_of, fails
from textgen.launcher.errors import AddressError, LauncherError, MemoryPlanError, ModelError, ShardDied

ME = os.getpid()


def ask(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(ME, number)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> object:
    before = set(os.listdir("/proc/self/fd"))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert set(os.listdir("/proc/self/fd")) <= before  # what an earlier test left may have been collected meanwhile


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_0(number: signal.Signals, tmp_path: Path) -> None:
    server = Server(tmp_path, READY)

    def act() -> None:
        await_one(server.ready)
        ask(number)
        assert server.router.draining.wait(PATIENCE)
        assert not server.router.stopped
        server.router.idle.set()

    assert server.run(act) == 0
    assert server.hellos == [HELLO]
    assert server.router.stopped
    assert not server.shards[0].alive()
    assert number.name in server.lines


def test_a_signal_before_the_shard_is_ready_ends_at_once(tmp_path: Path) -> None:
    server = Server(tmp_path, "import signal; signal.pause()")
    server.router.idle.set()
    assert server.run(ask) == 0
    assert server.hellos == []
    assert not server.shards[0].alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(number: signal.Signals, tmp_path: Path) -> None:
    server = Server(tmp_path, READY)

    def act() -> None:
        await_one(server.ready)
        ask()
        assert server.router.draining.wait(PATIENCE)
        ask(number)

    try:
        assert server.run(act) == 128 + number
    finally:
        server.router.idle.set()  # lets the drain thread go
    assert server.router.stopped
    assert not server.shards[0].alive()


def test_requests_that_outlast_the_grace_are_cut_off_and_counted(tmp_path: Path) -> None:
    server = Server(tmp_path, READY, drain_seconds=0)
    server.router.requests = 3

    def act() -> None:
        await_one(server.ready)
        ask()

    assert server.run(act) == 0
    assert "3 requests were cut off" in server.lines


def test_a_killed_shard_is_replaced_and_attached_with_fresh_memory(tmp_path: Path) -> None:
    server = Server(tmp_path, READY)

    def act() -> None:
        await_one(server.ready)
        await_one(server.router.attached)
        os.kill(server.shards[0].pid, signal.SIGKILL)
        await_one(server.router.attached)
        server.router.idle.set()
        ask()

    assert server.run(act) == 0
    assert len(server.shards) == 2
    assert server.router.memory_sizes == [0, 0]
    assert server.hellos == [HELLO]  # people are told once
    assert f"shard {server.shards[0].pid} died (killed by SIGKILL)" in server.lines


def test_a_shard_that_fails_after_it_served_is_replaced_whatever_its_exit_code(tmp_path: Path) -> None:
    server = Server(tmp_path, READY, fails(3, "error: no luck"), fails(0), READY, second=1)

    def act() -> None:
        await_one(server.ready)
        server.router.tell(4)
        await_one(server.router.attached, 4)
        server.router.idle.set()
        ask()

    assert server.run(act) == 0
    assert len(server.shards) == 4
    assert "(exit code 4)" in server.lines
    assert "(exit code 3): no luck" in server.lines


def test_a_shard_that_keeps_dying_ends_the_server_with_5(tmp_path: Path) -> None:
    server = Server(tmp_path, READY, DIES, restarts=3, second=20)

    def act() -> None:
        await_one(server.ready)
        server.router.tell(7)

    with pytest.raises(ShardDied, match="killed by SIGKILL.*restarted 3 times.*--shard-restarts") as caught:
        server.run(act)
    assert caught.value.exit_code == 5
    assert len(server.shards) == 4
    assert server.router.stopped


def test_no_restarts_means_the_first_death_ends_the_server(tmp_path: Path) -> None:
    server = Server(tmp_path, DIES, restarts=0)
    with pytest.raises(ShardDied):
        server.run()
    assert len(server.shards) == 1


def test_deaths_long_ago_do_not_count(tmp_path: Path) -> None:
    server = Server(tmp_path, *[DIES] * 4, READY, restarts=1, second=700)
    assert server.run(server.stop_when_ready) == 0
    assert len(server.shards) == 5


@pytest.mark.parametrize(
    ("code", "kind"), [(3, ModelError), (4, MemoryPlanError), (1, LauncherError), (2, LauncherError)]
)
def test_a_shard_that_cannot_start_is_not_started_again(code: int, kind: type[LauncherError], tmp_path: Path) -> None:
    server = Server(tmp_path, fails(code, "error: the weights are damaged; download them again"))
    with pytest.raises(kind, match="^the weights are damaged; download them again$") as caught:
        server.run()
    assert caught.value.exit_code == (code if code in (3, 4) else 1)
    assert len(server.shards) == 1
    assert server.router.stopped


def test_a_shard_that_cannot_start_and_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="exit code 1.*log lines"):
        Server(tmp_path, fails(1)).run()


def test_a_shard_that_was_killed_while_loading_is_started_again(tmp_path: Path) -> None:
    server = Server(tmp_path, DIES, READY)
    assert server.run(server.stop_when_ready) == 0
    assert len(server.shards) == 2


def test_a_shard_that_dropped_its_link_but_lives_is_ended(tmp_path: Path) -> None:
    server = Server(tmp_path, STUBBORN, READY, shard_seconds=0.1)
    assert server.run(server.stop_when_ready) == 0
    assert len(server.shards) == 2
    assert not server.shards[0].alive()


def test_a_shard_that_the_router_gives_up_is_ended_and_replaced(tmp_path: Path) -> None:
    server = Server(tmp_path, READY, shard_seconds=0.1)

    def act() -> None:
        await_one(server.ready)
        await_one(server.router.attached)
        os.kill(server.shards[0].pid, signal.SIGSTOP)
        server.router.given_up.set()
        await_one(server.router.attached)
        server.router.idle.set()
        ask()

    assert server.run(act) == 0
    assert len(server.shards) == 2
    assert not server.shards[0].alive()
    assert f"shard {server.shards[0].pid} died (killed by SIGKILL)" in server.lines


@pytest.mark.parametrize("before", [(), (READY,)], ids=["first", "after a death"])
def test_a_shard_that_the_router_refuses_is_not_started_again(before: tuple[str, ...], tmp_path: Path) -> None:
    server = Server(tmp_path, *before, FOREIGN)

    def act() -> None:
        if before:
            await_one(server.ready)
            os.kill(server.shards[0].pid, signal.SIGKILL)

    with pytest.raises(LauncherError, match="^the shard speaks version 9$") as caught:
        server.run(act)
    assert caught.value.exit_code == 1
    assert len(server.shards) == len(before) + 1
    assert not server.shards[-1].alive()
    assert server.router.stopped


def test_a_shard_that_dies_while_draining_is_replaced_so_that_requests_finish(tmp_path: Path) -> None:
    server = Server(tmp_path, READY)

    def act() -> None:
        await_one(server.ready)
        ask()
        assert server.router.draining.wait(PATIENCE)
        os.kill(server.shards[0].pid, signal.SIGKILL)
        await_one(server.router.attached, 2)
        server.router.idle.set()

    assert server.run(act) == 0
    assert len(server.shards) == 2


def test_a_router_that_cannot_start_leaves_no_shard(tmp_path: Path) -> None:
    def refuse() -> None:
        raise AddressError("127.0.0.1:1 is in use")

    server = Server(tmp_path, READY, start_router=refuse)  # type: ignore[arg-type]
    with pytest.raises(AddressError):
        server.run()
    assert not server.shards[0].alive()
    server.shards[0].handed_over()


def test_a_launcher_that_is_killed_takes_its_shard_with_it(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from tests.launcher.fakes import READY, Server\n"
        "server = Server(pathlib.Path(sys.argv[1]), READY)\n"
        "server.run(lambda: print(server.shards[0].pid, flush=True))\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with launcher:
        assert launcher.stdout is not None
        shard = end_of(int(launcher.stdout.readline()))
        try:
            assert select.select([shard], [], [], 0)[0] == []
            launcher.kill()
            assert select.select([shard], [], [], 60)[0] == [shard]
        finally:
            os.close(shard)


def test_any_thread_can_supervise_and_any_other_end_it(tmp_path: Path) -> None:
    server = Server(tmp_path, READY)
    codes: list[int] = []

    def act() -> None:
        await_one(server.ready)
        server.supervisor.close()

    thread = threading.Thread(target=lambda: codes.append(server.run(act, signals=False)))
    thread.start()
    thread.join(PATIENCE)
    assert codes == [0]
    assert server.router.stopped
    assert not server.shards[0].alive()
    assert server.supervisor.failure is None


def test_closing_it_before_the_shard_is_ready_ends_the_shard(tmp_path: Path) -> None:
    server = Server(tmp_path, "import signal; signal.pause()")
    assert server.run(server.supervisor.close, signals=False) == 0
    assert not server.shards[0].alive()


def test_why_it_failed_is_known_when_the_router_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path, DIES, restarts=0)
    seen: list[LauncherError | None] = []
    stop = server.router.stop

    def look() -> None:
        seen.append(server.supervisor.failure)
        stop()

    monkeypatch.setattr(server.router, "stop", look)
    with pytest.raises(ShardDied) as caught:
        server.run()
    assert seen == [caught.value]
