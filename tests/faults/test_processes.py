"""Several containers that come, go, hang and die; stops; timers on the way; and at-least-once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from samovar.service.runtime.processes import RESTARTS_MOST
from tests.faults import world
from tests.faults.comparing import shown, told_by_oracle
from tests.faults.conftest import Making
from tests.faults.ending import comes_back, ends_right, never_committed, processed
from tests.faults.harness import SOON, Service, make_service, wait_until

BATCH = 12
ROOT = Path(__file__).resolve().parent.parent.parent


# ---------------------------------------------------------------- stopping


@contextmanager
def typed(config: Path, words: Path, *arguments: str, kill: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """The command as a person types it; what it says is in a file."""
    command = [sys.executable, "-m", "samovar.service.cli", "run", str(config), *arguments]
    environment = {**os.environ, "SAMOVAR_KILL": kill}
    with words.open("wb") as said, subprocess.Popen(command, cwd=ROOT, stderr=said, env=environment) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def test_sigterm_commits_leaves_nothing_and_exits_0(make: Making, make_twin: Callable[[Service], Service]) -> None:
    """P5: no lock, no open transaction; the next start needs no waiting. P1 across several stops."""
    service = make(world.RULES, world.STREAMS)
    words = service.folder / "said.txt"
    source = world.events(5)
    for _ in range(2):
        service.append_pairs(world.STREAM, world.take(source, 200))
        with typed(service.config, words, "--containers", "2") as process:
            wait_until(
                lambda: all(f"container {slot}: running" in words.read_text() for slot in (0, 1)), "both are at work"
            )
            wait_until(lambda: processed(service), "all input is processed")
            process.terminate()
            assert process.wait(60) == 0, words.read_text()
        assert words.read_text().count("stopped: ") == 2
        for partition in range(service.partitions):
            with service.store(partition):  # not held by anyone
                pass
    ends_right(service, make_twin)


def catches_sigterm(pid: int) -> bool:
    """Whether a process has a handler for it, as the system sees that."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("containers", ["1", "2"])
def test_sigterm_in_the_first_second_is_a_good_end(tmp_path: Path, containers: str) -> None:
    """P5: before there is anything to stop, too. A service file that never comes keeps it there."""
    os.mkfifo(tmp_path / "service.yml")
    words = tmp_path / "said.txt"
    with typed(tmp_path / "service.yml", words, "--containers", containers) as process:
        wait_until(lambda: catches_sigterm(process.pid), "it has begun to load")
        process.terminate()
        assert process.wait(60) == 0, words.read_text()
    assert "internal error" not in words.read_text()


# ---------------------------------------------------------------- several containers


def test_containers_end_with_the_process_that_started_them(
    make: Making, make_twin: Callable[[Service], Service]
) -> None:
    """P5: after kill -9 of it, none goes on alone and holds its slot and its stores against the next start."""
    service = make(world.RULES, world.STREAMS)
    words = service.folder / "said.txt"
    service.append_pairs(world.STREAM, world.take(world.events(5), 200))
    with typed(service.config, words, "--containers", "2") as process:
        wait_until(
            lambda: all(f"container {slot}: running" in words.read_text() for slot in (0, 1)), "both are at work"
        )
        process.kill()
        process.wait()
        wait_until(lambda: words.read_text().count("stopped: ") == 2, "both have ended")
    ends_right(service, make_twin)


def test_a_child_that_is_killed_is_started_again_in_its_slot(
    make: Making, make_twin: Callable[[Service], Service]
) -> None:
    """P1: its store is there, and on Kafka its partitions wait for it. Nobody has to look after it."""
    service = make(world.RULES, world.STREAMS)
    words = service.folder / "said.txt"
    source = world.events(12)
    service.append_pairs(world.STREAM, world.take(source, 200))
    with typed(service.config, words, "--containers", "2") as process:
        wait_until(
            lambda: all(f"container {slot}: running partitions {slot}" in words.read_text() for slot in (0, 1)),
            "both are at work",
        )
        wait_until(lambda: processed(service), "all input is processed")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        killed = time.monotonic()
        os.kill(int(children[1]), signal.SIGKILL)
        service.append_pairs(world.STREAM, world.take(source, 200))
        wait_until(lambda: processed(service), "all input is processed again")
        print(f"processed again after {time.monotonic() - killed:.1f} s")  # noqa: T201 - a figure, not a promise
        wait_until(lambda: words.read_text().count("container 1: running partitions 1") == 2, "it has its own again")
        process.terminate()
        assert process.wait(60) == 0, words.read_text()
    assert "container 1 was ended by SIGKILL; it is started again" in words.read_text()
    ends_right(service, make_twin)


