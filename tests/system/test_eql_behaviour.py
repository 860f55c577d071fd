"""Sequences pasted from EQL do with events what EQL's documentation says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.patterns.parse.test_eql import SEQUENCES
from tests.support.conformance_cases import rule_text
from tests.support.matching import matches_of

Event = tuple[float, str, dict[str, Any]]  # seconds, category, flat fields


@dataclass(frozen=True)
class Behaviour:
    """Events that make a match of the sequence, its key, and variants of them that make none."""

    events: list[Event]
    key: dict[str, Any]
    # Which event to change, and to what: fields, a time in seconds, or another category.
    misses: list[tuple[int, dict[str, Any] | float | str]] = field(default_factory=list)
    more: list[Event] = field(default_factory=list)  # further events that change nothing
    steps: list[list[int]] | None = None
    at: float | None = None


def auth(seconds: float, outcome: str) -> Event:
    return seconds, "authentication", {"event.outcome": outcome, "source.ip": "1.1.1.1", "user.name": "u"}


RAW_COMMAND = 'reg add "HKLM\\Software" /v x'

BEHAVIOURS = {
    "two events of a user": Behaviour(
        [
            (0, "process", {"user.name": "u", "process.name": "rundll32.exe"}),
            (300, "network", {"user.name": "u", "destination.port": 443}),
        ],
        {"user.name": "u"},
        [(0, {"process.name": "RUNDLL32.EXE"}), (1, {"destination.port": 80}), (1, {"user.name": "v"}), (1, 300.001)],
        [(1, "process", {"user.name": "v", "process.name": "rundll32.exe"}), (2, "file", {"user.name": "u"})],
    ),
    "keys with other names": Behaviour(
        [
            (0, "file", {"file.name": "a.exe", "file.extension": "exe", "file.path": "c:\\users\\me\\a.exe"}),
            (1, "process", {"process.executable": "a.exe", "event.type": "start"}),
        ],
        {"file.name": "a.exe"},
        [
            (1, {"process.executable": "b.exe"}),
            (1, {"process.executable": None, "file.name": "a.exe"}),
            (0, {"file.path": "d:\\users\\x"}),
            (1, "file"),
        ],
    ),
    "several keys": Behaviour(
        [
            (0, "authentication", {"host.id": 1, "user.id": "a", "event.outcome": "failure"}),
            (30, "authentication", {"host.id": 1, "user.id": "a", "event.outcome": "success"}),
        ],
        {"host.id": 1, "user.id": "a"},
        [(1, {"host.id": 2}), (1, {"user.id": "b"}), (1, {"host.id": "1"}), (1, 31), (0, {"user.id": None})],
    ),
    "keys of both kinds": Behaviour(
        [
            (0, "process", {"process.pid_owner": "o", "user.id": "x"}),
            (1, "network", {"network.owner": "o", "user.id": "y"}),
        ],
        {"user.id": "o"},
        [(1, {"network.owner": "p", "user.id": "x"}), (1, "process")],
    ),
    "until": Behaviour(
        [
            (0, "process", {"process.entity_id": 7, "event.type": "start", "process.name": "PowerShell.exe"}),
            (10, "file", {"process.entity_id": 7, "event.action": "creation", "file.name": "x.dll"}),
        ],
        {"process.entity_id": 7},
        [(0, {"process.name": "calc.exe"}), (1, {"file.name": "x.txt"}), (1, {"event.action": "deletion"})],
        [(5, "process", {"process.entity_id": 8, "event.type": "end"})],
    ),
    "runs": Behaviour(
        [*(auth(second, "failure") for second in range(5)), auth(10, "success")],
        {"source.ip": "1.1.1.1", "user.name": "u"},
        [(2, {"event.outcome": "unknown"}), (4, {"user.name": "v"}), (5, 10.001), (0, -1)],
        steps=[[0, 1, 2, 3, 4], [5]],
    ),
    "a missing event": Behaviour(
        [
            (0, "library", {"host.name": "h", "dll.name": "EVIL.dll"}),
            (60, "network", {"host.name": "h", "destination.port": 8443}),
        ],
        {"host.name": "h"},
        [(0, {"dll.name": "good.dll"}), (1, {"destination.port": 22}), (1, 61)],
        [(1, "process", {"host.name": "h", "process.name": "other.exe"}), (2, "process", {"process.name": "av.exe"})],
        steps=[[0], [1]],
    ),
    "a missing event at the end": Behaviour(
        [(0, "service", {"service.name": "s", "event.action": "stopped"})],
        {"service.name": "s"},
        [(0, {"event.action": "started"})],
        [(601, "service", {"service.name": "s", "event.action": "started"})],
        at=600,
    ),
    "any": Behaviour(
        [(0, "alert", {"host.id": "h", "event.category": "malware"}), (86_400, "whatever", {"host.id": "h"})],
        {"host.id": "h"},
        [(0, {"event.category": "benign"}), (1, 86_401), (1, {"host.id": "i"})],
    ),
    "comments": Behaviour(
        [(0, "process", {"host.id": "h", "process.name": "PsExec64.exe"}), (59, "network", {"host.id": "h"})],
        {"host.id": "h"},
        [(0, {"process.name": "xpsexec"}), (1, "file"), (1, 61)],
    ),
    "case-insensitive operators": Behaviour(
        [
            (0, "process", {"user.id": "u", "process.name": "cmd.exe", "process.parent.name": "winword.exe"}),
            (1, "registry", {"user.id": "u", "registry.path": "HKLM\\Software\\x\\Run"}),
        ],
        {"user.id": "u"},
        [
            (0, {"process.parent.name": "EXPLORER.EXE"}),
            (0, {"process.name": "bash"}),
            (1, {"registry.path": "HKCU\\Software\\x\\Run"}),
        ],
    ),
    "functions": Behaviour(
        [
            (0, "process", {"host.id": 1, "process.name": "svchost", "process.executable": "c:\\svc.exe"}),
            (1, "network", {"host.id": 1, "destination.ip": "192.168.3.4", "dns.question.name": "axb"}),
            (2, "file", {"host.id": 1, "file.path": "C:\\Temp\\a.exe"}),
            (3, "file", {"host.id": 1, "file.name": "abcdef", "process.args": "-x -y"}),
            (4, "file", {"host.id": 1, "file.name": "a", "file.extension": "b", "file.size": "11"}),
            (5, "file", {"host.id": 1, "x": 0, "y": 7}),
        ],
        {"host.id": 1},
        [
            (0, {"process.name": "xsvc"}),
            (1, {"destination.ip": "8.8.8.8"}),
            (1, {"dns.question.name": "abc"}),
            (2, {"file.path": "C:\\tmp\\a.exe"}),
            (3, {"process.args": "-x"}),
            (4, {"file.size": "9"}),
            (5, {"y": 8}),
        ],
    ),
    "optional fields and backticks": Behaviour(
        [
            (0, "process", {"user.id": 1, "process.code_signature.trusted": False, "my-field": 1}),
            (1, "network", {"user.id": 1, "process.hash.md5": "abc", "process.odd name": "y"}),
        ],
        {"user.id": 1},
        [
            (0, {"process.code_signature.trusted": True}),
            (0, {"my-field": 2}),
            (1, {"process.hash.md5": None}),
            (1, {"process.odd name": "x"}),
        ],
    ),
    "not in": Behaviour(
        [
            (0, "process", {"user.id": 1, "process.name": "c.exe", "process.pid": 4}),
            (1, "process", {"user.id": 1, "process.name": "a", "process.args_count": 1}),
        ],
        {"user.id": 1},
        [
            (0, {"process.name": "b.exe"}),
            (0, {"process.pid": 5, "process.name": "a"}),
            (1, {"process.args_count": 2}),
        ],
    ),
    "quoted category": Behaviour(
        [(0, "my category", {"user.id": 1}), (1, "my-type.v2", {"user.id": 1})],
        {"user.id": 1},
        [(0, "my-category"), (1, {"user.id": 2}), (1, "my-type.v1")],
    ),
    "raw strings": Behaviour(
        [
            (0, "process", {"host.id": 1, "process.command_line": RAW_COMMAND}),
            (1, "process", {"host.id": 1, "process.executable": "c:\\windows\\System32\\CMD.exe"}),
        ],
        {"host.id": 1},
        [(0, {"process.command_line": "reg add"}), (1, {"process.executable": "c:\\windows\\cmd.exe"})],
    ),
    "arithmetic": Behaviour(
        [
            (0, "network", {"user.id": 1, "source.bytes": 1002, "destination.bytes": 1000, "source.port": 0}),
            (1, "network", {"user.id": 1, "source.bytes": 5, "destination.bytes": 20}),
        ],
        {"user.id": 1},
        [(0, {"source.bytes": 1000}), (0, {"source.bytes": 1003}), (1, {"destination.bytes": 21})],
    ),
    "spaces around the option": Behaviour(
        [*((second, "process", {"user.id": 1}) for second in (0, 1, 2)), (30, "network", {"user.id": 1})],
        {"user.id": 1},
        [(0, -1), (1, "file"), (3, {"user.id": 2})],
        steps=[[0, 1, 2], [3]],
    ),
}


def nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Dotted names as Elastic's documents have them: objects in objects."""
    found: dict[str, Any] = {}
    for path, value in fields.items():
        *heads, name = path.split(".")
        inner = found
        for head in heads:
            inner = inner.setdefault(head, {})
        inner[name] = value
    return found


