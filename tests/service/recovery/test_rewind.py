"""`samovar rewind`: state, offsets and journal set back together, and what was published is known."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.journal import (
    FORMAT,
    JournalEntry,
    effective_entries,
    is_void,
    pack_entry,
    to_ranges,
    unpack_entry,
    was_rewound,
)
from samovar.changelog.formats.record import InputPosition, Position
from samovar.changelog.log import TopicPartition
from samovar.common.errors import Refused
from samovar.state.memory import MemoryStore
from samovar.tasks.model.results import Counts
from samovar.tasks.replay.rebuild import journal_of
from samovar.tasks.replay.repair import ChangelogRepair
from samovar.tasks.rules.alert_filter import Alarm
from samovar.tasks.rules.replay_dedup import ReplayDedupFilter, rows_between, skip_rows
from tests.support.small_service import (
    HOUR,
    START,
    Service,
    catch_up,
    is_equal,
    make,
    many,
    purchase,
    run,
    run_apart,
    wipe,
)

TIMER = """
rule: waiting
match: |
  sequence by card with maxspan=20s
    [purchase where amount > 200] as big
    ![purchase where amount > 200]
"""


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    (tmp_path / "s" / "rules" / "waiting.yml").write_text(TIMER)
    return made


def rewind(service: Service, second: float, *options: object, code: int = 0) -> dict[str, Any]:
    done = run("rewind", service.config, "--to-time", START + int(second * 1000), "--json", *options)
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(service: Service, second: float, *options: object) -> str:
    done = run("rewind", service.config, "--to-time", START + int(second * 1000), *options)
    assert done.exit_code == 2, done.output
    return done.stderr.split(":")[0]


def alerts(service: Service) -> list[dict[str, Any]]:
    done = run("read", service.config, "alerts", "--json")
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


def ids(service: Service) -> Counter[str]:
    return Counter(alert["id"] for alert in alerts(service))


def go_on(service: Service) -> None:
    """Run until all that is there has been processed."""
    service.process([])


# ---------------------------------------------------------------- as if it had never been


def test_p1_skipped_alerts_are_not_published_twice_and_the_state_is_the_same(service: Service) -> None:
    """P1, P2: after a rewind and a run, outputs and state are those of a service that was never set back."""
    service.process(many(150))
    digests, published = service.digests(), ids(service)
    assert {alert["rule"] for alert in alerts(service)} == {"testing", "countries", "unusual", "waiting"}
    for second in (300.5, 50.5):
        found = rewind(service, second)
        assert {each["partition"] for each in found["rewound"]} == {0, 1}
        assert sum(each["alerts_to_skip"] for each in found["rewound"]) == sum(
            alert["at"] >= START + second * 1000 for alert in alerts(service)
        )
        assert service.digests() != digests
        assert is_equal(service)
        go_on(service)
        assert (service.digests(), ids(service)) == (digests, published)
        assert is_equal(service)


def test_published_again_where_that_is_wanted(service: Service) -> None:
    service.process(many(150))
    digests, before = service.digests(), alerts(service)
    rewind(service, 171.5, "--alerts", "again")
    go_on(service)
    assert service.digests() == digests
    wanted = Counter({alert["id"]: 1 + (alert["at"] > START + 171_500) for alert in before})
    assert ids(service) == wanted
    assert set(wanted.values()) == {1, 2}


def test_what_comes_after_a_rewind_is_published(service: Service) -> None:
    """Only what was published is skipped: new events give new alerts, though ids are still remembered."""
    service.process(many(100))
    other = make(service.config.parent.parent / "other")
    (other.config.parent / "rules" / "waiting.yml").write_text(TIMER)
    other.process(many(160))
    rewind(service, 100.5)
    service.process(many(160)[100:])
    assert service.digests() == other.digests()
    assert ids(service) == ids(other)


def test_a_rewind_of_a_rewind(service: Service) -> None:
    """Up to where alerts were published is remembered, also where a second rewind begins further back than that."""
    service.process(many(150))
    digests, published = service.digests(), ids(service)
    rewind(service, 300.5)
    rewind(service, 100.5)
    rewind(service, 50.5, "--alerts", "skip")
    go_on(service)
    assert (service.digests(), ids(service)) == (digests, published)
    assert is_equal(service)
    rewind(service, 50.5)
    go_on(service)
    assert (service.digests(), ids(service)) == (digests, published)


def test_the_state_is_that_of_the_moment(service: Service, tmp_path: Path) -> None:
    service.process(many(150))
    out = tmp_path / "out"
    assert run("restore", service.config, "--from", "source", "--to-time", START + 171_500, "--out", out).exit_code == 0
    rewind(service, 171.5)
    found = json.loads(run("state", "digest", service.config, "--store", out, "--json").stdout)
    assert {each["partition"]: each["digest"] for each in found} == service.digests()


def test_other_rules_may_go_on_from_there(service: Service) -> None:
    """The usual reason: a rule was wrong. With the right one, what it finds is published; what others found is not."""
    path = service.config.parent / "rules" / "testing.yml"
    right = path.read_text()
    path.write_text(right.replace("amount > 200", "amount > 20000"))
    service.process(many(150))
    before = ids(service)
    path.write_text(right)
    rewind(service, 0.5)
    go_on(service)
    found = alerts(service)
    new = [alert for alert in found if alert["id"] not in before]
    assert {alert["rule"] for alert in new} == {"testing"}
    assert set(ids(service).values()) == {1}
    assert is_equal(service)


# ---------------------------------------------------------------- several streams, idle time

TWO_STREAMS = """
service: s
streams:
  purchase: {key: card, partitions: 1, slack: 2s}
  login: {key: card, partitions: 1, slack: 5s}
