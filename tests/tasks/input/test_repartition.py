"""Rules that are keyed by what their topics are not keyed by: through repartition topics, to a stage of their own."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

from samovar.changelog.formats.forwarded import FORMAT, HEAD_BYTES, WatermarkMarker, heads_of, marks_of
from samovar.changelog.log import Append
from samovar.common.errors import Refused
from samovar.native.kernel import joined
from tests.faults.comparing import header, shown
from tests.faults.harness import Service
from tests.faults.stage import Stage, Staging, ids
from tests.support.stages_oracle import digests, of_rules, pass_ms, rebuilt, settle, stage_of, told

SEEDS = [int(seed) for seed in os.environ.get("SAMOVAR_SEEDS", "1 2").split()]
T0 = 1_700_000_000_000
S = 1_000
STREAMS = {
    "a": {"key": "card", "slack": "2s", "idle": "3s", "partitions": 3},
    "b": {"key": "card", "slack": "1s", "idle": "2s", "partitions": 3},
}
PAIR = """
rule: pair
match: |
  sequence by user with maxspan=30s
    [a where n < 3] as one
    [b where n != one.n] as two
"""
GONE = """
rule: gone
match: |
  sequence by user with maxspan=20s
    [a where true] as one
    ![b where true]
"""
MINE = """
rule: mine
match: |
  session by card with gap=8s [any where true]
emit: {n: count()}
"""
EVERY = """
rule: every
match: |
  window every 10s [a where true]
emit: {n: count()}
"""
FIRST_A = """
rule: first-a
match: |
  sequence by user with maxspan=5s
    [a where n == 1] as one
    [a where n == 2] as two
