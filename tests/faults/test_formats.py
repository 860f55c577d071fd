"""Rolling upgrades: what an older version stored is read and gone on from; what a newer one stored is refused.

Each folder tests/fixtures/formats/vN is a service as a version left it (make.py there says how it was made).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.forwarded import FORMAT, HEAD, heads_of
from samovar.changelog.formats.journal import pack_entry, unpack_entry
from samovar.changelog.formats.record import CHECKPOINT, POSITION, ROW, ROW_FORMAT
from samovar.changelog.log import Append, TopicPartition
from samovar.common.errors import Refused
from samovar.native.kernel import joined
from samovar.service.cli.main import run
from samovar.state import snapshots
from tests.faults import world
from tests.faults.conftest import Making
from tests.faults.harness import Service, wait_until
from tests.fixtures.formats.make import HERE, opened, unpack

VERSIONS = sorted(path.name for path in HERE.glob("v*"))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Path:
    return HERE / str(request.param)


@pytest.fixture
def old(version: Path, tmp_path: Path, services: list[Service]) -> Service:
    """The service of an older version, in a folder of this test."""
    unpack(version, tmp_path / "old")
    services.append(opened(tmp_path / "old"))
    return services[-1]


@pytest.fixture
def expected(version: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((version / "expected.json").read_text())
    return found


def digests(service: Service) -> dict[str, str]:
    return {str(partition): digest for partition, digest in service.digests().items()}


# ---------------------------------------------------------------- what is older


@pytest.mark.parametrize("lost", ["nothing", "the stores", "stores and snapshots"])
def test_an_older_version_s_state_is_read_and_gone_on_from(old: Service, expected: dict[str, Any], lost: str) -> None:
    """Log, changelog, rows, positions, and snapshots where the stores are lost."""
    assert digests(old) == expected["before"]
    if lost != "nothing":
        old.wipe(snapshots=lost != "the stores")
    said = old.run_to_end()
    assert "passed over" not in said
    assert digests(old) == expected["after"]
    assert sorted(alert["id"] for alert in old.alerts()) == expected["alerts"]


def test_an_older_version_s_journal_is_replayed(old: Service, capfd: pytest.CaptureFixture[str]) -> None:
    """`verify` folds input and journal again: same state, same alerts."""
    kinds = {entry.kind for partition in range(old.partitions) for entry in old.journal(partition)}
    assert {"rules", "advance"} <= kinds
    assert run(["verify", str(old.config)]) == 0, capfd.readouterr()


def test_an_older_version_s_snapshot_is_used(old: Service) -> None:
    for partition in range(old.partitions):
        found = snapshots.newest_valid(old.store_folder(partition).parent / "snapshots")
        assert found.snapshot is not None, found.skipped


# ---------------------------------------------------------------- what is newer


@pytest.fixture
def here(tmp_path: Path, services: list[Service]) -> Service:
    """A service of the newest fixture, to be spoiled."""
    unpack(HERE / VERSIONS[-1], tmp_path / "here")
    services.append(opened(tmp_path / "here"))
    return services[-1]


def raised(data: bytes | None) -> bytes:
    """JSON as a version far above ours would begin it."""
    return json.dumps({**json.loads(data or b""), "v": 99}).encode()


def last_position(service: Service, partition: int) -> bytes | None:
    rows = [row for row in service.changelog() if row.at.partition == partition and row.key == POSITION]
    return rows[-1].value


def a_newer_changelog(service: Service, partition: int = 0) -> None:
    """The changelog's last commit is one of a newer version."""
    newer = (POSITION, raised(last_position(service, partition)))
    service.log.append([Append(topic=service.settings.changelog.topic, records=[newer], partition=partition)])


def test_a_newer_changelog_is_refused_before_it_is_in_the_store(here: Service) -> None:
    before = digests(here)["0"]
    a_newer_changelog(here)
    here.refused("format-newer", "a task's position has format 99", "Run the version that wrote it")
    assert digests(here)["0"] == before  # the other partition goes on
    here.wipe()
    here.refused("format-newer", "a task's position has format 99")
    with here.store() as store:
        assert store.get(POSITION) is None


@pytest.mark.parametrize("row", [POSITION, CHECKPOINT])
def test_a_newer_position_in_a_store_is_refused(here: Service, row: bytes) -> None:
    with here.store() as store:
        store.write([(row, raised(store.get(row)))])
    here.refused("format-newer", "has format 99")


def test_a_newer_row_of_a_state_is_refused(here: Service) -> None:
    with here.store() as store:
        key, value = next(iter(store.range(ROW, bytes([ROW[0] + 1]))))
        assert value[0] == ROW_FORMAT
        store.write([(key, bytes([ROW_FORMAT + 1]) + value[1:])])
    here.refused("format-newer", f"a row of a rule's state has format {ROW_FORMAT + 1}")