def documents(events: list[Event], flat: bool = False) -> list[dict[str, Any]]:
    return [
        {"type": kind, "ts": 1_700_000_000_000 + round(seconds * 1000), **(fields if flat else nested(fields))}
        for seconds, kind, fields in events
    ]


def changed(events: list[Event], place: int, change: dict[str, Any] | float | str) -> list[Event]:
    seconds, kind, fields = events[place]
    match change:
        case dict():
            new = (seconds, kind, {**fields, **change})
        case str():
            new = (seconds, change, fields)
        case _:
            new = (change, kind, fields)
    return [*events[:place], new, *events[place + 1 :]]


def test_every_sequence_that_parses_is_tried() -> None:
    assert BEHAVIOURS.keys() == SEQUENCES.keys()
    assert len(BEHAVIOURS) >= 15


@pytest.mark.parametrize("name", BEHAVIOURS)
@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
def test_it_matches(name: str, flat: bool) -> None:
    one = BEHAVIOURS[name]
    (match,) = matches_of(rule_text(SEQUENCES[name]), documents([*one.events, *one.more], flat))
    last = one.events[-1][0] if one.at is None else one.at
    assert match["key"] == one.key
    assert match["at"] == 1_700_000_000_000 + last * 1000
    steps = one.steps or [[place] for place in range(len(one.events))]
    assert match["steps"] == {f"step{place}": lines for place, lines in enumerate(steps, 1)}


