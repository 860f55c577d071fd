"""State folded again from its source: equal to what the live task had at the same offsets, wherever it is cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.journal import JournalEntry, pack_entry
from samovar.changelog.formats.record import CHECKPOINT, POSITION, Position, pack_position, unpack_position
from samovar.changelog.log import Append, Pair, TopicPartition
from samovar.common.errors import Refused
from samovar.service.topology.stores import digest_of
from samovar.state.memory import MemoryStore
from samovar.tasks.model.plan import MAIN
from samovar.tasks.replay.point_in_time import rebuild_at
from samovar.tasks.replay.rebuild import RebuildResult, ReplayEnd, SourceReplay, entries_of, journal_of, rebuild
from tests.simulation.memory_log import MemoryLog
from tests.simulation.scenario import START_MS, Pass, Publish, Settle
from tests.simulation.test_found import LEFT_AND_RIGHT, SINGLE, VISIT, record, scenario
from tests.simulation.world import World

ONE = {"left": {**LEFT_AND_RIGHT["left"], "slack": "300ms", "idle": "2s"}}
JOURNAL = TopicPartition("sim-journal", 0)
# Keys, times and whether the clock passes after it for long enough that the input is idle.
EVENTS = [("k0", 0, False), ("k1", 200, False), ("k0", 1_100, True), ("k2", 5_000, False), ("k1", 4_800, False),
          ("k0", 6_500, True), ("k3", 9_000, False)]  # fmt: skip


def world_of(folder: Path, rule: str = VISIT, streams: Any = ONE, **tunables: Any) -> World:
    return World(replace(scenario(rule, **tunables), streams=streams), folder / "service")


def client(world: World) -> MemoryLog:
    """One that reads as much at once as the service does."""
    return MemoryLog(world.broker, world.settings.tunables)


def rows_of(store: Any) -> dict[bytes, bytes]:
    """The rows that are logged, but for the position."""
    return {key: value for key, value in store.range() if key[:1] in b"ruvws"}


class Recorded:
    """A live run, and what its store had after each commit of an event."""

    def __init__(self, folder: Path, **tunables: Any) -> None:
        self.world = world_of(folder, **tunables)
        self.node = self.world.nodes[0]
        for _ in range(6):
            self.world.cycle(self.node)
        self.rows: list[dict[bytes, bytes]] = [rows_of(self.task.store)]
        self.positions: list[Position] = [self.position()]
        for key, ms, is_idle in EVENTS:
            self.world.take(record("left", "c", ms, u=key))
            self.world.cycle(self.node)
            for _ in range(8 if is_idle else 0):
                self.world.clock.pass_ms(1_000)
                self.world.broker.expire()
                self.world.cycle(self.node)
            self.rows.append(rows_of(self.task.store))
            self.positions.append(self.position())

    @property
    def task(self) -> Any:
        assert self.node.container is not None
        return self.node.container.tasks[MAIN, 0]

    @property
    def plan(self) -> Any:
        return self.task.plan

    def position(self) -> Position:
        data = self.task.store.get(POSITION)
        assert data is not None
        return unpack_position(data)

    def rebuilt(
        self, until: ReplayEnd, store: MemoryStore | None = None, **more: Any
    ) -> tuple[RebuildResult, MemoryStore]:
        store = store or MemoryStore()
        return rebuild(client(self.world), self.plan, 0, store, until, **more), store


def same(one: Position, other: Position) -> None:
    """But for how far back is read again."""
    assert (one.watermark, one.streams, dict(one.rules), one.journal) == (
        other.watermark, other.streams, dict(other.rules), other.journal,
    )  # fmt: skip
    assert {name: (each.next, each.topic_id, each.idle) for name, each in one.inputs.items()} == {
        name: (each.next, each.topic_id, each.idle) for name, each in other.inputs.items()
    }
    assert (one.changelog, one.journal_id) == (other.changelog, other.journal_id)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("live"), replay_records=1, replay_events=2)


@pytest.mark.parametrize("count", range(len(EVENTS) + 1))
def test_what_is_folded_is_what_the_live_task_had(live: Recorded, count: int) -> None:
    wanted = live.positions[count]
    found, store = live.rebuilt(ReplayEnd({"left": count}, wanted.journal))
    same(found.position, wanted)
    assert (rows_of(store), found.events, found.plan.versions) == (live.rows[count], count, live.plan.versions)
    assert unpack_position(store.get(POSITION) or b"") == found.position


@pytest.mark.parametrize("start", range(1, len(EVENTS)))
def test_a_fold_may_begin_from_a_state_that_is_there(live: Recorded, start: int) -> None:
    store = MemoryStore()
    store.write(live.rows[start].items())
    found, _ = live.rebuilt(ReplayEnd({"left": len(EVENTS)}), store, start=live.positions[start])
    same(found.position, live.positions[-1])
    assert (rows_of(store), found.events) == (live.rows[-1], len(EVENTS) - start)


def test_all_alerts_are_given_out_and_counted(live: Recorded) -> None:
    given: list[Pair] = []
    found, _ = live.rebuilt(ReplayEnd({"left": len(EVENTS)}), on_alerts=given.extend)
    assert found.alerts == len(given) == len(live.world.broker.committed_records("sim-alerts")) > 1
    assert [value for _, value in given] == [each.value for each in live.world.broker.committed_records("sim-alerts")]


def test_without_a_number_all_entries_count_whose_offsets_are_reached(live: Recorded) -> None:
    for count in (3, 5):
        found, _ = live.rebuilt(ReplayEnd({"left": count}))
        assert found.position.journal == max(
            entry.number for entry in entries_of(live.world.client, JOURNAL) if entry.inputs["left"] <= count
        )


def test_how_often_it_writes_makes_no_difference(live: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many events are held at most; each look says how many were taken."""
    commits: list[int] = []
    commit = SourceReplay._commit

    def noting(self: SourceReplay) -> None:
        commits.append(self._uncommitted)
        commit(self)
        assert self._uncommitted == 0

    monkeypatch.setattr(SourceReplay, "_commit", noting)
    seen: list[int] = []
    live.rebuilt(ReplayEnd({"left": len(EVENTS)}), on_progress=seen.append)
    assert (commits[:-1], sum(commits)) == ([2] * (len(commits) - 1), len(EVENTS))
    assert (seen, seen[-1]) == (sorted(seen), len(EVENTS))