def test_children_that_are_killed_without_end_end_the_rest(make_here: Making) -> None:
    """Whoever watches them sees it; a child is not started again for ever."""
    service = make_here(world.RULES, world.STREAMS)
    words = service.folder / "said.txt"
    service.append_pairs(world.STREAM, world.take(world.events(13), 50))
    with typed(service.config, words, "--containers", "2", kill="assign.after") as process:
        assert process.wait(60) == 128 + signal.SIGKILL, words.read_text()
    assert words.read_text().count("it is started again") == RESTARTS_MOST


def test_containers_that_die_are_stood_in_for(make_here: Making, make_twin: Callable[[Service], Service]) -> None:
    """P1, P6: one of two is killed, at random moments, while the other works on; then it comes back."""
    random_ = random.Random(11)
    service = make_here(world.RULES, world.STREAMS)
    source = world.events(6)
    running = {slot: service.start("--slot", str(slot), poll=BATCH) for slot in (0, 1)}
    for _ in range(8):
        service.append_pairs(world.STREAM, world.take(source, 150))
        aim = service.committed() + random_.randint(1, 100)
        wait_until(lambda aim=aim: service.committed() >= aim, f"{aim} records processed")  # type: ignore[misc]
        slot = random_.choice((0, 1))
        running[slot].kill()
        wait_until(lambda: processed(service), "the other one has taken over")
        running[slot] = service.start("--slot", str(slot), poll=BATCH)
    wait_until(lambda: all("running partitions" in each.text for each in running.values()), "both are at work")
    assert [each.terminate() for each in running.values()] == [0, 0]
    ends_right(service, make_twin)


def test_a_container_that_hung_is_waited_for_on_its_machine(
    kafka: str, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service]
) -> None:
    """P6 on Kafka: it is taken for dead, and goes on as if nothing had happened. The other has to wait for the stores
    and loses nothing by that.
    """
    service = make_service(tmp_path / "s", world.RULES, world.STREAMS, bootstrap=kafka, client=SOON)
    services.append(service)
    source = world.events(7)
    service.append_pairs(world.STREAM, world.take(source, 100))
    hung = service.start("--slot", "0", poll=BATCH)
    wait_until(lambda: service.committed() > 0, "the first container is at work")
    assert hung.process.pid is not None
    os.kill(hung.process.pid, signal.SIGSTOP)
    try:
        service.append_pairs(world.STREAM, world.take(source, 200))
        other = service.start("--slot", "1", poll=BATCH)
        wait_until(lambda: "waits for its store" in other.text, "another container wants the stores")
    finally:
        os.kill(hung.process.pid, signal.SIGCONT)
    service.append_pairs(world.STREAM, world.take(source, 200))
    wait_until(lambda: processed(service), "both go on")
    assert [each.terminate() for each in (hung, other)] == [0, 0], hung.text + other.text
    service.nobody_there()  # else the one that left has a partition still
    ends_right(service, make_twin)


def test_a_zombie_writes_nothing(
    kafka: str, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service]
) -> None:
    """P6 on Kafka: it hung in the middle of a commit, with all of it sent; on another machine its work was done; then
    it wakes up and wants to commit.
    """
    service = make_service(tmp_path / "s", world.RULES, world.STREAMS, bootstrap=kafka, client=SOON)
    services.append(service)
    source = world.events(7)
    service.append_pairs(world.STREAM, world.take(source, 100))
    zombie = service.start("--slot", "0", poll=BATCH, kill="flush.after:3:SIGSTOP")
    wait_until(zombie.hangs, "it hangs")
    try:
        # The broker has acknowledged them: they are in the log, in a transaction that is open, or aborted by now.
        assert never_committed(service) > 0
        service.append_pairs(world.STREAM, world.take(source, 200))
        heir = service.start("--slot", "1", poll=BATCH, config=service.elsewhere())
        wait_until(lambda: processed(service), "another container has taken over")
        before = service.outputs()
    finally:
        zombie.wake()
    comes_back(zombie, service, before)
    service.append_pairs(world.STREAM, world.take(source, 200))
    wait_until(lambda: processed(service), "both go on")
    assert [each.terminate() for each in (zombie, heir)] == [0, 0], zombie.text + heir.text
    service.nobody_there()
    ends_right(service, make_twin)


