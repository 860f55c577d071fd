"""Live alerts under load: listeners that are cut off or go away by themselves, and come back, hear each alert once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from samovar.service.alerts.index import Alert, AlertsIndex, read_alert
from samovar.service.http import broadcaster as live
from samovar.service.http.broadcaster import Broadcaster, Position, Subscription, listen, read_position
from tests.support.event_loop import run_async

PARTITIONS = 3
BATCHES, MOST_OF_A_BATCH = 150, 20
FEW, ENOUGH = 30, BATCHES * MOST_OF_A_BATCH  # alerts that a listener has room for


class Feed:
    """What a follower does, from a thread of its own: into the index, then the position, then to who listens."""

    def __init__(self, index: AlertsIndex, broadcaster: Broadcaster, seed: int) -> None:
        self.index, self.broadcaster = index, broadcaster
        self.position: Position = dict.fromkeys(range(PARTITIONS), 0)
        self.all: list[Alert] = []
        self._wanted: dict[tuple[int, ...], int] = {}
        self._random = Random(seed)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def is_all(self, heard: int, first: Position | None) -> bool:
        """Whether nothing comes any more, and all that came was heard by one who began there."""
        if not self.is_over or first is None:
            return False
        begun = tuple(first.values())
        if begun not in self._wanted:
            self._wanted[begun] = sum(each.offset >= first[each.partition] for each in self.all)
        return heard == self._wanted[begun]

    def _run(self) -> None:
        for _ in range(BATCHES):
            position, alerts = dict(self.position), []
            for _ in range(self._random.randint(1, MOST_OF_A_BATCH)):
                partition = self._random.randrange(PARTITIONS)
                alerts.append(alert_at(partition, position[partition]))
                position[partition] += self._random.randint(1, 3)  # markers of transactions take offsets, too
            new = self.index.take(alerts, [], {})
            self.all += new
            self.position = position
            self.broadcaster.publish(new)


def alert_at(partition: int, offset: int) -> Alert:
    body = {"id": f"{partition}-{offset}", "rule": "r", "version": "v", "key": {"card": "c"}, "steps": {}}
    found = read_alert(partition, offset, 0, json.dumps({**body, "at": 1, "start": 1, "end": 1}).encode())
    assert found is not None
    return found


def events_of(text: str) -> Iterator[dict[str, str]]:
    for block in text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines())
        if "event" in fields:
            yield fields


async def heard_by(feed: Feed, seed: int) -> tuple[list[str], Position, int]:
    """What one hears who goes away now and then and comes back with the last id; where it began; how often it came."""
    random, heard, times = Random(seed), list[str](), 0
    mark = "hidden " * (seed % 2)  # those who may see as much share a text, with nobody else

    def shown(alert: Alert) -> str:
        return f"{mark}{alert.id}"

    first: Position | None = None
    place: Position | None = None
    while not feed.is_all(len(heard), first):
        times += 1
        left = 1 if times == 1 else random.randint(1, 20)  # all come back once, however quick the feed
        stream = listen(
            feed.broadcaster,
            feed.index,
            lambda: feed.position,
            Subscription(start=place, rules=(), key=None, shown=shown, kind=mark),
        )
        async for text in stream:
            for event in events_of(text):
                assert event["event"] != "gap"
                place = read_position(event["id"], PARTITIONS)
                first = first or place
                if event["event"] == "alert":
                    assert event["data"].startswith("hidden ") == bool(mark)
                    heard.append(event["data"].removeprefix(mark))
            left -= 1
            await asyncio.sleep(random.choice([0, 0, 0.001]))
            if (left <= 0 and (times == 1 or not feed.is_over)) or feed.is_all(len(heard), first):
                break
        await stream.aclose()  # type: ignore[attr-defined]
    assert first is not None
    return heard, first, times


@pytest.mark.parametrize("queue", [FEW, ENOUGH])
def test_each_alert_is_heard_once_and_in_order_through_gaps(
    queue: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for few alerts listeners are cut off all the time; with room for all of them never."""
    monkeypatch.setattr(live, "QUEUE_MOST", queue)
    index, broadcaster = AlertsIndex(tmp_path / "alerts.db", "alerts"), Broadcaster()

    async def all_listen() -> tuple[Feed, list[tuple[list[str], Position, int]]]:
        broadcaster.bind(asyncio.get_running_loop())
        with Feed(index, broadcaster, queue) as feed:
            async with asyncio.timeout(60):
                return feed, list(await asyncio.gather(*(heard_by(feed, seed) for seed in range(5))))

    feed, told = run_async(all_listen())
    for heard, first, _ in told:
        wanted = {each.id for each in feed.all if each.offset >= first[each.partition]}
        assert len(heard) == len(set(heard))
        assert set(heard) == wanted
        for partition in range(PARTITIONS):
            offsets = [int(id.partition("-")[2]) for id in heard if id.startswith(f"{partition}-")]
            assert offsets == sorted(offsets)
    assert min(times for _, _, times in told) > 1
    assert (broadcaster.cut_off > 0) == (queue == FEW)
    index.close()
