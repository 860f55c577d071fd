"""Rules that change while a service runs: each partition takes a change once, at a place that its journal tells, and
replay, rebuild, verify, restore and rewind do the same (P1, P2).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.journal import Entry, unpack_entry
from samovar.service.rule_watch import RuleWatch
from samovar.service.rulebook import read_rulebook
from samovar.service.stores import site_of
from samovar.state.memory import MemoryStore
from samovar.tasks.container import Container
from samovar.tasks.rebuild import Until, rebuild
from tests.contracts.log_driving import read_to_end
from tests.oncall import RULES, Service, catch_up, make, many, run

BIG = """
rule: big
match: |
  sequence by card with maxspan=0ms
    [purchase where amount > 500] as p
"""
TESTING_3 = RULES["testing"].replace("runs=2..", "runs=1..")
RISKY = """
rule: risky
lists: {places: [FR]}
match: |
  sequence by card with maxspan=10m
    [purchase where country in $places] as first
    [purchase where country in $places] as second
"""


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def published(service: Service, text: str, *options: object, code: int = 0, name: str = "rule.yml") -> dict[str, Any]:
    file = service.config.parent / name
    file.write_text(text)
    done = run("rules", "publish", service.config, file, "--json", *options)
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout) if code == 0 else {"refused": done.stderr}
    return found


def take(container: Container) -> None:
    """Look at the rules topic, as a thread does while a service runs; and go on."""
    assert isinstance(container.renewal, RuleWatch)
    container.renewal.look()
    catch_up(container)


def alerts(service: Service) -> list[dict[str, Any]]:
    with service.log() as log:
        return [json.loads(row.value or b"") for row in read_to_end(log, "s-alerts")]


def journal(service: Service, partition: int) -> list[Entry]:
    with service.log() as log:
        rows = read_to_end(log, "s-journal")
        return [unpack_entry(row.value or b"") for row in rows if row.at.partition == partition]


def equal(service: Service) -> None:
    """P2: store, changelog and source by digest; P1: the fold of the source raises the alerts that were raised."""
    done = run("verify", service.config, "--json")
    assert done.exit_code == 0, done.output
    for each in json.loads(done.stdout):
        assert len(set(each["digests"].values())) == 1, each
    raised = sorted(alert["id"] for alert in alerts(service))
    assert sorted(folded(service)) == raised


def folded(service: Service) -> Iterator[str]:
    """The ids of all alerts that a fold of input and journal raises."""
    with service.log() as log:
        site = site_of(service.settings, log)
        for each in site.stages():
            for partition in range(site.partitions):
                until = Until({spec.stream: _end(log, spec.topic, partition) for spec in each.plan.inputs})
                found: list[str] = []
                rebuild(log, each.plan, partition, MemoryStore(), until, on_alerts=lambda pairs, ids=found: ids.extend(
                    json.loads(value or b"")["id"] for _, value in pairs))  # fmt: skip
                yield from found


def _end(log: Any, topic: str, partition: int) -> int:
    from samovar.changelog.log import TopicPartition

    at = TopicPartition(topic, partition)
    return int(log.bounds([at])[at].end)


def test_a_running_service_takes_a_rule_between_two_batches(service: Service) -> None:
    service.produce(many(60))
    with service.container() as container:
        before = {alert["rule"] for alert in alerts(service)}
        assert "big" not in before
        published(service, BIG)
        service.produce(many(60, start_s=600))
        take(container)
        took = [alert for alert in alerts(service) if alert["rule"] == "big"]
        assert took
        assert min(alert["at"] for alert in took) > max(event["ts"] for event in many(60)) - 2_000
    equal(service)
    for partition in (0, 1):
        entries = [entry for entry in journal(service, partition) if entry.kind == "rules"]
        assert [entry.facts.get("book") for entry in entries] == [None, 2]
        assert entries[1].inputs["purchase"] > 0
    with service.log() as log:
        book = read_rulebook(service.settings, log)
        effect = book.took_effect("big", 1)
        assert effect is not None
        assert {partition: dict(inputs) for partition, inputs in effect.items()} == {
            partition: dict([e for e in journal(service, partition) if e.kind == "rules"][1].inputs)
            for partition in (0, 1)
        }
        assert book.took_effect("big", 2) is None