"""
RULES = {"pair": PAIR, "gone": GONE, "mine": MINE, "every": EVERY}
BY_USER = "by-user"


def event(at_ms: int, user: str | None = "u", card: str = "c", n: int = 1) -> dict[str, Any]:
    return {"card": card, "user": user, "n": n, "ts": T0 + at_ms}


def end(service: Service, at_ms: int) -> None:
    """Let event time pass every deadline, in every partition of every stream."""
    for stream in service.settings.streams:
        for partition in range(service.partitions):
            service.events(stream, [event(at_ms, "end", "end", 0)], partition)


def compared(stage: Stage) -> None:
    """The live state against a rebuild (P2)."""
    settle(stage)
    stage.close()
    found, states = rebuilt(stage.service)
    assert found == ids(stage.service.alerts())
    assert states == digests(stage.service)


def records(stage: Stage, stream: str, stage_name: str = BY_USER) -> tuple[Any, list[WatermarkMarker]]:
    """Heads and marks of a repartition topic, over all partitions."""
    topic = f"{stage.service.settings.service}-{stream}-{stage_name}"
    values = joined([row.value or b"" for row in stage.service.read(topic)])
    heads = heads_of(values)
    return heads, marks_of(heads, values)


# ---------------------------------------------------------------- any order


def act(stage: Stage, random_: random.Random, now_ms: int) -> int:
    """One thing that happens; the time after it."""
    stream, partition = random_.choice("ab"), random_.randrange(2)
    match random_.choice(("feed", "feed", "feed", "feed", "feed", "unread", "pass", "long", "crash", "lost")):
        case "feed" | "unread" as how:
            made = []
            for _ in range(random_.randint(1, 6)):
                now_ms += random_.choice((0, 10, 300))
                behind = random_.choice((0, 0, 500, 900)) if random_.random() < 0.95 else 20 * S
                user = f"u{random_.randrange(5)}" if random_.random() < 0.9 else None
                card, n = f"{partition}-{random_.randrange(3)}", random_.randrange(6)
                made.append(event(now_ms - behind, user, card, n))
            stage.service.events(stream, made, partition)
            if how == "feed":
                stage.container.cycle()
        case "pass" | "long" as how:
            ms = random_.choice((500, 2_500)) if how == "pass" else random_.choice((7_000, 40_000))
            pass_ms(stage, ms)
            now_ms += ms if random_.random() < 0.8 else 0
        case "crash":
            stage.crash()
        case "lost":
            stage.crash(wipe=True)
    return now_ms


@pytest.mark.parametrize("seed", SEEDS)
def test_any_schedule(stage: Staging, seed: int) -> None:
    """P1, P2, P9. SAMOVAR_SEEDS="7 8 9" tries others."""
    random_ = random.Random(seed)
    here = stage(RULES, {name: {**spec, "partitions": 2} for name, spec in STREAMS.items()})
    now_ms = 0
    for step in range(50):
        now_ms = act(here, random_, now_ms)
        if step == 30:
            compared(here)
    end(here.service, now_ms + 3_600 * S)
    compared(here)
    alerts = here.service.alerts()
    assert len(set(ids(alerts))) == len(alerts) > 10
    for name, own in {"": ["mine"], BY_USER: ["pair", "gone"], "by-one-key": ["every"]}.items():
        expected = of_rules(told(here.service, name, [RULES[rule] for rule in own]), *own)
        if name == "by-one-key":  # the last window is the end's own
            expected = [match for match in expected if match["at"] < T0 + now_ms + 3_600 * S]
        assert shown(of_rules(alerts, *own)) == shown(expected), name


def test_the_same_ids_however_partitions_are_interleaved(stage: Staging) -> None:
    """P9: one partition after the other, or all together in small pieces."""
    random_ = random.Random(4)
    by_partition: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for step in range(240):
        place = random_.choice("ab"), random_.randrange(3)
        one = event(step * 200 - random_.choice((0, 700)), f"u{random_.randrange(4)}", f"c{place[1]}", step % 5)
        by_partition.setdefault(place, []).append(one)
    found = []
    for size in (1_000, 3):
        here = stage(RULES, STREAMS, name="same")
        for start in range(0, 240, size):
            for (stream, partition), made in sorted(by_partition.items(), reverse=size == 3):
                here.service.events(stream, made[start : start + size], partition)
                here.container.cycle()
        end(here.service, 3_600 * S)
        settle(here)
        found.append(ids(here.service.alerts()))
        assert here.service.late() == []
    assert found[0] == found[1]
    assert len(found[0]) > 30


# ---------------------------------------------------------------- what is forwarded


def test_events_carry_where_they_come_from(stage: Staging) -> None:
    """Their bytes are as they were; order, lateness and ids use the source's place alone."""
    here = stage({"pair": PAIR}, STREAMS)
    here.service.events("a", [event(0, "u"), event(S, None), event(2 * S, "v")], 2)
    settle(here)
    topic = f"{here.service.settings.service}-a-by-user"
    rows = [row for row in here.service.read(topic) if (row.value or b"")[1] == 0]
    assert [(row.key, (row.value or b"")[HEAD_BYTES:]) for row in sorted(rows, key=lambda each: each.key or b"")] == [
        (b"u", json.dumps(event(0, "u")).encode()),
        (b"v", json.dumps(event(2 * S, "v")).encode()),
    ]
    heads, _ = records(here, "a")
    events = heads[heads["kind"] == 0]
    assert sorted(zip(events["partition"].tolist(), events["offset"].tolist(), strict=True)) == [(2, 0), (2, 2)]
    counts = here.container.status().counts
    assert (counts.forwarded, counts.unkeyed) == (2, 1)  # P8


def test_late_and_dead_events_are_put_aside_once(stage: Staging) -> None:
    here = stage({"pair": PAIR}, STREAMS)
    here.service.events("a", [event(60 * S), event(0), event(61 * S)], 0)
    here.service.append("a", [b"{"], 0)
    settle(here)
    heads, _ = records(here, "a")
    assert heads["offset"][heads["kind"] == 0].tolist() == [0, 2]
    assert [(header(row, "offset"), stage_of(row)) for row in here.service.late()] == [("1", "")]
    assert [(header(row, "offset"), stage_of(row)) for row in here.service.dead()] == [("3", "")]


def test_what_was_forwarded_twice_is_taken_once(stage: Staging) -> None:
    """As a repeated commit of at-least-once delivery leaves it."""
    here = stage({"visits": MINE.replace("by card", "by user")}, {"a": STREAMS["a"]})
    here.service.events("a", [event(0), event(S)], 0)
    settle(here)
    topic = f"{here.service.settings.service}-a-by-user"
    rows = [row for row in here.service.read(topic) if row.key is not None]
    here.service.log.append(
        [Append(topic=topic, records=[(row.key, row.value)], partition=row.at.partition) for row in rows]
    )
    end(here.service, 60 * S)
    settle(here)
    assert [alert["emit"]["n"] for alert in here.service.alerts()] == [2]
    compared(here)


