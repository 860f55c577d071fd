"""`samovar restore`: state brought back from each of its sources, whatever happens on the way."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.errors import Refused
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.changelog.record import FOLLOWING, key_prefix, pack_following, row_parts
from samovar.changelog.restore import following_of
from samovar.service import restore_show, restoring
from samovar.service.restore_plan import Planned
from samovar.service.restoring import Restored, alone
from samovar.service.stores import Standing
from samovar.state.rocks import RocksStore
from samovar.tasks import restoring as mending
from samovar.tasks.restoring import Mender
from tests.oncall import HOUR, START, Service, catch_up, key_of, make, many, purchase, run, run_apart


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def restored(service: Service, *options: object, code: int = 0) -> dict[str, Any]:
    done = run("restore", service.config, "--json", *options)
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(service: Service, *options: object) -> str:
    done = run("restore", service.config, *options)
    assert done.exit_code == 2, done.output
    return done.stderr.split(":")[0]


def wipe(service: Service) -> None:
    for partition in (0, 1):
        shutil.rmtree(service.store(partition))


def is_equal(service: Service) -> bool:
    return run("verify", service.config).exit_code == 0


def edit_following(service: Service, partition: int, **changes: Any) -> None:
    store = RocksStore(service.store(partition))
    following = following_of(store)
    assert following is not None
    store.put(FOLLOWING, pack_following(replace(following, **changes)))
    store.close()


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
    monkeypatch.setattr(restore_show, "EVERY_S", 0.0)
    planned = Planned(3, Standing("missing"), "changelog", 0, 1_000)
    err = kind()
    with restore_show.Bars([planned], err) as bars:
        bars.moved(planned, 250)
        bars.done(planned, Restored(3, "changelog", "d", None, 1_000, 1_000, 2.0))
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
    """P3: the moment at which there is no store but a finished one beside."""
    service.process(many(60))
    before = service.digests()

    def stopped(part: Path, target: Path) -> None:
        shutil.rmtree(target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_put_in_place", stopped)
        assert run("restore", service.config, "--from", source).exit_code != 0
    assert not service.store(0).exists()
    restored(service, "--from", source)
    assert service.digests() == before
    assert is_equal(service)


def test_what_was_begun_is_gone_on_with(service: Service) -> None:
    service.process(many(60))
    before = service.digests()
    with service.log() as log:
        log.append([Append("s-changelog", [(b"u-other", b"1")], 0)])  # something to read on
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


# ---------------------------------------------------------------- refusals


def test_p4_a_store_ahead_is_refused_unless_the_changelog_is_named(service: Service) -> None:
    """P4: a position beyond the log's end is never guessed at."""
    service.process(many(60))
    before = service.digests()
    edit_following(service, 0, next=10_000)
    assert refused(service) == "store-ahead"
    found = restored(service, "--from", "changelog")
    assert "the changelog is taken for right" in found["plan"][0]["notes"][0]
    assert service.digests() == before


def test_p4_a_changelog_that_was_made_again_is_refused(service: Service) -> None:
    """P4: another topic id; and a state is never replaced by the nothing that an empty changelog holds."""
    service.process(many(60))
    with service.log() as log:
        topic = log.topics(["s-changelog"])["s-changelog"]
        log.delete(["s-changelog"])
        assert refused(service) == "topic-missing"
        log.create([TopicSpec("s-changelog", topic.partitions, topic.settings)])
    assert refused(service) == "changelog-recreated"
    assert refused(service, "--from", "changelog") == "changelog-recreated"
    wipe(service)
    assert refused(service, "--from", "changelog") == "state-lost"


def test_p10_an_old_snapshot_is_passed_over(service: Service) -> None:
    """P10: what is older than half of delete.retention is never tailed: deletes may be missing."""
    service.clock.now_ms -= 30 * HOUR
    service.process(many(60), snapshot=True)
    service.clock.pass_ms(30 * HOUR)
    service.process(many(60, start_s=300))
    before = service.digests()
    found = restored(service, "--partition", 0)
    (planned,) = found["plan"]
    assert planned["from"] == "changelog"
    assert planned["notes"] == ["snapshot 1 was passed over: it is too old to be tailed"]
    assert service.digests() == before
    assert refused(service, "--from", "snapshot") == "no-snapshot"