def test_each_input_is_opened_once(live: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    cursor = SourceReplay._cursor

    def noting(self: SourceReplay, stream: str, start: int) -> Any:
        opened.append(stream)
        return cursor(self, stream, start)

    monkeypatch.setattr(SourceReplay, "_cursor", noting)
    live.rebuilt(ReplayEnd({"left": len(EVENTS)}))
    assert opened == ["left"]


@pytest.mark.parametrize(
    ("until", "code"), [({"left": len(EVENTS) + 1}, "input-truncated"), ({"left": len(EVENTS)}, None)]
)
def test_offsets_that_the_input_does_not_reach_are_refused(
    live: Recorded, until: Mapping[str, int], code: str | None
) -> None:
    if code is None:
        live.rebuilt(ReplayEnd(until))
        return
    with pytest.raises(Refused) as refused:
        live.rebuilt(ReplayEnd(until))
    assert refused.value.code == code


def test_an_empty_journal_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    with pytest.raises(Refused) as refused:
        rebuild(world.client, world.plans()[0], 0, MemoryStore(), ReplayEnd({}))
    assert refused.value.code == "journal-empty"


def entry(number: int, kind: str = "idle") -> Pair:
    facts = {"stream": "left"}
    return b"0", pack_entry(JournalEntry(kind=kind, number=number, inputs={"left": 0}, watermark=None, facts=facts))


@pytest.mark.parametrize(("first", "code"), [(1, "journal-empty"), (2, "journal-cut")])
def test_a_journal_must_begin_with_the_rules(tmp_path: Path, first: int, code: str) -> None:
    world = world_of(tmp_path)
    world.client.append([Append(topic="sim-journal", records=[entry(first), (b"0", None)], partition=0)])
    with pytest.raises(Refused) as refused:
        rebuild(world.client, world.plans()[0], 0, MemoryStore(), ReplayEnd({}))
    assert refused.value.code == code
    assert [each.number for each in entries_of(world.client, JOURNAL)] == [first]


@pytest.mark.parametrize(
    ("begin", "start", "is_there"), [(0, None, True), (1, None, False), (3, 3, True), (4, 3, False)]
)
def test_an_input_that_no_longer_holds_what_is_needed_is_refused(
    tmp_path: Path, begin: int, start: int | None, is_there: bool
) -> None:
    live = Recorded(tmp_path)
    store = MemoryStore()
    more: dict[str, Any] = {}
    if start is not None:
        stored = live.positions[start]
        assert stored.inputs["left"].replay_from <= start
        inputs = {"left": replace(stored.inputs["left"], replay_from=start)}
        store.write(live.rows[start].items())
        more["start"] = replace(stored, inputs=inputs)
    live.world.broker.topic("left").logs[0].begin = begin
    if is_there:
        live.rebuilt(ReplayEnd({"left": len(EVENTS)}), store, **more)
        return
    with pytest.raises(Refused) as refused:
        live.rebuilt(ReplayEnd({"left": len(EVENTS)}), store, **more)
    assert refused.value.code == "input-expired"


def test_rules_change_where_the_journal_says(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    other = VISIT.replace("gap=1s", "gap=3s")
    for step in (record("left", "c", 0), Settle(), Publish("publish", "visit", other), Settle()):
        world.take(step)
    for ms in (200, 2_500):
        world.take(record("left", "c", ms))
        world.take(Settle())
    container = world.nodes[0].container
    assert container is not None
    task, store = container.tasks[MAIN, 0], MemoryStore()
    stored = unpack_position(task.store.get(POSITION) or b"")
    found = rebuild(world.client, task.plan, 0, store, ReplayEnd({"left": 3}, stored.journal))
    same(found.position, stored)
    assert found.position.ruleset_change == stored.ruleset_change > 0
    assert (rows_of(store), found.plan.versions) == (rows_of(task.store), task.plan.versions)
    first = next(
        entry for entry in journal_of(world.client, task.plan, 0) if entry.kind == "rules" and entry.number > 1
    )
    before = rebuild(world.client, task.plan, 0, MemoryStore(), ReplayEnd({"left": 1}, first.number - 1))
    assert before.plan.versions != found.plan.versions


def test_a_fold_that_begins_between_changes_of_rules_goes_on_with_those_of_its_start(tmp_path: Path) -> None:
    """Of three versions one after the other, each leaves other states of the same events."""
    world = world_of(tmp_path)
    world.take(record("left", "c", 0))
    world.take(Settle())
    container = world.nodes[0].container
    assert container is not None
    task = container.tasks[MAIN, 0]
    stands: list[tuple[Position, dict[bytes, bytes], Any]] = []
    for number, gap_s in enumerate((1, 3, 5), 1):
        if number > 1:
            world.take(Publish("publish", "visit", VISIT.replace("gap=1s", f"gap={gap_s}s")))
        for ms in (0, 500):
            world.take(record("left", "c", number * 8_000 + ms))
            for _ in range(8):  # for so long that the input is idle: its visit ends by an entry of the journal
                world.take(Pass(1_000))
                world.take(Settle())
            position = unpack_position(task.store.get(POSITION) or b"")
            stands.append((position, rows_of(task.store), task.processor.plan.versions))
    assert len({str(versions) for _, _, versions in stands}) == 3
    for at, (start, rows, _) in enumerate(stands):
        for wanted, found_rows, versions in stands[at:]:
            store = MemoryStore()
            store.write(rows.items())
            until = ReplayEnd({"left": wanted.inputs["left"].next}, wanted.journal)
            found = rebuild(world.client, task.plan, 0, store, until, start=start)
            same(found.position, wanted)
            assert found.plan.versions == versions, (start.journal, wanted.journal)
            live_state = MemoryStore()
            live_state.write([*found_rows.items(), (POSITION, pack_position(wanted))])
            assert digest_of(found.plan, store) == digest_of(found.plan, live_state), (start.journal, wanted.journal)


def test_two_streams_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    """The one behind first, so that little waits."""
    world = world_of(tmp_path, SINGLE, LEFT_AND_RIGHT, replay_records=1)
    steps = [record(stream, "c", ms) for ms in range(0, 40_000, 4_000) for stream in ("left", "right")]
    for step in steps:
        world.take(step)
    world.take(Settle())
    container = world.nodes[0].container
    assert container is not None
    task, store, most = container.tasks[MAIN, 0], MemoryStore(), 0

    class Watched(SourceReplay):
        def _take(self, stream: str, until: int) -> Any:
            nonlocal most
            most = max(most, len(self.processor.source.buffer.pending))
            return super()._take(stream, until)

    until = ReplayEnd({"left": 10, "right": 10})
    replay = Watched(client(world), task.plan, 0, store, until, lambda _: None)
    replay.run(until)
    replay.close()
    assert rows_of(store) == rows_of(task.store)
    assert most <= 5


# ---------------------------------------------------------------- at a moment


@pytest.mark.parametrize("moment", [-1, 0, 199, 200, 201, 1_100, 2_099, 2_100, 2_101, 4_999, 5_000, 7_500, 7_501])
def test_a_moment_has_all_events_up_to_it_and_none_after(live: Recorded, moment: int) -> None:
    found = rebuild_at(
        live.world.client, live.plan, 0, (store := MemoryStore()), ReplayEnd({"left": len(EVENTS)}), START_MS + moment
    )
    times = [ms for _, ms, _ in EVENTS]
    first = next((offset for offset, ms in enumerate(times) if ms - 300 > moment), len(times))
    assert found.position.inputs["left"].next == first
    assert found.position.watermark == START_MS + moment
    sessions: dict[str, int] = {}
    for key, ms, _ in EVENTS[:first]:
        if ms <= moment and (key not in sessions or ms >= sessions[key]):
            sessions[key] = ms
    open_ = [key for key, last in sessions.items() if last + 1_000 >= moment]
    assert len(rows_of(store)) == len(open_), open_


def test_at_a_moment_nothing_beyond_the_end_is_read(live: Recorded) -> None:
    found = rebuild_at(live.world.client, live.plan, 0, MemoryStore(), ReplayEnd({"left": 2}), START_MS + 9_999)
    assert (found.position.inputs["left"].next, found.events) == (2, 2)


def test_local_rows_are_not_logged(live: Recorded) -> None:
    assert CHECKPOINT not in rows_of(live.task.store)


@pytest.mark.parametrize("moment", [1_100, 4_600, 5_000, 6_500])
@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_at_a_moment_it_makes_no_difference_how_much_is_read_at_once(live: Recorded, moment: int, at_once: int) -> None:
    """Nothing of a stream is taken behind its first event beyond the moment, though more of that poll may be before."""
    log = MemoryLog(live.world.broker, replace(live.world.settings.tunables, replay_records=at_once))
    found = rebuild_at(log, live.plan, 0, MemoryStore(), ReplayEnd({"left": len(EVENTS)}), START_MS + moment)
    first = next(offset for offset, (_, ms, _) in enumerate(EVENTS) if ms - 300 > moment)
    assert (found.position.inputs["left"].next, found.events) == (first, first)
