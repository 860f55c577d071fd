"""A task folded back to a moment: its state, its place and what its journal says from then on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from samovar.changelog.formats.journal import EntryKind, effective_entries, pack_entry
from samovar.changelog.formats.record import POSITION, unpack_position
from samovar.changelog.log import Append
from samovar.state.memory import MemoryStore
from samovar.tasks.replay.point_in_time import rebuild_at
from samovar.tasks.replay.rebuild import ReplayEnd, journal_of, rebuild
from samovar.tasks.replay.rewind import RewoundState, fold_back
from tests.simulation.scenario import START_MS
from tests.tasks.replay.test_rebuild import EVENTS, Recorded, client, rows_of

END = ReplayEnd({"left": len(EVENTS)})


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("live"))


def folded(live: Recorded, moment: int, start: int | None = None) -> tuple[RewoundState, MemoryStore]:
    store = MemoryStore()
    if start is not None:
        store.write(live.rows[start].items())
    position = None if start is None else live.positions[start]
    found = fold_back(
        client(live.world), live.plan, 0, store, END, START_MS + moment, {"alerts": "skip"}, start=position
    )
    return found, store


@pytest.mark.parametrize("moment", [0, 1_100, 3_000, 5_200, 9_500])
def test_it_stands_where_the_moment_is_and_says_so_in_the_journal(live: Recorded, moment: int) -> None:
    found, store = folded(live, moment)
    at_moment = MemoryStore()
    wanted = rebuild_at(client(live.world), live.plan, 0, at_moment, END, START_MS + moment)
    assert rows_of(store) == rows_of(at_moment)
    position = found.position
    assert (position.watermark, position.inputs["left"].next) == (
        START_MS + moment,
        wanted.position.inputs["left"].next,
    )
    assert unpack_position(store.get(POSITION) or b"") == position
    last = journal_of(live.world.client, live.plan, 0)[-1].number
    assert [entry.number for entry in found.entries] == [last + 1 + place for place in range(len(found.entries))]
    assert position.journal == found.entries[-1].number
    first = found.entries[0]
    assert (first.kind, first.watermark, dict(first.inputs)) == (
        EntryKind.REWIND,
        None,
        {"left": position.inputs["left"].next},
    )
    assert (first.facts["to"], first.facts["until"], first.facts["alerts"]) == (START_MS + moment, {"left": 7}, "skip")
    assert all(dict(entry.inputs) == dict(first.inputs) for entry in found.entries)
    assert [entry.kind for entry in found.entries[1:]] == ["advance"]


def test_entries_of_after_the_moment_count_no_more(live: Recorded) -> None:
    journal = journal_of(live.world.client, live.plan, 0)
    assert len(journal) > 3
    for moment in (0, 3_000, 20_000):
        found, _ = folded(live, moment)
        void = found.entries[0].facts["void"]
        gone = {number for first, last in void for number in range(first, last + 1)}
        kept = [
            entry.number for entry in effective_entries([*journal, *found.entries]) if entry.kind != EntryKind.REWIND
        ]
        assert {entry.number for entry in journal} - gone == {number for number in kept if number <= len(journal)}
        assert 1 not in gone
        assert bool(gone) == (moment < 10_000)


def test_a_rebuild_after_the_rewind_is_the_state_of_the_moment(tmp_path: Path) -> None:
    mine = Recorded(tmp_path)
    found, store = folded(mine, 3_000)
    told = [(b"0", pack_entry(entry)) for entry in found.entries]
    mine.world.client.append([Append(topic="sim-journal", records=told, partition=0)])
    again = MemoryStore()
    nexts = {"left": found.position.inputs["left"].next}
    rebuilt = rebuild(client(mine.world), mine.plan, 0, again, ReplayEnd(nexts, found.position.journal))
    assert rows_of(again) == rows_of(store)
    assert (rebuilt.position.watermark, rebuilt.position.journal) == (found.position.watermark, found.position.journal)


@pytest.mark.parametrize("start", [1, 2])
def test_a_fold_back_from_a_snapshot_is_the_same(live: Recorded, start: int) -> None:
    whole, rows = folded(live, 5_200)
    part, part_rows = folded(live, 5_200, start)
    assert rows_of(part_rows) == rows_of(rows)
    assert (whole.events, part.events) == (part.events + start, whole.events - start)
    assert [replace(entry, facts={}) for entry in part.entries] == [replace(entry, facts={}) for entry in whole.entries]
    assert part.entries[0].facts == whole.entries[0].facts