def test_a_flipped_bit_in_a_snapshot_is_passed_over(service: Service) -> None:
    service.process(many(60), snapshot=True)
    (table, *_) = (service.state / "0" / "snapshots" / "1").glob("MANIFEST-*")
    table.write_bytes(table.read_bytes()[:-1] + b"\x00")
    (planned,) = restored(service, "--partition", 0)["plan"]
    assert planned["from"] == "changelog"
    assert "snapshot 1: MANIFEST-" in planned["notes"][0]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--to-offset", 1, "--partition", 0), "out-missing"),
        (("--to-offset", 1, "--out", "new"), "partition-missing"),
        (("--to-offset", 999_999, "--partition", 0, "--out", "new"), "offset-unknown"),
        (("--to-offset", 1, "--partition", 0, "--from", "source", "--out", "new"), "bad-moment"),
        (("--to-time", "2099-01-01", "--out", "new"), "as-of-future"),
        (("--to-time", "2099-01-01", "--from", "source", "--out", "new"), "as-of-future"),
        (("--out", "rules"), "out-not-empty"),
    ],
)
def test_options_that_cannot_be(
    service: Service, options: tuple[object, ...], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.process(many(10))
    monkeypatch.chdir(service.config.parent)
    assert refused(service, *options) == code
    assert not Path("new").exists()


# ---------------------------------------------------------------- from the source


def test_p2_from_source_after_the_changelog_was_deleted(service: Service) -> None:
    """P2: input and journal are enough; the changelog is written anew and agrees."""
    service.process(many(100))
    service.process(many(60, start_s=400))
    before = service.digests()
    with service.log() as log:
        log.delete(["s-changelog"])
    found = restored(service, "--from", "source", "--verify")
    assert {each["partition"]: each["digest"] for each in found["restored"]} == before
    assert all(each["rows_to_mend"] > 1 for each in found["restored"])
    assert all("the group's offsets say how far to go" in each["notes"][0] for each in found["plan"])
    wipe(service)
    restored(service, "--from", "changelog", "--verify")
    assert service.digests() == before
    service.process(many(60, start_s=800))
    assert is_equal(service)


def test_p2_from_source_mends_a_changelog_that_lost_its_end(service: Service) -> None:
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
        log.append([Append("s-changelog", early, 0)])  # as if what came later had not been written
    store = RocksStore(service.store(0))
    rows = [row for row, _ in store.range(b"r", b"s")]
    store.close()
    with service.log() as log:
        gone = [(row, None) for row in rows if row not in dict(early)]
        log.append([Append("s-changelog", [*gone, early[-1]], 0)])
    dry = restored(service, "--from", "source", "--partition", 0, "--dry-run")
    assert dry["differences"][0]["states_differ"] > 0
    (found,) = restored(service, "--from", "source", "--partition", 0, "--verify")["restored"]
    assert found["digest"] == before[0]
    assert found["rows_to_mend"] == dry["differences"][0]["rows_to_mend"]
    again = restored(service, "--from", "source", "--dry-run")
    assert [each["rows_to_mend"] for each in again["differences"]] == [0, 0]


@pytest.mark.parametrize("point", ["produce.after:1", "commit.before:1", "commit.after:1", "commit.after:2"])
def test_p3_killed_while_the_changelog_is_mended(service: Service, point: str) -> None:
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
    with service.log() as log:
        log.delete(["s-changelog"])
    monkeypatch.setattr(mending, "MEND_ROWS", 3)
    whole = Mender._transact
    appended: list[int] = []

    def fails(self: Mender, appends: Any, offsets: Any) -> Any:
        appended.append(1)
        if len(appended) == 2:
            raise Refused("mend-failed", "the test says so", "Run it again.")
        return whole(self, appends, offsets)

    with monkeypatch.context() as patch:
        patch.setattr(Mender, "_transact", fails)
        assert refused(service, "--from", "source") == "mend-failed"
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
        log.append([Append("s-changelog", [(row.replace(b"c3", b"zz"), value)], partition)])
    (dry,) = restored(service, "--from", "source", "--partition", partition, "--dry-run")["differences"]
    assert dry == {"partition": partition, "rows_to_mend": 1, "states_differ": 1}
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


# ---------------------------------------------------------------- to the past


def get(service: Service, card: str, store: Path) -> list[Any]:
    done = run("state", "get", service.config, card, "--rule", "testing", "--store", store, "--json")
    return [
        (each["step"], each["events"]) for found in json.loads(done.stdout) for each in found["rules"][0]["partials"]
    ]


def in_steps(service: Service) -> list[int]:
    """Three runs with an hour of log time between them; their log times."""
    service.clock.now_ms -= 4 * HOUR
    times = []
    for step in range(3):
        service.clock.pass_ms(HOUR)
        service.process(
            [purchase("c1", step * 100, 1), purchase("c1", step * 100 + 5, 30), purchase("c2", step * 100, 3)]
        )
        times.append(service.clock.now_ms)
    return times


def test_to_a_log_time(service: Service, tmp_path: Path) -> None:
    times = in_steps(service)
    live = service.digests()
    for step, time_ms in enumerate(times):
        for place, wanted in ((time_ms - 1, step), (time_ms, step + 1)):
            out = tmp_path / f"at-{place}"
            restored(service, "--to-time", place, "--out", out, "--verify")
            assert sum(events for _, events in get(service, "c1", out)) == wanted
    assert service.digests() == live


def test_to_an_offset_ends_at_a_whole_commit(service: Service, tmp_path: Path) -> None:
    in_steps(service)
    partition = service.partition("c1")
    changes = json.loads(run("state", "history", service.config, "c1", "--rule", "testing", "--json").stdout)
    for place, wanted in ((changes[1]["offset"], 1), (changes[2]["offset"], 2)):
        out = tmp_path / f"at-{place}"
        (planned,) = restored(service, "--to-offset", place, "--partition", partition, "--out", out, "--verify")["plan"]
        assert planned["end"] <= place
        assert get(service, "c1", out) == [("probe", wanted)]


def test_what_may_be_compacted_is_refused(service: Service, tmp_path: Path) -> None:
    service.clock.now_ms -= 72 * HOUR
    service.process(many(20))
    first = service.clock.now_ms
    service.clock.pass_ms(24 * HOUR)
    service.process(many(20, start_s=100))
    done = run("restore", service.config, "--to-time", first + HOUR, "--out", tmp_path / "out")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "as-of-compacted")
    assert "--from source" in done.stderr
    restored(service, "--to-time", first + 30 * HOUR, "--out", tmp_path / "out")  # nothing came since


