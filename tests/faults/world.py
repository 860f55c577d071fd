"""Cards in use: an endless, seeded stream of events with rules of every form, for runs that are disturbed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from samovar.changelog.log import Pair
from samovar.changelog.partitioner import partition_of
from tests.faults.harness import Service

START_MS = 1_700_000_000_000
FAR_MS = 30 * 86_400_000  # past every deadline of the rules below
SLACK_MS = 2_000
PARTITIONS = 2
STREAM = "use"

RULES = {
    "testing": """
rule: testing
match: |
  sequence by card with maxspan=2m
    [buy where amount < 3] as probe with runs=2..
    [buy where amount > 90] as big
emit: {probes: count(probe), most: big.amount}
""",
    "forgotten": """
rule: forgotten
match: |
  sequence by card with maxspan=1m
    [login where true] as came
    ![logout where true]
""",
    "pairs": """
rule: pairs
match: |
  sequence by card with maxspan=20s, overlap=all
    [login where not seen(place, 5m)] as one
    [buy where place != one.place] as other
suppress: 30s
""",
    "visit": """
rule: visit
match: |
  session by card with gap=15s [buy where true]
emit: {total: sum(amount)}
""",
    "minute": """
rule: minute
match: |
  window by card every 1m [buy where amount > 10]
emit: {n: count(), places: distinct(place)}
""",
    "busy": """
rule: busy
match: |
  aggregate by card over 40s [any where true] having count() >= 8
suppress: 1m
""",
}
STREAMS: Mapping[str, Mapping[str, Any]] = {
    STREAM: {"key": "card", "type": "kind", "slack": "2s", "idle": "1h", "partitions": PARTITIONS}
}
BAD = (b"{", b"", b"[1]", b'{"card": "c1"}', b"\xff\xfe", b'{"card": "c1", "kind": "buy", "ts": "soon"}')


def events(seed: int) -> Iterator[Pair]:
    """Records as a producer writes them, in event time with some disorder; a few are late, a few are bad."""
    random_ = random.Random(seed)
    now = START_MS
    cards = [f"c{number}" for number in range(14)]
    while True:
        now += random_.choice((0, 20, 150, 400, 900))
        card = random_.choice(cards)
        if random_.random() < 0.02:
            yield card.encode(), random_.choice(BAD)
            continue
        behind = random_.choice((0, 0, 0, 300, 1_900)) if random_.random() > 0.01 else 30_000
        event = {
            "card": card,
            "kind": random_.choice(("buy", "buy", "buy", "login", "logout")),
            "ts": now - behind,
            "amount": random_.choice((1, 2, 2.5, 20, 50, 95, 120.25)),
            "place": random_.choice("ABCD"),
        }
        yield card.encode(), json.dumps(event).encode()


def take(source: Iterator[Pair], count: int) -> list[Pair]:
    return [next(source) for _ in range(count)]


def end(service: Service) -> None:
    """Let event time pass every deadline, in every partition."""
    rows = service.read(service.settings.streams[STREAM].topic)
    times = [json.loads(row.value or b"").get("ts") for row in rows if b'"amount"' in (row.value or b"")]
    last = {"card": "nobody", "kind": "end", "ts": max(times) + FAR_MS}
    for partition in range(service.partitions):
        service.append(STREAM, [json.dumps(last).encode()], partition, b"nobody")


def goes_to(key: bytes) -> int:
    return partition_of(key, PARTITIONS)
