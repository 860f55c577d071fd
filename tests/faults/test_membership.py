"""Partitions that change hands: anyone who gets one reuses or restores its state, while its own tasks go on."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import child, world
from tests.faults.conftest import Making
from tests.faults.ending import ends_right, left_nothing, processed
from tests.faults.harness import Service, wait_until

BATCH = 12
PARTITIONS = 3
STREAMS = {world.STREAM: {**world.STREAMS[world.STREAM], "partitions": PARTITIONS}}
SOON = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200"}
NOT_SOON = {"session.timeout.ms": "120000"}  # longer than a test waits for anything
RESTORED = re.compile(r"partition (\d+): ([\d,]+) records restored")


def restored(running: child.Running) -> dict[int, int]:
    """What a container said that it restored, by partition."""
    return {int(number): int(count.replace(",", "")) for number, count in RESTORED.findall(running.text)}


def machine(service: Service, slot: int) -> Path:
    """A service file for a machine of its own: all is the same but the folder of the state."""
    path = service.folder / f"machine-{slot}.yml"
    path.write_text(json.dumps({**json.loads(service.config.read_text()), "state": f"machine-{slot}"}))
    return path


def at_work(running: child.Running) -> bool:
    return re.search(r"running partitions \d", running.text) is not None


def test_a_rolling_restart_with_its_volumes_restores_nothing(
    make: Making, make_twin: Callable[[Service], Service]
) -> None:
    """Each of three containers is stopped and started again in its slot, while input comes in. On Kafka nobody else
    even hears of it.
    """
    service = make(world.RULES, STREAMS)
    source = world.events(61)
    service.append_pairs(world.STREAM, world.take(source, 200))
    running = {slot: service.start("--slot", str(slot), poll=BATCH) for slot in range(PARTITIONS)}
    own = {slot: f"container {slot}: running partitions {slot}\n" for slot in running}
    wait_until(lambda: all(own[slot] in running[slot].text for slot in running), "each has its own partition")
    wait_until(lambda: processed(service), "all is processed")
    quiet = {slot: len(running[slot].text) for slot in running}
    for slot, old in list(running.items()):
        assert old.terminate() == 0, old.text
        new = running[slot] = service.start("--slot", str(slot), poll=BATCH)
        service.append_pairs(world.STREAM, world.take(source, 50))
        wait_until(lambda new=new, slot=slot: own[slot] in new.text, "it is back")  # type: ignore[misc]
        wait_until(lambda: processed(service), "all is processed again")
        assert restored(new) == {}, new.text
        if service.settings.log.kafka is not None:
            waiting = [other for other in running if other > slot]
            assert all("running partitions" not in running[other].text[quiet[other] :] for other in waiting)
    assert [each.terminate() for each in running.values()] == [0] * PARTITIONS
    service.nobody_there()
    ends_right(service, make_twin)


@pytest.mark.parametrize(
    ("flags", "sent"), [(["--leave"], signal.SIGTERM), ([], signal.SIGUSR1)], ids=["flag", "signal"]
)
def test_one_that_goes_for_good_hands_over_at_once(
    make: Making, make_twin: Callable[[Service], Service], flags: list[str], sent: signal.Signals
) -> None:
    """P5, P6: the other goes on with its partitions long before the session of the one that left would be over."""
    service = make(world.RULES, STREAMS, client=NOT_SOON)
    source = world.events(64)
    service.append_pairs(world.STREAM, world.take(source, 200))
    stays, goes = (service.start("--slot", str(slot), *flags, poll=BATCH) for slot in (0, 1))
    wait_until(lambda: at_work(stays) and at_work(goes), "both are at work")
    wait_until(lambda: processed(service), "all is processed")
    assert goes.process.pid is not None
    os.kill(goes.process.pid, sent)
    assert goes.ended() == 0, goes.text
    assert len(service.log.members(service.settings.service)) == 1
    service.append_pairs(world.STREAM, world.take(source, 100))
    wait_until(lambda: processed(service), "the other one has taken over")
    assert "running partitions 0, 1, 2" in stays.text
    assert stays.process.pid is not None
    os.kill(stays.process.pid, signal.SIGUSR1)
    assert stays.ended() == 0, stays.text
    assert not service.log.members(service.settings.service)
    ends_right(service, make_twin)


def test_several_machines_each_with_its_own_state(make_kafka: Making, make_twin: Callable[[Service], Service]) -> None:
    """P2, P10: a partition that moves is restored from the changelog; the folder it left behind is tailed when it comes
    back, and replaced whole where it is too old for that.
    """
    service = make_kafka(world.RULES, STREAMS, client=SOON)
    source = world.events(62)
    service.append_pairs(world.STREAM, world.take(source, 200))
    first = service.start("--slot", "0", poll=BATCH, config=machine(service, 0))
    wait_until(lambda: processed(service), "one machine has all of it")
    assert first.terminate() == 0
    service.nobody_there()

    service.append_pairs(world.STREAM, world.take(source, 100))
    second = service.start("--slot", "1", poll=BATCH, config=machine(service, 1))
    wait_until(lambda: processed(service), "the other machine has taken over")
    moved = restored(second)
    assert moved.keys() == set(range(PARTITIONS)), second.text
    assert second.terminate() == 0
    service.nobody_there()

    service.append_pairs(world.STREAM, world.take(source, 100))
    again = service.start("--slot", "0", poll=BATCH, config=machine(service, 0))
    wait_until(lambda: processed(service), "the first machine is back")
    tailed = restored(again)
    assert all(0 < tailed[number] < moved[number] for number in tailed), (tailed, moved)
    assert again.terminate() == 0
    service.nobody_there()

    # Half of this is over at once: what machine 1 has is older than tombstones are kept.
    service.edit(lambda data: data.update(changelog={"delete_retention": "1ms"}))
    whole = service.start("--slot", "1", poll=BATCH, config=machine(service, 1))
    wait_until(lambda: at_work(whole), "the second machine is back")
    wait_until(lambda: len(restored(whole)) == PARTITIONS, "and has restored all")
    wait_until(lambda: processed(service), "and has processed all")
    assert whole.text.count("too old to be tailed, and was replaced whole") == PARTITIONS, whole.text
    assert whole.terminate() == 0
    service.nobody_there()
    service.edit(lambda data: data.update(state="machine-1"))
    ends_right(service, make_twin)


def test_others_go_on_during_a_long_restore_and_a_rebalance_in_it_is_safe(
    make: Making, make_twin: Callable[[Service], Service]
) -> None:
    """P6, P7: a container restores slowly what it took over. Its own partition is worked on meanwhile; then partitions
    move again in the middle of the restore.
    """
    service = make(world.RULES, STREAMS, client=SOON)
    source = world.events(63)
    service.append_pairs(world.STREAM, world.take(source, 300))
    service.run_to_end(poll=BATCH)
    service.nobody_there()
    held = service.folder / "held"
    held.mkdir()
    for number in (1, 2):
        service.lose_store(number)
        (held / str(number)).touch()
    slow = service.start("--slot", "0", poll=BATCH, held=held)
    wait_until(lambda: "running partitions 0; restoring 1" in slow.text, "it restores two of them")
    service.append_pairs(world.STREAM, world.take(source, 60))
    wait_until(lambda: service.is_processed_in(0), "its own partition is worked on")

    helper = service.start("--slot", "1", poll=BATCH)
    wait_until(lambda: at_work(helper), "another one has taken a partition from it")
    wait_until(lambda: service.is_processed_in(2), "and goes on with it")
    assert restored(slow) == {}, slow.text
    for each in held.iterdir():
        each.unlink()
    wait_until(lambda: processed(service), "all is processed")
    assert restored(slow).keys() == {1}, slow.text
    assert [each.terminate() for each in (slow, helper)] == [0, 0], slow.text + helper.text
    service.nobody_there()
    left_nothing(service)
    ends_right(service, make_twin)