MISSES = [(name, place, change) for name, one in BEHAVIOURS.items() for place, change in one.misses]


@pytest.mark.parametrize(("name", "place", "change"), MISSES, ids=[f"{name}: {c}" for name, _, c in MISSES])
def test_it_does_not_match(name: str, place: int, change: dict[str, Any] | float | str) -> None:
    events = changed(BEHAVIOURS[name].events, place, change)
    assert matches_of(rule_text(SEQUENCES[name]), documents(events)) == []


# ---------------------------------------------------------------- what the documentation says in words


def test_events_must_come_in_order() -> None:
    events = [(1 - seconds / 300, kind, fields) for seconds, kind, fields in BEHAVIOURS["two events of a user"].events]
    assert matches_of(rule_text(SEQUENCES["two events of a user"]), documents(events)) == []


def test_a_later_start_replaces_an_earlier_one() -> None:
    """EQL keeps one sequence a key: of two events that fit the first step the later one is used."""
    start, end = BEHAVIOURS["two events of a user"].events
    events = [start, (200, *start[1:]), end]
    (match,) = matches_of(rule_text(SEQUENCES["two events of a user"]), documents(events))
    assert match["steps"] == {"step1": [1], "step2": [2]}


def test_until_ends_a_sequence() -> None:
    start, end = BEHAVIOURS["until"].events
    stop: Event = (5, "process", {"process.entity_id": 7, "event.type": "end"})
    assert matches_of(rule_text(SEQUENCES["until"]), documents([start, stop, end])) == []
    again: Event = (6, *start[1:])
    assert len(matches_of(rule_text(SEQUENCES["until"]), documents([start, stop, again, end]))) == 1


def test_a_missing_event_that_comes() -> None:
    start, end = BEHAVIOURS["a missing event"].events
    found: Event = (30, "process", {"host.name": "h", "process.name": "edr.exe"})
    assert matches_of(rule_text(SEQUENCES["a missing event"]), documents([start, found, end])) == []
    stop = BEHAVIOURS["a missing event at the end"].events[0]
    begin: Event = (600, "service", {"service.name": "s", "event.action": "started"})
    assert matches_of(rule_text(SEQUENCES["a missing event at the end"]), documents([stop, begin])) == []


def test_runs_count_each_event_once() -> None:
    """Ten failures and a success are one match, of the newest five."""
    events = [*(auth(second / 2, "failure") for second in range(10)), auth(6, "success"), auth(7, "success")]
    (match,) = matches_of(rule_text(SEQUENCES["runs"]), documents(events))
    assert match["steps"] == {"step1": [5, 6, 7, 8, 9], "step2": [10]}