def test_what_is_no_forwarded_event_is_a_dead_letter(stage: Staging) -> None:
    here = stage({"pair": PAIR}, STREAMS)
    settle(here)
    topic = f"{here.service.settings.service}-a-by-user"
    here.service.log.append([Append(topic=topic, records=[(b"k", b"hello"), (b"k", b"\0" * 40)], partition=1)])
    settle(here)
    found = [(row.value, header(row, "exception"), header(row, "topic"), stage_of(row)) for row in here.service.dead()]
    assert found == [
        (b"hello", "NOT_FORWARDED", topic, BY_USER),
        (b"\0" * 40, "NOT_FORWARDED", topic, BY_USER),
    ]


def test_a_newer_format_is_refused(stage: Staging) -> None:
    here = stage({"pair": PAIR}, STREAMS)
    settle(here)
    topic = f"{here.service.settings.service}-a-by-user"
    here.service.log.append([Append(topic=topic, records=[(b"k", bytes([FORMAT + 1]) + b"\0" * 40)], partition=1)])
    with pytest.raises(Refused, match="format-newer"):
        settle(here)


# ---------------------------------------------------------------- event time


def test_a_partition_that_said_nothing_yet_holds_event_time_back(stage: Staging) -> None:
    here = stage({"gone": GONE}, STREAMS)
    for partition in (0, 1):
        for stream in "ab":
            here.service.events(stream, [event(0, "u" if stream == "a" else "w"), event(60 * S, "w")], partition)
    settle(here)
    assert here.service.alerts() == []
    pass_ms(here, 3 * S)  # the third is idle, never had an event, and is idle from now on
    assert [alert["at"] - T0 for alert in here.service.alerts()] == [20 * S]


@pytest.mark.parametrize("wipe", [None, False, True], ids=["straight", "kept", "lost"])
def test_an_idle_stream_lets_time_pass_in_later_stages(stage: Staging, wipe: bool | None) -> None:
    """At most a mark a second, for as long as a rule there may wait; and the main stage's own time stands."""
    here = stage({"gone": GONE}, STREAMS)
    here.service.events("a", [event(0)], 1)
    settle(here)
    for second in range(42):
        pass_ms(here, S)
        if wipe is not None and second % 9 == 5:
            here.crash(wipe=wipe)
    assert [alert["at"] - T0 for alert in here.service.alerts()] == [20 * S]
    _, marks = records(here, "a")
    told_ = [mark for mark in marks if mark.partition == 1]
    # Seconds of maxspan and slack; the first word, the end, silence, and what main lets pass itself; restarts.
    most = 20 + 2 + 4 + (0 if wipe is None else 5)
    assert len(told_) <= most * 3  # to each partition
    assert told_[-1].idle
    pass_ms(here, 600 * S)
    assert len(records(here, "a")[1]) == len(marks)
    settle(here)
    assert len(here.service.journal(1)) <= 3  # what waits there is let go once, and no more is written down
    compared(here)


@pytest.mark.parametrize("wipe", [None, False, True], ids=["straight", "kept", "lost"])
def test_a_silent_partition_that_speaks_joins_at_event_time(stage: Staging, wipe: bool | None) -> None:
    """What it says from before is late for that stage, and only there; a replay does the same."""
    here = stage({"pair": PAIR, "mine": MINE}, {"a": STREAMS["a"], "b": STREAMS["b"]})
    for stream in "ab":
        here.service.events(stream, [event(0, "v", n=9)], 0)
    pass_ms(here, 3 * S)
    for stream in "ab":
        here.service.events(stream, [event(100 * S, "v", n=9)], 0)
    settle(here)
    if wipe is not None:
        here.crash(wipe=wipe)
    here.service.events("a", [event(50 * S, "u", "other"), event(101 * S, "u", "other")], 2)
    settle(here)
    assert [(header(row, "partition"), header(row, "offset"), stage_of(row)) for row in here.service.late()] == [
        ("2", "0", BY_USER)
    ]
    if wipe is not None:
        here.crash(wipe=wipe)
    here.service.events("b", [event(102 * S, "u", n=5)], 0)
    end(here.service, 3_600 * S)
    compared(here)
    assert shown(of_rules(here.service.alerts(), "pair")) == shown(
        of_rules(told(here.service, BY_USER, [PAIR]), "pair")
    )
    assert len(of_rules(here.service.alerts(), "pair")) == 1


