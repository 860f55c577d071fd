"""`samovar verify`: store, changelog and source say the same, or the first difference is named (P2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.record import CHECKPOINT, key_prefix, pack_checkpoint, row_parts
from samovar.changelog.log import Append
from samovar.changelog.restore.restore import checkpoint_of
from samovar.state.rocks import RocksStore
from samovar.tasks.rules.timer_index import TimerIndex
from tests.support.small_service import HOUR, Service, catch_up, key_of, make, many, purchase, run


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def verified(service: Service, *options: object, code: int = 0) -> list[dict[str, Any]]:
    done = run("verify", service.config, "--json", *options)
    assert done.exit_code == code, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def rows_of(store: RocksStore, card: str, rule: str) -> list[bytes]:
    (rows,) = store.prefixes([key_prefix(key_of(card))])
    return [row for row, _ in rows if row_parts(row)[1].startswith(rule)]


def test_p2_all_three_are_equal_after_a_run(service: Service) -> None:
    """P2: local store == changelog replayed == rebuild from source, by digest."""
    service.process(many(200))
    service.process(many(100, start_s=600))
    verdicts = verified(service)
    assert [sorted(each["digests"]) for each in verdicts] == [["changelog", "source", "store"]] * 2
    assert all(len(set(each["digests"].values())) == 1 for each in verdicts)
    assert len({each["digests"]["store"] for each in verdicts}) == 2
    text = run("verify", service.config, "--partition", 1)
    assert text.exit_code == 0
    assert text.stdout.startswith("partition 1: equal (store, changelog, source) at event time ")


def test_p1_timers_that_were_not_raised_are_found(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: a digest does not show them, and neither do the three sides, which are equal."""
    service.process([purchase(f"{card}{number}", at, 1) for card, at in (("c", 0), ("x", 60)) for number in range(20)])
    monkeypatch.setenv("SAMOVAR_TUNABLES__WHOLE_STATES", "1")
    with monkeypatch.context() as patch:
        patch.setattr(TimerIndex, "due", lambda *_: [])
        service.process([purchase(f"x{number}", 7_200, 1) for number in range(20)])
    verdicts = verified(service, code=1)
    assert [each["differences"] for each in verdicts] == [[], []]
    overdue = [each["overdue"] for each in verdicts if each["overdue"] is not None]
    assert overdue
    assert {each["rule"] for each in overdue} <= {"testing", "countries"}
    text = run("verify", service.config).stdout
    assert f"  {overdue[0]['timers']} timers not raised that event time has passed; the first: " in text
    assert "DIFFERENT" in text


def test_p2_with_event_time_that_passed_with_no_event(service: Service) -> None:
    """P2: advances of idle partitions are in the journal, so that the fold comes to the same event time."""
    service.produce(many(60))
    with service.container() as container:
        service.clock.pass_ms(6_000)
        for ms in (1, 400_000):
            service.clock.pass_ms(ms)
            catch_up(container)
    assert all(len(set(each["digests"].values())) == 1 for each in verified(service))


def test_p2_while_the_service_runs(service: Service) -> None:
    """P2: at the offsets that the store has at this moment, whatever comes later."""
    service.process(many(60))
    with service.container() as container:
        verified(service)
        service.produce(many(60, start_s=300))
        verified(service)
        catch_up(container)
        verified(service)


def test_a_store_that_is_behind_is_compared_where_it_stands(service: Service, tmp_path: Path) -> None:
    service.process(many(60))
    old = tmp_path / "old"
    service.state.rename(old)
    service.process(many(60, start_s=300))
    for partition in (0, 1):
        (service.state / str(partition)).rename(tmp_path / f"new{partition}")
        (old / str(partition)).rename(service.state / str(partition))
    assert all("the changelog goes on to offset" in each["notes"][0] for each in verified(service))


def test_a_wrong_row_in_the_store_is_found_with_its_key(service: Service) -> None:
    service.process(many(60))
    partition = service.partition("c3")
    store = RocksStore(service.store(partition))
    (row,) = rows_of(store, "c3", "countries")
    value = store.get(row)
    assert value is not None
    store.put(row, value[:-1] + bytes([value[-1] ^ 1]))
    store.close()
    found = verified(service, code=1)
    (wrong,) = [each for each in found if not each["equal"]]
    first = wrong["differences"][0]
    assert (wrong["partition"], first["between"]) == (partition, ["store", "changelog"])
    assert (first["rule"], first["key"], first["rows"]) == ("countries", ["c3"], 1)
    text = run("verify", service.config)
    assert text.exit_code == 1
    assert "store and changelog differ in 1 row; the first: countries, key c3" in text.stdout


