"""Any order of input, silence, time passing and crashes: a task's state is what a rebuild from input and journal gives,
no timer is called twice, and nothing that it emitted is there twice (P1, P2, P9).
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import Any

import pytest

from samovar.changelog.partitioner import partition_of
from tests.faults.stage import Stage, Staging
from tests.faults.task_world import CODE, PARTITIONS, RULES, TASKS, rebuilt_digests, task_digests
from tests.support import stages_oracle as stages

SEEDS = [int(seed) for seed in os.environ.get("SAMOVAR_SEEDS", "1 2").split()]
STEPS = 30
T0 = 1_700_000_000_000
CARDS = [f"c{number}" for number in range(8)]
STREAMS: dict[str, dict[str, Any]] = {
    "use": {"key": "card", "slack": "2s", "idle": "3s", "partitions": PARTITIONS},
    "told": {"key": "card", "idle": "3s"},
}


def made(random_: random.Random, now_ms: int) -> tuple[bytes, bytes]:
    """An event of about now; one in twelve is long gone."""
    behind = random_.choice((0, 0, 100, 900, 1_900)) if random_.random() < 11 / 12 else 90_000
    card = random_.choice(CARDS)
    event = {"card": card, "ts": now_ms - behind, "amount": random_.randrange(1, 20)}
    return card.encode(), json.dumps(event).encode()


def write(stage: Stage, random_: random.Random, pairs: list[tuple[bytes, bytes]]) -> None:
    """Each where its key says; of a stream that goes through a repartition topic, anywhere."""
    scattered = stage.service.settings.streams["use"].repartition
    for pair in pairs:
        stage.service.append_pairs("use", [pair], random_.randrange(PARTITIONS) if scattered else None)


def act(stage: Stage, random_: random.Random, began_ms: int) -> None:
    now_ms = T0 + stage.clock.now_ms - began_ms
    match random_.choice(("feed", "feed", "feed", "feed", "pass", "pass", "long", "crash", "lost", "unread")):
        case "feed":
            write(stage, random_, [made(random_, now_ms) for _ in range(random_.randint(1, 8))])
            stages.settle(stage)
            stage.clock.pass_ms(random_.choice((0, 300, 1_500)))
        case "unread":
            write(stage, random_, [made(random_, now_ms)])
        case "pass":
            stages.pass_ms(stage, random_.choice((500, 2_000, 5_000)))
        case "long":
            stages.pass_ms(stage, random_.choice((15_000, 45_000)))
        case "crash":
            stage.crash()
        case "lost":
            stage.crash(wipe=True)


def told(stage: Stage) -> Counter[tuple[Any, ...]]:
    rows = stage.service.read(stage.service.settings.streams["told"].topic)
    values = [json.loads(row.value or b"") for row in rows]
    return Counter((value["what"], value["card"], value["ts"], value["total"]) for value in values)


@pytest.mark.parametrize("scattered", [False, True], ids=["placed", "scattered"])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_schedule(stage: Staging, seed: int, scattered: bool) -> None:
    """SAMOVAR_SEEDS="7 8 9" tries others."""
    random_ = random.Random(seed)
    here = stage(RULES, {**STREAMS, "use": {**STREAMS["use"], "repartition": scattered}}, tasks=TASKS)
    (here.service.folder / "totals.py").write_text(CODE)
    began_ms = here.clock.now_ms
    for _ in range(STEPS):
        act(here, random_, began_ms)
    stages.settle(here)
    for _ in range(2):
        stages.pass_ms(here, 60_000)
    here.close()
    assert rebuilt_digests(here.service) == task_digests(here.service)
    quiet = [each for each in told(here) if each[0] == "quiet"]
    assert len(quiet) > 3
    assert max(told(here)[each] for each in quiet) == 1
    # Every event was told, or is late, or is the unlucky one, once each; what is late for the rules alone was told too,
    # where it was not sent on through a repartition topic.
    events = sum(count for each, count in told(here).items() if each[0] == "event")
    use = here.service.settings.streams["use"].topic
    late = [stages.place_of(row) for row in here.service.late() if stages.place_of(row)[0] == use]
    dead = [row for row in here.service.dead() if stages.stage_of(row) == "totals"]
    taken = len(here.service.read(use))
    assert len(set(late)) == len(late)
    assert events + len(dead) <= taken <= events + len(late) + len(dead)
    assert not scattered or taken == events + len(late) + len(dead)
    assert late or dead
    assert {partition_of(card.encode(), PARTITIONS) for card in CARDS} == set(range(PARTITIONS))