def test_a_newer_journal_is_refused(here: Service, capfd: pytest.CaptureFixture[str]) -> None:
    entry = here.journal()[-1]
    here.log.append(
        [Append(topic=here.settings.journal.topic, records=[(b"0", raised(pack_entry(entry)))], partition=0)]
    )
    with pytest.raises(Refused) as refused:
        unpack_entry(raised(pack_entry(entry)))
    assert refused.value.code == "format-newer"
    for command in (["verify"], ["restore", "--from", "source"]):
        assert run([command[0], str(here.config), *command[1:]]) == 2
        assert "format-newer: the journal has format 99" in capfd.readouterr().err


def manifests(service: Service) -> Iterator[Path]:
    yield from service.settings.state.glob("*/snapshots/*/manifest.json")


def a_newer_manifest(fields: dict[str, Any]) -> None:
    fields["format"] = 99


def newer_rows(fields: dict[str, Any]) -> None:
    fields["formats"]["row"] = 99


@pytest.mark.parametrize("change", [a_newer_manifest, newer_rows])
def test_a_newer_snapshot_is_passed_over(here: Service, change: Callable[[dict[str, Any]], None]) -> None:
    """A snapshot is a copy: the changelog has all of it, in formats of its own. That it was not used is said."""
    for path in manifests(here):
        fields = json.loads(path.read_text())
        del fields["checksum"]
        change(fields)
        path.write_text(json.dumps({**fields, "checksum": snapshots._checksum(fields)}))
    here.wipe(snapshots=False)
    said = here.run_to_end()
    assert "format" in said
    assert "snapshot " in said
    assert digests(here) == json.loads((HERE / VERSIONS[-1] / "expected.json").read_text())["after"]


def test_a_newer_embedded_log_is_refused(here: Service) -> None:
    assert here.settings.log.embedded is not None
    with sqlite3.connect(here.settings.log.embedded / "log.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    here.refused("log-newer", "has version 99")


def test_a_newer_forwarded_record_is_refused() -> None:
    """Of a repartition topic: it is no dead letter, since a newer container can read it. A stray text is one."""
    text = b'{"this": "is no forwarded record"}'
    assert heads_of(joined([text]))["format"] == text[0]
    with pytest.raises(Refused) as refused:
        heads_of(joined([text, bytes([FORMAT + 1]).ljust(HEAD.itemsize)]))
    assert refused.value.code == "format-newer"


def test_a_store_that_was_refused_is_opened_by_the_version_that_knows_it(here: Service) -> None:
    """Nothing was changed by the refusal: with the format put back the service goes on."""
    with here.store() as store:
        was = store.get(POSITION)
        store.write([(POSITION, raised(was))])
    here.refused("format-newer")
    with here.store() as store:
        store.write([(POSITION, was)])
    here.run_to_end()
    assert digests(here) == json.loads((HERE / VERSIONS[-1] / "expected.json").read_text())["after"]


# ---------------------------------------------------------------- several containers


@pytest.mark.parametrize("shared", ["alone", "beside another"])
def test_a_partition_of_a_newer_version_is_refused_while_the_others_go_on(make_here: Making, shared: str) -> None:
    """A newer container wrote to a partition and left. One that has this partition only ends with the refusal; one
    that has others holds it and works on those. The partition does not end one container after another.
    """
    service = make_here(world.RULES, {world.STREAM: {**world.STREAMS[world.STREAM], "partitions": 2}})
    source = world.events(51)
    service.append_pairs(world.STREAM, world.take(source, 100))
    service.run_to_end()
    a_newer_changelog(service, partition=0)
    service.append_pairs(world.STREAM, world.take(source, 100))
    before = service.committed()

    if shared == "alone":
        other = service.start("--slot", "1")
        wait_until(lambda: "is left for a newer container: format-newer" in other.text, "it has both partitions")
        refuses = service.start("--slot", "0")  # the first range is its own now
        assert refuses.ended() == 2, refuses.text
        assert "format-newer: a task's position has format 99" in refuses.text
    else:
        other = service.start("--slot", "0")
    wait_until(lambda: other.text.count("is left for a newer container") >= 1 + (shared == "alone"), "it has it again")
    done = sum(row.at.partition == 1 for row in service.read(service.settings.streams[world.STREAM].topic))
    place = TopicPartition(service.settings.streams[world.STREAM].topic, 1)
    wait_until(
        lambda: service.log.committed(service.settings.service, [place])[place] == done, "partition 1 is processed"
    )
    assert before < service.committed() < service.written()
    assert other.terminate() == 0, other.text
    service.refused("format-newer")  # `--until-caught-up` never will be