"""
BOTH = """
rule: both
match: |
  sequence by card with maxspan=1m
    [login where true] as login
    [purchase where amount > 200] as big
"""


def test_two_streams_and_event_time_that_passed_by_itself(service: Service) -> None:
    """Each stream goes back to its own place; entries of the journal that came after it count no more."""
    service.config.write_text(TWO_STREAMS)
    (service.config.parent / "rules" / "both.yml").write_text(BOTH)
    service.produce(many(60))
    service.produce([purchase(f"c{n % 5}", n * 4.5, 1) for n in range(40)], "login")
    service.settle()
    service.settle()
    published = ids(service)
    with service.container() as container:
        entries = journal_of(container.log, container.plans[""], 0)
        assert {entry.kind for entry in entries} >= {"rules", "advance"}
    for second in (150, 60.25):
        rewind(service, second)
        assert is_equal(service)
        go_on(service)
        service.settle()
        service.settle()
        assert ids(service) == published
        assert is_equal(service)


# ---------------------------------------------------------------- whatever happens on the way


@pytest.mark.parametrize("point", ["commit.before:1", "commit.after:1"])
def test_killed_anywhere_it_can_be_run_again(service: Service, point: str) -> None:
    service.process(many(150))
    digests, published = service.digests(), ids(service)
    killed = run_apart("rewind", service.config, "--to-time", START + 171_500, SAMOVAR_KILL=point)
    assert killed.returncode == -9, killed.stderr
    done = rewind(service, 171.5)
    left = {each["partition"] for each in done["plan"] if each["left"] == "it is there already"}
    assert len(left) == (point == "commit.after:1")
    go_on(service)
    assert (service.digests(), ids(service)) == (digests, published)
    assert is_equal(service)


def test_a_store_that_was_not_replaced_follows_the_changelog(service: Service) -> None:
    """As on another machine, or after a kill between the commit and the end."""
    service.process(many(150))
    digests, published = service.digests(), ids(service)
    killed = run_apart("rewind", service.config, "--to-time", START + 171_500, SAMOVAR_KILL="commit.after:2")
    assert killed.returncode == -9
    go_on(service)
    assert (service.digests(), ids(service)) == (digests, published)


def test_half_a_changelog_is_refused_until_it_was_run_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: where one transaction is not enough, what lies between is never taken for a state."""
    service.process(many(150))
    digests, published = service.digests(), ids(service)
    whole = ChangelogRepair.write
    calls = []

    def broken(repair: ChangelogRepair, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise Refused("repair-failed", "the log is away", "Run it again.")
        return whole(repair, *arguments)

    monkeypatch.setenv("SAMOVAR_TUNABLES__APPEND_ROWS", "2")
    monkeypatch.setattr(ChangelogRepair, "write", broken)
    assert refused(service, 171.5) == "repair-failed"
    monkeypatch.setattr(ChangelogRepair, "write", whole)
    ran = run("run", service.config, "--until-caught-up")
    assert (ran.exit_code, "rewind-unfinished" in ran.stderr) == (2, True)
    assert "Run `samovar rewind` again" in ran.stderr
    rewind(service, 171.5)
    go_on(service)
    assert (service.digests(), ids(service)) == (digests, published)


@pytest.mark.parametrize("point", ["write.before:1", "commit.before:1"])
def test_what_is_to_be_skipped_survives_a_crash(service: Service, point: str) -> None:
    service.process(many(150))
    digests, published = service.digests(), ids(service)
    rewind(service, 50.5)
    killed = run_apart("run", service.config, "--until-caught-up", SAMOVAR_KILL=point)
    assert killed.returncode == -9, killed.stderr
    go_on(service)
    assert (service.digests(), ids(service)) == (digests, published)


@pytest.mark.parametrize("source", ["changelog", "source"])
def test_what_is_to_be_skipped_survives_the_loss_of_the_store(service: Service, source: str) -> None:
    service.process(many(150))
    digests, published = service.digests(), ids(service)
    rewind(service, 50.5)
    wipe(service)
    assert run("restore", service.config, "--from", source).exit_code == 0
    go_on(service)
    assert (service.digests(), ids(service)) == (digests, published)


def test_nothing_is_remembered_once_the_task_is_past_it(service: Service) -> None:
    service.process(many(150))
    rewind(service, 50.5)
    with service.container() as container:
        assert all(ReplayDedupFilter.of(task.store).is_idle for task in container.tasks.values())
        assert sum(task.processor.counts.skipped for task in container.tasks.values()) > 0


# ---------------------------------------------------------------- snapshots


def test_it_begins_at_a_snapshot_where_the_input_is_gone(service: Service) -> None:
    service.clock.now_ms -= 72 * HOUR
    service.config.write_text(service.config.read_text().replace("slack: 2s", "slack: 2s, retention: 1d"))
    service.process(many(60))
    service.settle(snapshot=True)
    service.clock.pass_ms(48 * HOUR)
    service.process(many(90, start_s=400))
    with service.log() as log:
        log.compact("purchase")
        place = TopicPartition("purchase", 0)
        assert log.bounds([place])[place].begin > 0
    digests, published = service.digests(), ids(service)
    found = rewind(service, 500.5)
    assert sum(each["events_folded"] for each in found["rewound"]) < 60
    assert service.digests() != digests
    go_on(service)
    assert (service.digests(), ids(service)) == (digests, published)
    assert refused(service, 30.5) == "input-expired"  # no snapshot is so old
    assert service.digests() == digests


def test_a_snapshot_of_what_was_set_back_is_passed_over(service: Service) -> None:
    service.process(many(120), snapshot=True)
    service.process(many(150)[120:])
    digests, published = service.digests(), ids(service)
    found = rewind(service, 420)
    assert sum(each["events_folded"] for each in found["rewound"]) < 60
    rewind(service, 100.5)
    go_on(service)
    found = rewind(service, 420)
    assert sum(each["events_folded"] for each in found["rewound"]) > 100
    assert is_equal(service)
    go_on(service)
    assert (service.digests(), ids(service)) == (digests, published)


# ---------------------------------------------------------------- refusals


def test_refused_while_a_container_runs(service: Service) -> None:
    service.process(many(20))
    with service.container():
        assert refused(service, 5) == "group-active"


def test_refused_to_the_future_and_before_the_first_run(service: Service) -> None:
    service.produce(many(20))
    assert refused(service, 5) == "nothing-processed"
    service.process([])
    assert refused(service, 4_000) == "as-of-future"
    assert run("rewind", service.config, "--to-time", "5", "--alerts", "perhaps").exit_code == 2


def test_a_dry_run_changes_nothing(service: Service) -> None:
    service.process(many(60))
    digests, ends = service.digests(), [service.changelog_end(partition) for partition in (0, 1)]
    found = rewind(service, 50.5, "--dry-run")
    assert (found["rewound"], [each["left"] for each in found["plan"]]) == ([], [None, None])
    assert (service.digests(), [service.changelog_end(partition) for partition in (0, 1)]) == (digests, ends)
    text = run("rewind", service.config, "--to-time", START + 50_500, "--dry-run").stdout
    assert "alerts after it that were published are not published again" in text


def test_a_partition_that_is_behind_stays(service: Service) -> None:
    """Event time of one partition has not come so far: there is nothing to take back."""
    card = next(f"c{number}" for number in range(9) if service.partition(f"c{number}") == 0)
    service.process([purchase(card, second, 3) for second in range(0, 50, 5)])
    other = next(f"c{number}" for number in range(9) if service.partition(f"c{number}") == 1)
    service.process([purchase(other, second, 3) for second in range(0, 400, 5)])
    found = rewind(service, 100.5)
    assert [each["partition"] for each in found["rewound"]] == [1]
    go_on(service)
    assert is_equal(service)


# ---------------------------------------------------------------- the journal and the rows


def entry(kind: str, number: int, at: int, **facts: Any) -> JournalEntry:
    return JournalEntry(kind=kind, number=number, inputs={"a": at}, watermark=None, facts=facts)


def test_a_journal_as_if_what_was_set_back_had_never_been() -> None:
    journal = [
        entry("rules", 1, 0),
        entry("advance", 2, 10),
        entry("advance", 3, 20),
        entry("advance", 4, 30),
        entry("rewind", 5, 15, void=[[3, 3]], to=7),
        entry("advance", 6, 15),
    ]
    assert [(each.number, each.inputs["a"]) for each in effective_entries(journal)] == [
        (1, 0),
        (2, 10),
        (4, 15),
        (5, 15),
        (6, 15),
    ]
    assert [each.number for each in effective_entries(journal, until=4)] == [1, 2, 3, 4]
    assert is_void(3, journal[4])
    assert not is_void(4, journal[4])
    assert to_ranges([7, 3, 4, 9]) == [[3, 4], [7, 7], [9, 9]]


def test_which_snapshots_a_rewind_took_back() -> None:
    journal = [entry("rules", 1, 0), entry("advance", 2, 10), entry("rewind", 3, 5, void=[[2, 2]], to=7)]
    assert was_rewound(journal, 2, {"a": 4})  # it has an entry that counts no more
    assert was_rewound(journal, 1, {"a": 6})  # it has read further
    assert not was_rewound(journal, 1, {"a": 5})
    assert not was_rewound(journal, 3, {"a": 9})


def test_a_rewind_of_a_newer_format_is_refused() -> None:
    rewind_entry = entry("rewind", 3, 5, void=[], to=7)
    assert unpack_entry(pack_entry(rewind_entry)) == rewind_entry
    with pytest.raises(Refused):
        unpack_entry(pack_entry(rewind_entry).replace(b'"v":%d' % FORMAT, b'"v":%d' % (FORMAT + 1)))


def at(offset: int, watermark: int | None) -> Position:
    return Position(
        watermark=watermark,
        inputs={"a": InputPosition(topic="a", topic_id="id", next=offset, replay_from=offset)},
        streams=("a",),
        rules={},
    )


def test_ids_go_one_by_one_and_then_all() -> None:
    store = MemoryStore()
    rows = skip_rows({b"x", b"y"}, {"a": 10}, 500)
    store.write(rows)
    skips = ReplayDedupFilter.of(store)
    again, new = Alarm("x", (b"k", b"")), Alarm("z", (b"k", b""))
    assert skips.left([again, new], Counts()) == [new]
    assert skips.changes(at(5, 100)) == [(b"sx", None)]
    assert skips.changes(at(10, 100)) == []  # event time is not there yet
    assert skips.changes(at(10, 500)) == [(b"s", None), (b"sy", None)]
    assert skips.is_idle
    assert rows_between([], store) == [(b"s", None), (b"sx", None), (b"sy", None)]
    assert skip_rows(set(), {"a": 1}, None) == []
    assert ReplayDedupFilter.of(MemoryStore()).is_idle


def test_an_earlier_rewind_counts_for_how_far_it_had_been() -> None:
    store = MemoryStore()
    store.write(skip_rows({b"x"}, {"a": 10}, 500))
    assert ReplayDedupFilter.of(store).furthest({"a": 4}, 100) == ({"a": 10}, 500)
    assert ReplayDedupFilter.of(store).furthest({"a": 40}, None) == ({"a": 40}, 500)


def test_catching_up_is_needed_for_none_of_it(service: Service) -> None:
    """A service that was set back is a service: it goes on cycle by cycle."""
    service.process(many(60))
    rewind(service, 20.5)
    with service.container() as container:
        catch_up(container)
        assert container.caught_up()