# ---------------------------------------------------------------- timers

ABSENT = """
rule: absent
match: |
  sequence by card with maxspan=200ms
    [use where n == 1] as came
    ![use where n == 2]
"""


@pytest.mark.parametrize("point", ["commit.before", "commit.after", "write.before"])
def test_a_timer_of_an_idle_input_fires_once_however_it_is_killed(make: Making, point: str) -> None:
    """P9: no event comes any more; the process dies as it commits what the clock brought about."""
    service = make({"r": ABSENT}, {"use": {"key": "card", "idle": "100ms", "partitions": 1}})
    service.run_to_end()  # notes the rules
    service.events("use", [{"card": "c", "n": 1, "ts": time.time_ns() // 1_000_000}])
    # The first commit takes the event, the second is the timer's.
    assert service.start(kill=f"{point}:2").ended() == -signal.SIGKILL
    fired = point != "commit.before"
    assert len(service.alerts()) == fired
    running = service.start()
    wait_until(lambda: len(service.alerts()) == 1, "the timer fired")
    assert running.terminate() == 0
    service.events("use", [{"card": "d", "n": 1, "ts": time.time_ns() // 1_000_000}])
    running = service.start()
    wait_until(lambda: len(service.alerts()) == 2, "the next timer fired")
    assert running.terminate() == 0
    assert [alert["key"] for alert in service.alerts()] == [{"card": "c"}, {"card": "d"}]
    assert [entry.kind for entry in service.journal()] == ["rules", "advance", "advance"]
    assert [entry.number for entry in service.journal()] == [1, 2, 3]


# ---------------------------------------------------------------- at least once


def test_at_least_once_loses_nothing(make: Making, make_twin: Callable[[Service], Service]) -> None:
    """Alerts may come twice, with the same id; none is missing, and state is never counted twice (P2)."""
    service = make(world.RULES, world.STREAMS, delivery="at_least_once")
    source = world.events(8)
    for point in ("produce.after:3", "offsets.before:2", "commit.before:3", "commit.after:2", "write.before:3"):
        service.append_pairs(world.STREAM, world.take(source, 80))
        running = service.start(kill=point, poll=BATCH)
        assert running.ended() == -signal.SIGKILL, running.text
    service.run_to_end()
    straight = make_twin(service)
    straight.run_to_end()
    assert service.digests() == straight.digests()
    world.end(service)
    service.run_to_end()
    found = {alert["id"]: alert for alert in service.alerts()}
    assert shown(list(found.values())) == shown(told_by_oracle(service, world.STREAM).matches)


def test_the_way_of_delivery_may_change(make_here: Making, make_twin: Callable[[Service], Service]) -> None:
    """After a clean stop, and after a kill, either way goes on from the other's state."""
    service = make_here(world.RULES, world.STREAMS)
    source = world.events(9)
    for delivery in ("at_least_once", "exactly_once", "at_least_once", "exactly_once"):
        service.edit(lambda data, delivery=delivery: data.update(delivery=delivery))  # type: ignore[misc]
        service.append_pairs(world.STREAM, world.take(source, 60))
        service.run_to_end(poll=BATCH)
    ends_right(service, make_twin)


def test_the_journal_tells_the_rules_that_ran(make_here: Making) -> None:
    service = make_here({"r": ABSENT}, {"use": {"key": "card", "idle": "1h", "partitions": 1}})
    service.events("use", [{"card": "c", "n": 1, "ts": 1_700_000_000_000}])
    service.run_to_end()
    (entry,) = service.journal()
    (rule,) = entry.facts["rules"]
    assert (rule["id"], rule["text"]) == ("absent", ABSENT)
