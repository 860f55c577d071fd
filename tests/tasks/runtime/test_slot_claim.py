"""Who has a slot: the older container, while its heartbeats come from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.formats import heartbeat
from samovar.changelog.formats.heartbeat import MemberMetadata, read_heartbeats
from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.tasks.runtime import slot_claim
from samovar.tasks.runtime.slot_claim import SlotClaim


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    made = EmbeddedLog(tmp_path / "log")
    made.create([heartbeat.spec_of("s")])
    yield made
    made.close()


def tell(log: Log, host: str, pid: int = 1, since_ms: int = 0) -> None:
    heartbeat.send_heartbeat(
        log, "s", MemberMetadata(slot=0, host=host, pid=pid, since_ms=since_ms, version="0", time_ms=0)
    )


def test_a_slot_that_another_machine_tells_of_is_not_taken(log: EmbeddedLog) -> None:
    tell(log, "other")
    claim = SlotClaim(log, "s", 0, wait=lambda _: tell(log, "other"))
    with pytest.raises(Refused, match="slot 0 of s is taken by a container on other") as refused:
        claim.acquire()
    assert refused.value.code == "slot-taken"
    claim.release()
    assert read_heartbeats(log, "s")[0].metadata.host == "other"


def test_a_slot_whose_container_leaves_meanwhile_is_taken(log: EmbeddedLog) -> None:
    tell(log, "other")
    claim = SlotClaim(log, "s", 0, wait=lambda _: heartbeat.send_tombstone(log, "s", 0))
    claim.acquire()
    assert read_heartbeats(log, "s")[0].metadata.host == claim.host
    claim.release()
    assert read_heartbeats(log, "s") == {}


def test_a_slot_that_nobody_tells_of_any_more_is_taken(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_claim, "STALE_S", 0.0)
    tell(log, "other")
    SlotClaim(log, "s", 0).acquire()


def test_a_process_of_this_machine_that_has_ended_is_not_waited_for(log: EmbeddedLog) -> None:
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitpid(ended, 0)
    tell(log, slot_claim.host_name(), ended)
    SlotClaim(log, "s", 0, wait=lambda _: pytest.fail("it waits")).acquire()


def test_of_two_that_claim_a_slot_at_once_the_first_in_the_log_has_it(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(_log: Log, service: str, own: MemberMetadata) -> None:
        monkeypatch.undo()
        tell(log, "other")
        heartbeat.send_heartbeat(log, service, own)

    monkeypatch.setattr(heartbeat, "send_heartbeat", told)
    with pytest.raises(Refused, match="on other"):
        SlotClaim(log, "s", 0).acquire()


@pytest.mark.parametrize(("since_ms", "gives_way"), [(0, True), (9_999_999_999_999, False)])
def test_one_that_was_fenced_gives_way_to_an_older_one_only(log: EmbeddedLog, since_ms: int, gives_way: bool) -> None:
    claim = SlotClaim(log, "s", 0)
    claim.acquire()
    tell(log, "other", since_ms=since_ms)
    if not gives_way:
        claim.keep()
        return
    with pytest.raises(Refused, match="on other"):
        claim.keep()
