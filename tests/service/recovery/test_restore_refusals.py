"""What `samovar restore` refuses, and what it passes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.changelog.formats.record import CHECKPOINT
from samovar.changelog.log import TopicSpec
from samovar.state.rocks import RocksStore
from tests.support.small_service import (
    HOUR,
    Service,
    edit_following,
    make,
    many,
    refused,
    restored,
    wipe,
)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


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


def test_p4_a_store_of_a_newer_version_is_left_alone(service: Service) -> None:
    """P4: a format above ours is refused, and not taken for damage."""
    service.process(many(20))
    store = RocksStore(service.store(0))
    store.put(CHECKPOINT, b'{"v":99}')
    store.close()
    assert refused(service) == "format-newer"
    store = RocksStore(service.store(0))
    assert store.get(CHECKPOINT) == b'{"v":99}'
    store.close()


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
