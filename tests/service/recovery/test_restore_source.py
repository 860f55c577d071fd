"""`samovar restore --from source`: the input folded again, and a changelog that follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.record import key_prefix, row_parts
from samovar.changelog.log import Append, TopicPartition
from samovar.common.errors import Refused
from samovar.state.rocks import RocksStore
from samovar.tasks.replay.repair import ChangelogRepair
from tests.support.small_service import (
    Service,
    is_equal,
    key_of,
    make,
    many,
    purchase,
    refused,
    restored,
    run,
    run_apart,
    wipe,
)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def test_p2_from_source_after_the_changelog_was_deleted(service: Service) -> None:
    """P2: input and journal are enough; the changelog is written again and agrees."""
    service.process(many(100))
    service.process(many(60, start_s=400))
    before = service.digests()
    with service.log() as log:
        log.delete(["s-changelog"])
    found = restored(service, "--from", "source", "--verify")
    assert {each["partition"]: each["digest"] for each in found["restored"]} == before
    assert all(each["rows_to_repair"] > 1 for each in found["restored"])
    assert all("the group's offsets say how far to go" in each["notes"][0] for each in found["plan"])
    wipe(service)
    restored(service, "--from", "changelog", "--verify")
    assert service.digests() == before
    service.process(many(60, start_s=800))
    assert is_equal(service)


def test_p2_from_source_repairs_a_changelog_that_lost_its_end(service: Service) -> None:
    """P2: the group's offsets say how far the input was processed, where the changelog says less."""
    service.process(many(60))
    with service.log() as log:
        positions = log.bounds([TopicPartition("s-changelog", 0)])[TopicPartition("s-changelog", 0)]
        reader = log.reader({TopicPartition("s-changelog", 0): positions.begin})
        early = [pair for records in reader.poll(1_000, 1.0) for pair in records.pairs()]
        reader.close()
    service.process(many(60, start_s=300))
    before = service.digests()
    with service.log() as log:
        log.append(
            [Append(topic="s-changelog", records=early, partition=0)]
        )  # as if what came later had not been written
    store = RocksStore(service.store(0))
    rows = [row for row, _ in store.range(b"r", b"s")]
    store.close()
    with service.log() as log:
        gone = [(row, None) for row in rows if row not in dict(early)]
        log.append([Append(topic="s-changelog", records=[*gone, early[-1]], partition=0)])
    dry = restored(service, "--from", "source", "--partition", 0, "--dry-run")
    assert dry["differences"][0]["states_differ"] > 0
    (found,) = restored(service, "--from", "source", "--partition", 0, "--verify")["restored"]
    assert found["digest"] == before[0]
    assert found["rows_to_repair"] == dry["differences"][0]["rows_to_repair"]
    again = restored(service, "--from", "source", "--dry-run")
    assert [each["rows_to_repair"] for each in again["differences"]] == [0, 0]


@pytest.mark.parametrize("point", ["produce.after:1", "commit.before:1", "commit.after:1", "commit.after:2"])
def test_p3_killed_while_the_changelog_is_repaired(service: Service, point: str) -> None:
    """P3: a changelog has all of a partition's repair or nothing of it; the next run ends it."""
    service.process(many(60))
    before = service.digests()
    with service.log() as log:
        log.delete(["s-changelog"])
    killed = run_apart("restore", service.config, "--from", "source", SAMOVAR_KILL=point)
    assert killed.returncode == -9, killed.stderr
    restored(service, "--from", "source", "--verify")
    assert service.digests() == before
    assert is_equal(service)


def test_p4_half_a_repair_is_never_run_on(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: a repair too large for one transaction leaves a changelog without a position until it has ended."""
    service.process(many(60))
    before = service.digests()
    for partition in (0, 1):
        store = RocksStore(service.store(partition))
        gone = [(row, None) for row, _ in store.range(b"r", b"s")]
        store.close()
        with service.log() as log:
            log.append([Append(topic="s-changelog", records=gone, partition=partition)])
    monkeypatch.setenv("SAMOVAR_TUNABLES__APPEND_ROWS", "3")
    whole = ChangelogRepair.write
    appended: list[int] = []

    def fails(self: ChangelogRepair, appends: Any, offsets: Any) -> Any:
        appended.append(1)
        if len(appended) == 2:
            raise Refused("repair-failed", "the test says so", "Run it again.")
        return whole(self, appends, offsets)

    with monkeypatch.context() as patch:
        patch.setattr(ChangelogRepair, "write", fails)
        assert refused(service, "--from", "source") == "repair-failed"
    wipe(service)
    with pytest.raises(Refused, match="state-lost"):
        service.process([])
    restored(service, "--from", "source", "--verify")
    assert service.digests() == before
    service.process(many(60, start_s=300))
    assert is_equal(service)


def test_from_source_takes_away_what_is_too_much(service: Service) -> None:
    service.process(many(60))
    partition = service.partition("c3")
    store = RocksStore(service.store(partition))
    (rows,) = store.prefixes([key_prefix(key_of("c3"))])
    store.close()
    row, value = next((row, value) for row, value in rows if row_parts(row)[1].startswith("countries"))
    with service.log() as log:
        log.append([Append(topic="s-changelog", records=[(row.replace(b"c3", b"zz"), value)], partition=partition)])
    (dry,) = restored(service, "--from", "source", "--partition", partition, "--dry-run")["differences"]
    assert dry == {"partition": partition, "rows_to_repair": 1, "states_differ": 1}
    restored(service, "--from", "source", "--partition", partition)
    assert is_equal(service)
    service.process(many(10, start_s=300))
    assert run("state", "get", service.config, "zz").exit_code == 1


def test_p1_alerts_after_a_restore_from_source_come_once(service: Service) -> None:
    """P1: outputs are those of one sequential run."""
    service.process([purchase("c1", 0, 1), purchase("c1", 5, 1), purchase("c1", 10, 30)])
    wipe(service)
    restored(service, "--from", "source")
    service.process([purchase("c1", 60, 900), purchase("c1", 120, 3)])
    alerts = [json.loads(line)["value"] for line in run("read", service.config, "alerts", "--json").stdout.splitlines()]
    assert [alert["rule"] for alert in alerts].count("testing") == 1


def test_where_nothing_was_ever_processed(service: Service) -> None:
    service.produce(many(6))
    assert refused(service, "--from", "source") == "nothing-processed"