def test_each_stage_that_found_an_event_late_says_so_once(stage: Staging) -> None:
    """Stages have event times of their own: which rules did not see an event is told by each for itself, and no replay
    tells it again. The main stage took it.
    """
    by_number = PAIR.replace("rule: pair", "rule: numbers").replace("by user", "by n").replace("n != one.n", "true")
    here = stage({"pair": PAIR, "mine": MINE, "numbers": by_number}, {"a": STREAMS["a"], "b": STREAMS["b"]})
    for at_ms in (0, 100 * S):
        for stream in "ab":
            here.service.events(stream, [event(at_ms, "v", n=9)], 0)
        pass_ms(here, 3 * S)
    here.service.events("a", [event(50 * S, "u", "other"), event(101 * S, "u", "other")], 2)
    settle(here)
    for wipe in (False, True):
        found = [(header(row, "partition"), header(row, "offset"), stage_of(row)) for row in here.service.late()]
        assert sorted(found) == [("2", "0", "by-n"), ("2", "0", BY_USER)]
        here.crash(wipe=wipe)
        settle(here)


# ---------------------------------------------------------------- rules come and go


def test_streams_of_a_stage_come_and_go_with_its_rules(stage: Staging) -> None:
    """A stream that no rule of the stage needs any more holds nothing back; one that is new starts where it is."""
    here = stage({"pair": PAIR}, STREAMS)
    here.service.events("a", [event(0)], 0)
    settle(here)
    change(here, {"first-a": FIRST_A})
    for partition in range(3):
        here.service.events("a", [event(S * 10, n=1, card=f"{partition}")], partition)
    here.service.events("a", [event(S * 11, n=2), event(60 * S, "end", n=0)], 0)
    here.service.events("a", [event(60 * S, "end", n=0)], 1)
    here.service.events("a", [event(60 * S, "end", n=0)], 2)
    settle(here)
    assert [alert["rule"] for alert in here.service.alerts()] == ["first-a"]
    change(here, {"first-a": FIRST_A, "pair": PAIR})
    for partition in range(3):
        for stream in "ab":
            here.service.events(stream, [event(70 * S, n=2 + (stream == "b"))], partition)
    end(here.service, 3_600 * S)
    compared(here)
    assert len(of_rules(here.service.alerts(), "pair")) == 1


def test_a_stage_that_was_away_begins_anew(stage: Staging) -> None:
    """What it held before knows nothing of what happened meanwhile: neither a match nor an absence may come of it."""
    here = stage({"pair": PAIR, "gone": GONE}, STREAMS)
    here.service.events("a", [event(0, n=1)], 0)
    for partition in range(3):
        for stream in "ab":
            here.service.events(stream, [event(3 * S, "v", n=9)], partition)
    settle(here)
    change(here, {"mine": MINE})
    here.service.events("b", [event(4 * S, n=5)], 0)  # nobody forwards it
    settle(here)
    change(here, {"pair": PAIR, "gone": GONE})
    for partition in range(3):
        here.service.events("b", [event(5 * S, n=4)], partition)
    end(here.service, 3_600 * S)
    settle(here)
    assert of_rules(here.service.alerts(), "pair") == []
    assert [alert["key"] for alert in of_rules(here.service.alerts(), "gone")] == []
    compared(here)


def change(stage: Stage, rules: dict[str, str]) -> None:
    """Stop, and put other rules in the place of those that are there."""
    stage.close()
    folder = stage.service.folder / "rules"
    for path in folder.iterdir():
        path.unlink()
    for name, text in rules.items():
        (folder / f"{name}.yml").write_text(text)
    stage.service.edit(lambda _: None)
