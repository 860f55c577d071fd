"""Rules are published while a service runs and is killed: every partition takes a change once, at one place of its
input, and what comes out is what the oracle says about the rules before and after that place (P1, P2).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from samovar.changelog.formats.journal import JournalEntry
from samovar.service.rules.publishing import plan_publish, publish
from samovar.service.topology.plans import plan_of
from samovar.service.topology.rule_registry import with_published_rules
from samovar.state.memory import MemoryStore
from samovar.tasks.replay.rebuild import ReplayEnd, rebuild
from tests.faults import world
from tests.faults.comparing import shown, told_by_oracle
from tests.faults.conftest import Making
from tests.faults.ending import comes_back, left_nothing, processed
from tests.faults.harness import SOON, Match, Service, digest_of, wait_until

LARGE = """
rule: large
match: |
  sequence by card with maxspan=0ms
    [buy where amount > 100] as p
"""
# The same matches, another version: its partial matches are dropped, or drained.
OTHER_FORGOTTEN = world.RULES["forgotten"].replace("maxspan=1m", "maxspan=50s")
POINTS = ("switch.before:1", "switch.before:2", "switch.sent:1", "switch.sent:2", "switch.after:1")


@pytest.fixture
def service(make: Making) -> Iterator[Service]:
    made = make(world.RULES, world.STREAMS)
    yield made
    left_nothing(made)


def change(service: Service, text: str, **options: Any) -> None:
    plan = plan_publish(service.settings, service.log, text, **options)
    publish(service.settings, service.log, plan, "test", "")


def switches(service: Service, partition: int) -> list[JournalEntry]:
    return [entry for entry in service.journal(partition) if entry.kind == "rules" and "change" in entry.facts]


def is_taken(service: Service, number: int) -> bool:
    return all(number in [entry.facts["change"] for entry in switches(service, each)] for each in (0, 1))


def folded(service: Service) -> tuple[list[str], dict[int, str], dict[int, str]]:
    """Ids of alerts and digests of states as a fold of input and journal has them; and digests of the stores."""
    plan = plan_of(with_published_rules(service.settings, service.log), service.partitions)
    ids: list[str] = []
    again: dict[int, str] = {}
    stored: dict[int, str] = {}
    for partition, position in service.positions().items():
        made = MemoryStore()
        until = ReplayEnd({stream: each.next for stream, each in position.inputs.items()})
        rebuilt = rebuild(
            service.log, plan, partition, made, until,
            on_alerts=lambda pairs: ids.extend(json.loads(value or b"")["id"] for _, value in pairs),
        )  # fmt: skip
        again[partition] = digest_of(rebuilt.plan, made)
        with service.store(partition) as store:
            stored[partition] = digest_of(rebuilt.plan, store)
    return ids, again, stored


def ends_right(service: Service) -> None:
    """The fold says the same as the live run, and the oracle says the same of what the change did not touch."""
    world.end(service)
    service.run_to_end()
    ids, again, stored = folded(service)
    assert again == stored
    alerts = service.alerts()
    assert sorted(ids) == sorted(alert["id"] for alert in alerts)
    assert len(set(ids)) == len(ids)
    told = told_by_oracle(service, world.STREAM).matches
    kept = [rule for rule in world.RULES if rule != "forgotten"]
    assert shown([a for a in alerts if a["rule"] in kept]) == shown([m for m in told if m["rule"] in kept])


def large_since(service: Service) -> list[Match]:
    """What the oracle says of the rule that came: events that were released after the change of their partition."""
    rules, service.rules = service.rules, {**service.rules, "large": LARGE}
    try:
        told = [match for match in told_by_oracle(service, world.STREAM).matches if match["rule"] == "large"]
    finally:
        service.rules = rules
    found = []
    for match in told:
        (_, partition, _) = match["steps"]["p"][0]
        watermark = switches(service, partition)[0].watermark
        if watermark is None or match["at"] > watermark:
            found.append(match)
    return found


@pytest.mark.parametrize("point", POINTS)
def test_killed_around_a_change(service: Service, point: str) -> None:
    """P1, P2, P3: a crash is before the change or after it."""
    source = world.events(7)
    service.append_pairs(world.STREAM, world.take(source, 150))
    running = service.start(kill=point, poll=25)
    wait_until(lambda: service.committed() == service.written(), f"all is processed; {running.text}")
    change(service, LARGE)
    service.append_pairs(world.STREAM, world.take(source, 100))
    assert running.ended() == -signal.SIGKILL, running.text
    service.append_pairs(world.STREAM, world.take(source, 100))
    service.run_to_end(poll=25)
    ends_right(service)
    for partition in range(service.partitions):
        (entry,) = switches(service, partition)
        assert entry.facts["change"] == 2
        assert entry.inputs[world.STREAM] > 0
    alerts = [alert for alert in service.alerts() if alert["rule"] == "large"]
    assert shown(alerts) == shown(large_since(service))
    assert alerts


def test_two_containers_take_each_change_once_a_partition(service: Service) -> None:
    source = world.events(8)
    service.append_pairs(world.STREAM, world.take(source, 150))
    running = [service.start("--slot", str(slot), poll=25) for slot in range(2)]
    wait_until(lambda: service.committed() == service.written(), "all is processed")
    for number, (text, options) in enumerate(
        [(LARGE, {}), (OTHER_FORGOTTEN, {"drain": True}), (LARGE, {"shadow": True})]
    ):
        change(service, text, **options)
        service.append_pairs(world.STREAM, world.take(source, 60))
        said = [each.text for each in running]
        wait_until(partial(is_taken, service, number + 2), f"change {number + 2} is taken: {said}")
    for each in running:
        assert each.terminate() == 0, each.text
    service.nobody_there()
    ends_right(service)
    for partition in range(service.partitions):
        books = [entry.facts["change"] for entry in switches(service, partition)]
        assert books[:3] == [2, 3, 4]
        assert books.count(4) <= 2  # what has drained goes with an entry of its own


def test_a_lost_store_after_changes(service: Service) -> None:
    """P2, P10: the changelog has what is at work."""
    source = world.events(9)
    service.append_pairs(world.STREAM, world.take(source, 150))
    service.run_to_end()
    change(service, OTHER_FORGOTTEN, drain=True)
    service.append_pairs(world.STREAM, world.take(source, 50))
    service.run_to_end()
    service.wipe()
    service.append_pairs(world.STREAM, world.take(source, 50))
    service.run_to_end()
    assert all(len(switches(service, partition)) == 1 for partition in (0, 1))
    ends_right(service)


def test_a_zombie_does_not_take_a_change_that_was_taken_for_it(make_kafka: Making) -> None:
    """P3, P6 on Kafka: it hangs between the changes of its two partitions, for longer than its session lasts; all is
    done on another machine; then it wakes up in the middle of the change and wants to commit the second half.
    """
    service = make_kafka(world.RULES, world.STREAMS, client=SOON)
    source = world.events(10)
    service.append_pairs(world.STREAM, world.take(source, 150))
    zombie = service.start("--slot", "0", poll=25, kill="switch.before:2:SIGSTOP")
    wait_until(lambda: processed(service), "all is processed")
    change(service, LARGE)
    wait_until(zombie.hangs, "it hangs in the middle of the change")
    try:
        assert sum(len(switches(service, each)) for each in (0, 1)) == 1
        service.append_pairs(world.STREAM, world.take(source, 100))
        heir = service.start("--slot", "1", poll=25, config=service.elsewhere())
        wait_until(lambda: processed(service) and is_taken(service, 2), "another container has taken over")
        before = service.outputs()
    finally:
        zombie.wake()
    comes_back(zombie, service, before)
    service.append_pairs(world.STREAM, world.take(source, 100))
    wait_until(lambda: processed(service), "both go on")
    assert [each.terminate() for each in (zombie, heir)] == [0, 0], zombie.text + heir.text
    service.nobody_there()
    ends_right(service)
    assert [len(switches(service, each)) for each in (0, 1)] == [1, 1]
    assert shown([a for a in service.alerts() if a["rule"] == "large"]) == shown(large_since(service))
    left_nothing(service)
