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

from samovar.changelog.errors import LogUnavailable
from tests.faults import world
from tests.faults.comparing import same_alerts, shown, told_by_oracle
from tests.faults.conftest import Making
from tests.faults.harness import Service, make_service, wait_until

BATCH = 12
ROOT = Path(__file__).resolve().parent.parent.parent


def processed(service: Service) -> bool:
    try:
        return service.committed() == service.written()
    except LogUnavailable:  # a transaction is pending: of one that hangs
        return False


def ends_right(service: Service, make_twin: Callable[[Service], Service]) -> None:
    """As the oracle has it, with the state of a straight run."""
    service.run_to_end()
    straight = make_twin(service)
    straight.run_to_end()
    assert service.digests() == straight.digests()
    world.end(service)
    service.run_to_end()
    same_alerts(service, told_by_oracle(service, world.STREAM))


# ---------------------------------------------------------------- stopping


@contextmanager
def typed(service: Service, words: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a person types it; what it says is in a file."""
    command = [sys.executable, "-m", "samovar.service.cli", "run", str(service.config), *arguments]
    with words.open("wb") as said, subprocess.Popen(command, cwd=ROOT, stderr=said) as process:
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
        with typed(service, words, "--containers", "2") as process:
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


# ---------------------------------------------------------------- several containers


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


@pytest.mark.parametrize("machine", ["one machine", "two machines"])
def test_a_container_that_hung_and_wakes_up_is_fenced(
    kafka: str, tmp_path: Path, services: list[Service], make_twin: Callable[[Service], Service], machine: str
) -> None:
    """P6 on Kafka: it is taken for dead, another does its work, it goes on as if nothing had happened. On one machine
    the other first has to wait for the stores.
    """
    service = make_service(tmp_path / "s", world.RULES, world.STREAMS, bootstrap=kafka)
    services.append(service)
    source = world.events(7)
    service.append_pairs(world.STREAM, world.take(source, 100))
    hung = service.start("--slot", "0", poll=BATCH)
    wait_until(lambda: service.committed() > 0, "the first container is at work")
    assert hung.process.pid is not None
    os.kill(hung.process.pid, signal.SIGSTOP)
    try:
        service.append_pairs(world.STREAM, world.take(source, 200))
        config = service.elsewhere() if machine == "two machines" else None
        other = service.start("--slot", "1", poll=BATCH, config=config)
        if machine == "two machines":
            wait_until(lambda: processed(service), "another container has taken over")
        else:
            wait_until(lambda: "waits for its store" in other.text, "another container wants the stores")
    finally:
        os.kill(hung.process.pid, signal.SIGCONT)
    service.append_pairs(world.STREAM, world.take(source, 200))
    wait_until(lambda: processed(service), "both go on")
    assert [each.terminate() for each in (hung, other)] == [0, 0], hung.text + other.text
    service.nobody_there()  # else the one that left has a partition still
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
    service.events("use", [{"card": "c", "n": 1, "ts": time.time_ns() // 1_000_000}])
    # The first commit takes the event and notes the rules, the second is the timer's.
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
