"""`samovar restore`: state brought back from each of its sources, whatever happens on the way."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from samovar.changelog.log import Append
from samovar.service.recovery.restore import progress
from samovar.service.recovery.restore import run as restore
from samovar.service.recovery.restore.plan import RestorePlan
from samovar.service.recovery.restore.run import RestoreResult, alone
from samovar.service.topology.stores import StoreStatus
from samovar.state.rocks import RocksStore
from tests.support.small_service import (
    Service,
    catch_up,
    is_equal,
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


# ---------------------------------------------------------------- the three sources


@pytest.mark.parametrize("source", ["changelog", "snapshot", "source", None])
def test_p2_a_lost_store_comes_back_the_same(service: Service, source: str | None) -> None:
    """P2: from whatever it is restored, the digest is the one that the live store had, and the service goes on."""
    service.process(many(100), snapshot=True)
    service.process(many(60, start_s=400))
    before = service.digests()
    wipe(service)
    found = restored(service, "--verify", *(["--from", source] if source else []))
    assert {each["partition"]: each["digest"] for each in found["restored"]} == before == service.digests()
    assert {each["from"] for each in found["restored"]} == {source or "snapshot"}
    assert all(each["equal"] for each in found["verify"])
    service.process(many(60, start_s=800))
    assert is_equal(service)


@pytest.mark.parametrize("table_rows", [20_000, 1], ids=["rows", "files"])
def test_p2_a_changelog_in_many_parts(service: Service, table_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later parts win over earlier ones and delete what is gone, whether they come as rows or as table files."""
    for name, value in {"restore_rows": 5, "restore_records": 4, "table_rows": table_rows}.items():
        monkeypatch.setenv(f"SAMOVAR_TUNABLES__{name.upper()}", str(value))
    for number in range(3):
        service.process(many(60, start_s=number * 3_000))
    service.process([purchase(f"x{number}", 200_000 + number, 30) for number in range(6)])  # all others are over
    before = service.digests()
    wipe(service)
    restored(service, "--from", "changelog", "--verify")
    assert service.digests() == before


def test_it_says_first_what_it_will_do_and_ends_with_digests(service: Service) -> None:
    service.process(many(100))
    end = service.changelog_end(0)
    dry = run("restore", service.config, "--dry-run", "--partition", 0)
    assert dry.exit_code == 0
    there = f"partition 0: a store at changelog offset {end}"
    what = f"{there}; replace it from changelog offsets 0 to {end}, up to {end} records"
    assert dry.stdout.splitlines() == [what, f"{end} records: about a second"]
    done = run("restore", service.config, "--partition", 0)
    assert done.stdout.splitlines()[0] == what
    assert done.stdout.splitlines()[-1] == f"  digest {service.digests()[0]}"


