"""A service whose rules are keyed by what its topic is not keyed by, killed again and again: exactly once, from the
stream through the repartition topics to the alerts (P1, P2, P9).
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable

from samovar.common.failpoints import POINTS
from tests.faults import world
from tests.faults.comparing import shown
from tests.faults.conftest import Making
from tests.faults.harness import Service
from tests.support.stages_oracle import digests, of_rules, rebuilt, told

SEED = int(os.environ.get("SAMOVAR_SEED", "0")) or time.time_ns() % 1_000_000
ROUNDS = 1 + int(os.environ.get("SAMOVAR_KILLS", "20")) // 100
INPUT = 60  # records before each start
BATCH = 12  # records of a poll, so that a little input is many commits
# The main stage has one of these; two share a stage, and one sees all events in one partition.
RULES = {
    "forgotten": world.RULES["forgotten"],
    "moved": world.RULES["testing"].replace("rule: testing", "rule: moved").replace("by card", "by place"),
    "visits": world.RULES["visit"].replace("rule: visit", "rule: visits").replace("by card", "by place"),
    "minutes": world.RULES["minute"].replace("rule: minute", "rule: minutes").replace(" by card", ""),
}
STAGES = {"": ["forgotten"], "by-place": ["moved", "visits"], "by-one-key": ["minutes"]}


def strike(service: Service, point: str, random_: random.Random) -> None:
    """Run until a point is passed for the n-th time: in a cycle, by tasks of any stage."""
    most = 3 if point.startswith("restore") else 5
    count = random_.randint(1, most)
    running = service.start(kill=f"{point}:{count}", poll=BATCH)
    code = running.ended()
    assert code == -signal.SIGKILL, f"{point} was not hit {count} times; exit code {code}: {running.text}"


def test_killed_at_every_point(make: Making, make_twin: Callable[[Service], Service]) -> None:
    print(f"SAMOVAR_SEED={SEED}")  # noqa: T201 - the line that repeats a failure
    random_ = random.Random(SEED)
    service = make(RULES, world.STREAMS)
    source = world.events(random_.randrange(1 << 30))
    service.append_pairs(world.STREAM, world.take(source, INPUT))
    service.run_to_end(poll=BATCH)
    points = [point for point in POINTS if not point.startswith("snapshot")]
    kept_and_lost = [number % 2 == 0 for number in range(len(points))]
    random_.shuffle(kept_and_lost)
    kills = list(zip(points, kept_and_lost, strict=True)) * ROUNDS
    random_.shuffle(kills)
    for point, lost in kills:
        service.append_pairs(world.STREAM, world.take(source, INPUT))
        if lost or point == "restore.after":  # a store that has all of its changelog is not restored
            service.wipe()
        strike(service, point, random_)
    service.append_pairs(world.STREAM, world.take(source, INPUT))
    service.run_to_end(poll=BATCH)
    found, states = rebuilt(service)
    assert found == sorted(alert["id"] for alert in service.alerts())
    assert states == digests(service)

    world.end(service)
    service.run_to_end()
    alerts = service.alerts()
    assert len({alert["id"] for alert in alerts}) == len(alerts), "an alert was written twice"
    ends = [row for row in service.read(topic(service)) if b'"end"' in (row.value or b"")]
    last_ms = max(json.loads(row.value or b"")["ts"] for row in ends)
    for stage, names in STAGES.items():
        expected = of_rules(told(service, stage, [RULES[name] for name in names]), *names)
        # What waits at the very end is the end's own, for which the oracle has no end.
        assert shown(of_rules(alerts, *names)) == shown([match for match in expected if match["at"] < last_ms]), stage
        assert expected, stage
    straight = make_twin(service)
    straight.run_to_end()
    assert sorted(alert["id"] for alert in straight.alerts()) == sorted(alert["id"] for alert in alerts)


def topic(service: Service) -> str:
    return service.settings.streams[world.STREAM].topic


def test_containers_share_all_stages(make: Making) -> None:
    """What one forwards another receives; one of them is killed on the way and comes back (P6)."""
    random_ = random.Random(SEED)
    service = make(RULES, world.STREAMS)
    source = world.events(random_.randrange(1 << 30))
    service.append_pairs(world.STREAM, world.take(source, 4 * INPUT))
    other = service.start("--slot", "1", poll=BATCH)
    struck = service.start("--slot", "0", kill="commit.before:6", poll=BATCH)
    assert struck.ended() == -signal.SIGKILL, struck.text
    service.append_pairs(world.STREAM, world.take(source, 4 * INPUT))
    world.end(service)
    back = service.start("--slot", "0", "--until-caught-up", poll=BATCH)
    assert back.ended() == 0, back.text
    assert other.terminate() == 0, other.text
    alerts = service.alerts()
    assert len({alert["id"] for alert in alerts}) == len(alerts), "an alert was written twice"
    for stage, names in STAGES.items():
        expected = of_rules(told(service, stage, [RULES[name] for name in names]), *names)
        in_time = [match for match in expected if match["at"] < world.START_MS + world.FAR_MS]
        assert shown(of_rules(alerts, *names)) == shown(in_time), stage
