"""Several streams of different schema in one service, each with its own slack and idle time, on both logs: one is slow,
one never speaks.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from samovar.changelog.partitioner import partition_of
from tests.faults.comparing import header, shown
from tests.faults.conftest import Making
from tests.faults.stage import Stage, ids, staged, told_without_late

T0 = 1_700_000_000_000
S = 1_000
STREAMS: dict[str, dict[str, Any]] = {
    "login": {"key": "user", "slack": "1s", "idle": "3s", "schema": {"user": "string", "device": "string"}},
    "pay": {"key": "payer", "slack": "5s", "idle": "20s", "schema": {"payer": "string", "sum": "double"}},
    "alarm": {"key": "user", "idle": "2s", "schema": {"user": "string"}},
}
RULES = {
    "quick": """
rule: quick
match: |
  sequence with maxspan=30s
    [login where device == "new"] as came by user
    [pay where sum > 10] as paid by payer
""",
    "calm": """
rule: calm
match: |
  sequence with maxspan=10s
    [login where true] as came by user
    ![alarm where true] by user
""",
}


def login(at_ms: int, user: str = "u", device: Any = "new") -> dict[str, Any]:
    return {"user": user, "device": device, "ts": T0 + at_ms}


def pay(at_ms: int, payer: str = "u", amount: Any = 20.5) -> dict[str, Any]:
    return {"payer": payer, "sum": amount, "ts": T0 + at_ms}


def found(stage: Stage) -> list[tuple[str, int]]:
    return sorted((alert["rule"], alert["at"] - T0) for alert in stage.service.alerts())


@pytest.mark.parametrize("wipe", [False, True], ids=["kept", "lost"])
def test_each_stream_has_its_own_slack_and_idle_time(make: Making, wipe: bool) -> None:
    service = make(RULES, {name: {**spec, "partitions": 1} for name, spec in STREAMS.items()})
    with staged(service) as here:
        here.feed("login", login(0), login(500, "v", 7), login(40 * S, "w", "old"))
        assert [header(row, "exception") for row in service.dead()] == ["WRONG_TYPE"]
        here.pass_ms(3 * S)  # alarm is silent by now, and pay may still speak
        assert found(here) == []
        here.crash(wipe=wipe)
        here.feed("pay", pay(9 * S), pay(4 * S))  # within its slack
        here.feed("pay", pay(3 * S, amount=1), pay(16 * S, "x"))
        here.pass_ms(2 * S)  # alarm, once more after the crash
        assert [(header(row, "topic").rsplit("-", 1)[1], header(row, "offset")) for row in service.late()] == [
            ("pay", "2")
        ]
        assert found(here) == [("calm", 10 * S), ("quick", 4 * S)]  # event time is 11 s, that of the slow one
        here.crash(wipe=wipe)
        here.pass_ms(20 * S)  # pay is idle from now on, and its time goes on
        here.pass_ms(40 * S)
        assert found(here)[:2] == [("calm", 10 * S), ("calm", 50 * S)]
        here.feed("alarm", {"user": "w", "ts": T0 + 45 * S})  # long passed
        assert len(service.late()) == 2
        last = 3_600 * S
        for stream, event in {"login": login(last, "end"), "pay": pay(last, "end")}.items():
            here.service.events(stream, [event])
        here.feed("alarm", {"user": "end", "ts": T0 + last})
        expected = [match for match in told_without_late(service) if match["key"] != {"user": "end"}]
        assert shown(service.alerts()) == shown(expected)
        here.close()
        rebuilt, digests = here.rebuilt()
        assert sorted(rebuilt) == ids(service.alerts())
        assert digests == service.digests()


def test_a_topic_whose_records_are_in_the_wrong_partitions_is_refused(make: Making) -> None:
    """As librdkafka's own partitioner leaves them; nothing is guessed, and a record is named."""
    streams = {"login": {**STREAMS["login"], "partitions": 2, "repartition": None}}
    service = make({"calm": RULES["calm"].replace("alarm", "login")}, streams)
    key = b"u"
    wrong = 1 - partition_of(key, 2)
    service.append("login", [json.dumps(login(0)).encode()] * 2, wrong, key)
    text = service.refused("key-misplaced", "murmur2_random", "repartition: true")
    assert f"{service.settings.streams['login'].topic}/{wrong}/0" in text
    service.edit(lambda data: data["streams"]["login"].update(repartition=True))
    assert "stopped: 2 events" in service.run_to_end()