def test_to_an_event_time_from_the_source(service: Service, tmp_path: Path) -> None:
    """As a service would be that had got no more than the events up to then."""
    events = many(120)
    service.process(events)
    for n, second in enumerate((50, 171, 300)):
        out = tmp_path / f"at-{second}"
        restored(service, "--from", "source", "--to-time", START + second * 1000, "--out", out)
        other = make(tmp_path / f"other{n}")
        early = [event for event in events if event["ts"] <= START + second * 1000]
        other.process(
            [*early, *(purchase(f"x{n}", second + 2, 3) for n in range(9))]
        )  # moves event time to that second
        assert at_watermark(service, out, START + second * 1000) == at_watermark(
            service, other.state, START + second * 1000
        )


def at_watermark(service: Service, state: Path, moment: int) -> dict[int, str]:
    done = run("state", "digest", service.config, "--store", state, "--json")
    found = json.loads(done.stdout)
    assert [each["watermark"] for each in found] == [moment] * 2
    return {each["partition"]: each["digest"] for each in found}


def test_to_an_event_time_with_events_out_of_order(service: Service, tmp_path: Path) -> None:
    """P9: an event that is late stays so; one within the slack counts, though it came after others."""
    service.process(
        [
            purchase("c1", 0, 1),
            purchase("c1", 11, 30),
            purchase("c1", 10, 1),
            purchase("c1", 20, 30),
            purchase("c1", 9, 1),
        ]
    )
    restored(service, "--from", "source", "--to-time", START + 10_000, "--out", tmp_path / "out")
    assert get(service, "c1", tmp_path / "out") == [("probe", 2)]


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


def test_to_an_event_time_of_two_streams(tmp_path: Path) -> None:
    """A moment is one of event time, however far each stream had been read then."""
    streams = {"purchase": many(60), "login": [purchase(f"c{n % 5}", n * 4.5, 1) for n in range(40)]}
    moment = START + 90_000

    def process(folder: Path, until_ms: int | None) -> Service:
        made = make(folder)
        made.config.write_text(TWO_STREAMS)
        (folder / "rules" / "both.yml").write_text(BOTH)
        for stream, events in streams.items():
            chosen = [event for event in events if until_ms is None or event["ts"] <= until_ms]
            made.produce(chosen, stream)
        return made

    live = process(tmp_path / "live", None)
    live.process([])
    restored(live, "--from", "source", "--to-time", moment, "--out", tmp_path / "out")
    other = process(tmp_path / "other", moment)
    other.produce([purchase("x", 90.001 + 2, 3)])
    other.produce([purchase("x", 90.001 + 5, 3)], "login")
    other.process([])
    digests = [
        run("state", "digest", live.config, "--store", state, "--json") for state in (tmp_path / "out", other.state)
    ]
    found = [json.loads(done.stdout)[0] for done in digests]
    assert [each["watermark"] for each in found] == [moment + 1] * 2
    assert found[0]["digest"] == found[1]["digest"]