def test_the_time_is_told_from_a_measured_rate(service: Service) -> None:
    service.process(many(3_000, cards=900))
    found = restored(service, "--from", "source", "--dry-run")
    assert found["records_per_s"] > 0
    assert "records/s as just measured" in run("restore", service.config, "--from", "source", "--dry-run").stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_bars_on_a_terminal_and_lines_elsewhere(kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: rate and time left show."""
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    planned = RestorePlan(partition=3, now=StoreStatus("missing"), source="changelog", start=0, end=1_000)
    err = kind()
    with progress.Bars([planned], err) as bars:
        bars.moved(planned, 250)
        bars.done(
            planned,
            RestoreResult(
                partition=3, source="changelog", digest="d", position=None, offset=1_000, records=1_000, seconds=2.0
            ),
        )
    shown = err.getvalue()
    assert "partition 3" in shown
    assert ("\x1b[" in shown) == (kind is Terminal)
    assert ("500/s" if kind is Terminal else "250 of 1,000 records, ") in shown


def test_a_dry_run_changes_nothing(service: Service) -> None:
    service.process(many(60))
    wipe(service)
    for source in ("changelog", "source"):
        restored(service, "--from", source, "--dry-run")
    assert not service.store(0).exists()


def test_only_the_partitions_that_were_named(service: Service) -> None:
    service.process(many(60))
    wipe(service)
    restored(service, "--partition", 1)
    assert not (service.store(0) / "CURRENT").exists()
    assert (service.store(1) / "CURRENT").exists()
    assert refused(service, "--partition", 7) == "unknown-partition"


def test_a_damaged_store_is_replaced(service: Service) -> None:
    service.process(many(60))
    before = service.digests()
    (service.store(0) / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    (found,) = restored(service, "--partition", 0)["plan"]
    assert found["now"] == "damaged"
    assert service.digests() == before


# ---------------------------------------------------------------- whatever happens on the way


@pytest.mark.parametrize("point", ["restore.before:2", "restore.after:2"])
@pytest.mark.parametrize("source", ["changelog", "snapshot"])
def test_p3_a_killed_restore_is_run_again(service: Service, source: str, point: str) -> None:
    """P3: a kill leaves the old store or the new one. (The first pass of the point is the measuring.)"""
    service.process(many(60), snapshot=True)
    service.process(many(60, start_s=300))
    before = service.digests()
    killed = run_apart("restore", service.config, "--from", source, SAMOVAR_KILL=point)
    assert killed.returncode == -9, killed.stderr
    assert service.digests() == before
    found = restored(service, "--from", source)
    assert {each["partition"]: each["digest"] for each in found["restored"]} == before
    assert is_equal(service)
    assert not list(service.state.rglob("*.part"))


@pytest.mark.parametrize("source", ["changelog", "source"])
def test_p3_killed_between_the_old_store_and_the_new(
    service: Service, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: the moment at which there is no store but a finished one next to."""
    service.process(many(60))
    before = service.digests()

    def stopped(part: Path, target: Path) -> None:
        shutil.rmtree(target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(restore, "replace_store", stopped)
        assert run("restore", service.config, "--from", source).exit_code != 0
    assert not service.store(0).exists()
    restored(service, "--from", source)
    assert service.digests() == before
    assert is_equal(service)


def test_what_was_begun_is_gone_on_with(service: Service) -> None:
    service.process(many(60))
    before = service.digests()
    with service.log() as log:
        log.append([Append(topic="s-changelog", records=[(b"u-other", b"1")], partition=0)])  # something to read on
    service.store(0).rename(service.state / "0" / "restore-changelog.part")
    (found,) = restored(service, "--partition", 0, "--from", "changelog")["restored"]
    assert found["records"] == 1
    assert service.digests() == before


def test_stale_leftovers_of_another_source_are_cleaned(service: Service) -> None:
    service.process(many(60))
    for name in ("restore-source.part", "restore-snapshot.part"):
        shutil.copytree(service.store(0), service.state / "0" / name)
    restored(service, "--partition", 0, "--from", "changelog")
    assert sorted(path.name for path in (service.state / "0").iterdir()) == ["store"]


def test_two_at_once_are_refused(service: Service) -> None:
    service.process(many(60))
    with alone(service.state):
        assert refused(service) == "restore-running"
        apart = run_apart("restore", service.config)
        assert (apart.returncode, apart.stderr.split(":")[0]) == (2, "restore-running")
    restored(service)


def test_p6_a_store_that_a_container_has_open_is_never_touched(service: Service) -> None:
    """P6: one writer a partition."""
    service.process(many(60))
    with service.container() as container:
        for source in ("changelog", "source"):
            assert refused(service, "--from", source) == "group-active"
        service.produce(many(30, start_s=300))
        catch_up(container)
    assert is_equal(service)


def test_p6_a_held_lock_is_enough_to_be_refused(service: Service) -> None:
    """P6: on a log that does not know who runs on this machine, RocksDB's lock tells."""
    service.process(many(60))
    store = RocksStore(service.store(1))
    try:
        apart = run_apart("restore", service.config)
        assert (apart.returncode, apart.stderr.split(":")[0]) == (2, "store-held")
        assert refused(service) == "store-held"
    finally:
        store.close()
    restored(service)