def test_a_state_too_many_is_found_against_both(service: Service) -> None:
    """A row that is sound but was never made: of another key."""
    service.process(many(60))
    partition = service.partition("c3")
    store = RocksStore(service.store(partition))
    (row,) = rows_of(store, "c3", "countries")
    value = store.get(row)
    assert value is not None
    store.put(row.replace(b"c3", b"zz"), value)
    store.close()
    (wrong,) = [each for each in verified(service, code=1) if not each["equal"]]
    assert [each["between"] for each in wrong["differences"]] == [["store", "changelog"], ["store", "source"]]
    assert [each["key"] for each in wrong["differences"]] == [["zz"], ["zz"]]
    assert wrong["differences"][1]["held"]["source"] == ["nothing"]


def test_a_row_that_the_changelog_lost_is_found(service: Service) -> None:
    service.process(many(60))
    partition = service.partition("c3")
    store = RocksStore(service.store(partition))
    (row,) = rows_of(store, "c3", "countries")
    checkpoint = checkpoint_of(store)
    assert checkpoint is not None
    with service.log() as log:
        log.append([Append(topic="s-changelog", records=[(row, None)], partition=partition)])
    # The store believes that it has seen all of the changelog, as it would where compaction had lost a record.
    moved = pack_checkpoint(type(checkpoint)(**{**_fields(checkpoint), "next": service.changelog_end(partition)}))
    store.put(CHECKPOINT, moved)
    store.close()
    (wrong,) = [each for each in verified(service, code=1) if not each["equal"]]
    (first,) = wrong["differences"]
    assert (first["between"], first["rule"], first["key"]) == (["store", "changelog"], "countries", ["c3"])
    assert first["held"]["changelog"] != first["held"]["store"]
    assert wrong["digests"]["store"] == wrong["digests"]["source"] != wrong["digests"]["changelog"]


def _fields(checkpoint: Any) -> dict[str, Any]:
    return {name: getattr(checkpoint, name) for name in checkpoint.__dataclass_fields__}


def test_p4_a_store_ahead_of_its_changelog_is_refused(service: Service) -> None:
    service.process(many(60))
    store = RocksStore(service.store(0))
    checkpoint = checkpoint_of(store)
    assert checkpoint is not None
    store.put(CHECKPOINT, pack_checkpoint(type(checkpoint)(**{**_fields(checkpoint), "next": 10_000})))
    store.close()
    done = run("verify", service.config)
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "store-ahead")


def test_p4_without_a_store_there_is_nothing_to_verify(service: Service) -> None:
    service.produce(many(6))
    done = run("verify", service.config)
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "store-missing")


def expired(service: Service) -> None:
    """Let the retention of the input delete what was processed."""
    service.clock.pass_ms(8 * 24 * HOUR)
    with service.log() as log:
        log.compact("purchase")


def test_input_that_is_gone_is_said_to_be_unverifiable(service: Service) -> None:
    service.clock.now_ms -= 9 * 24 * HOUR
    service.process(many(60))
    service.settle()
    expired(service)
    service.process(many(60, start_s=300))
    found = verified(service, code=3)
    assert all(each["equal"] and sorted(each["digests"]) == ["changelog", "store"] for each in found)
    text = run("verify", service.config)
    assert text.exit_code == 3
    assert "unverifiable: before " in text.stdout


def test_with_a_snapshot_the_fold_begins_there(service: Service) -> None:
    """The oldest snapshot whose input is still there is taken for true, and the rest is folded again."""
    service.clock.now_ms -= 9 * 24 * HOUR
    service.process(many(60))
    service.settle(snapshot=True)
    expired(service)
    service.process(many(60, start_s=300))
    found = verified(service)
    assert all(sorted(each["digests"]) == ["changelog", "source", "store"] for each in found)
    assert all("unverifiable before event time" in each["notes"][0] for each in found)


def test_rules_that_changed_in_between(service: Service) -> None:
    """The journal tells the fold where the rules changed; an edit that no run has seen yet changes nothing."""
    service.process(many(60))
    path = service.config.parent / "rules" / "testing.yml"
    path.write_text(path.read_text().replace("amount < 2", "amount < 3"))
    verified(service)
    service.process(many(60, start_s=300))
    verified(service)
    service.process([purchase("c1", 900, 1)])
    verified(service)
