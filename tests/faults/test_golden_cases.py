"""Every golden case of the language in a running service: straight through, with a crash in the middle, and resumed at
another container count; one expected output (P1).

All cases share one service, each with a stream of its own, in one of four partitions. So that a rule sees only its own
case, its types get the case's number in front, in the rule as in the events; an event's offset is its line. Cases that
cannot share (`any` type, `next`, a key that not every event has, no flush at the end) have a service to themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.semantics.event_types import brackets_of
from samovar.patterns.syntax.tree import Bracket, Field, Rule
from tests.faults.conftest import Making
from tests.faults.harness import Fields, Match, Service, wait_until
from tests.oracle.events import read_time
from tests.system.test_cases import CASES, Case, compared, read_case

PARTITIONS = 4
FAR_MS = 400 * 86_400_000  # past every deadline
KEY = "key_of_the_record"


@dataclass(frozen=True)
class Staged:
    """A case as a stream of a service."""

    folder: Path
    case: Case
    partition: int

    @property
    def stream(self) -> str:
        return "k" + self.folder.name[:3]

    @property
    def flush(self) -> bool:
        return bool(self.case.options.get("flush", True))

    @property
    def type_field(self) -> str:
        return str(self.case.options.get("type_field", "type"))

    @property
    def time_field(self) -> str:
        return str(self.case.options.get("time_field", "ts"))

    @cached_property
    def text(self) -> str:
        """The rule, with its types renamed."""
        text = (self.folder / "rule.yml").read_text()
        renamed, count = re.subn(r"\[(\s*)(?!any\b)([\w.-]+)(\s+where\b)", rf"[\1{self.stream}_\2\3", text)
        types = [bracket.type for bracket in brackets_of(self.case.rule)]
        assert count == len([name for name in types if name != "any"]), self.folder
        return renamed

    @cached_property
    def rule(self) -> Rule:
        loaded = load_text(self.text)
        assert loaded.rule is not None, loaded.findings
        return loaded.rule

    @property
    def key(self) -> str:
        """The one field that all steps are keyed by and all events have; else a name that no rule reads."""
        paths = {first_key(bracket) for bracket in brackets_of(self.rule)}
        path = paths.pop() if len(paths) == 1 else ""
        good = [event for event in self.case.events if event is not None]
        return path if path and all(value_at(event, path) is not None for event in good) else KEY

    @property
    def shares(self) -> bool:
        """Whether it may stand next to others. `next` looks at all events of the key, whatever their stream."""
        if re.search(r"\bnext\b", self.text.partition("match:")[2]):
            return False
        return self.flush and self.key != KEY and all(bracket.type != "any" for bracket in brackets_of(self.rule))

    @property
    def times(self) -> list[int]:
        times = [read_time((event or {}).get(self.time_field)) for event in self.case.events]
        return [time for time in times if time is not None]

    @property
    def spec(self) -> dict[str, Any]:
        """The stream: its slack is what the case's disorder needs."""
        newest, slack_ms = self.times[0], 0
        for time in self.times:
            slack_ms, newest = max(slack_ms, newest - time), max(newest, time)
        fields = dict.fromkeys(compile_rules([self.rule]).fields, "any") | {self.key: "any"}
        types = {bracket.type for bracket in brackets_of(self.rule)}
        schema = {} if "any" in types else {"schema": dict.fromkeys(types, fields)}
        names = {"key": self.key, "type": self.type_field, "time": self.time_field}
        return {
            **names,
            **schema,
            "slack": f"{slack_ms}ms",
            "idle": "10h",
            "partitions": PARTITIONS if self.shares else 1,
        }

    @property
    def values(self) -> list[bytes]:
        lines = self.case.lines
        return [self._value(line) for line in (lines[:-1] if lines[-1] == "" else lines)]

    def _value(self, line: str) -> bytes:
        """A line as it stands, but for the type and, where there is none, a key."""
        if not line.strip():
            return line.encode()
        event: Fields = json.loads(line)
        kind = event.get(self.type_field)
        if isinstance(kind, str) and not any(bracket.type == "any" for bracket in brackets_of(self.rule)):
            event[self.type_field] = f"{self.stream}_{kind}"
        return json.dumps({**event, **({KEY: "k"} if self.key == KEY else {})}).encode()

    @property
    def end(self) -> bytes:
        """An event of no rule that lets event time pass everything. Its key may be nested or flat: flat is enough."""
        last = max(self.times) + FAR_MS
        return json.dumps({self.time_field: last, self.type_field: "end", self.key: "nobody"}).encode()

    def expected(self) -> list[str]:
        return sorted(compared(self.case.expected, self.names))

    @property
    def names(self) -> set[str]:
        return {name for match in self.case.expected for name in match}

    def found(self, alerts: Sequence[Match]) -> list[str]:
        mine = [alert for alert in alerts if alert["rule"] == self.case.rule.id]
        assert len({alert["id"] for alert in mine}) == len(mine)
        return sorted(compared([by_line(alert) for alert in mine], self.names))


def value_at(event: Fields, path: str) -> Any:
    """A nested value, or a flat one of that name."""
    value: Any = event
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return event.get(path) if value is None else value


def first_key(bracket: Bracket) -> str:
    """The field that a bracket is keyed by first, if it is one."""
    value = bracket.by[0].value if bracket.by else None
    return value.path if isinstance(value, Field) else ""


def by_line(alert: Match) -> Match:
    """A case names events by line, and a line is its offset here."""
    return {**alert, "steps": {name: [offset for _, _, offset in places] for name, places in alert["steps"].items()}}


def staged() -> list[Staged]:
    found = [Staged(folder, read_case(folder), number % PARTITIONS) for number, folder in enumerate(CASES)]
    return [each if each.shares else Staged(each.folder, each.case, 0) for each in found]


ALL = staged()
TOGETHER = [each for each in ALL if each.shares]
ALONE = [each for each in ALL if not each.shares]


def serve(make_here: Making, cases: Sequence[Staged]) -> Service:
    return make_here({each.stream: each.text for each in cases}, {each.stream: each.spec for each in cases})


def produce(service: Service, cases: Sequence[Staged], part: Callable[[list[bytes]], list[bytes]]) -> None:
    service.append_all(
        [(each.stream, [(b"k", value) for value in part(each.values)], each.partition) for each in cases]
    )


def produce_end(service: Service, cases: Sequence[Staged]) -> None:
    """In every partition, also where a stream has no events: an input that never spoke holds event time back."""
    places = [(each, partition) for each in cases if each.flush for partition in range(service.partitions)]
    service.append_all([(each.stream, [(b"k", each.end)], partition) for each, partition in places])


def straight(service: Service, cases: Sequence[Staged]) -> None:
    produce(service, cases, lambda values: values)
    produce_end(service, cases)
    service.run_to_end()


def with_a_crash(service: Service, cases: Sequence[Staged]) -> None:
    produce(service, cases, lambda values: values)
    produce_end(service, cases)
    few = len(cases) == 1
    for point in (
        ("commit.after:2", "commit.before:1") if few else ("commit.after:2", "write.before:3", "commit.before:2")
    ):
        code = service.start(kill=point, poll=1 if few else 30).ended()
        assert code == -9, "it ended by itself"
    service.run_to_end()


def at_another_count(service: Service, cases: Sequence[Staged]) -> None:
    produce(service, cases, lambda values: values[: len(values) // 2])
    service.run_to_end(poll=50)
    produce(service, cases, lambda values: values[len(values) // 2 :])
    produce_end(service, cases)
    both = [service.start("--slot", str(slot)) for slot in (0, 1)]
    wait_until(lambda: all("running partitions" in each.text for each in both), "both containers are at work")
    wait_until(lambda: service.committed() == service.written(), "all input is processed")
    assert [running.terminate() for running in both] == [0, 0]


RUNS = [straight, with_a_crash, at_another_count]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_all_cases_in_one_service(make_here: Making, run: Callable[[Service, Sequence[Staged]], None]) -> None:
    service = serve(make_here, TOGETHER)
    run(service, TOGETHER)
    check(service, TOGETHER)


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.folder.name)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_a_case_by_itself(make_here: Making, case: Staged, run: Callable[[Service, Sequence[Staged]], None]) -> None:
    service = serve(make_here, [case])
    run(service, [case])
    check(service, [case])


def check(service: Service, cases: Sequence[Staged]) -> None:
    alerts = service.alerts()
    assert service.late() == []
    wrong = {each.folder.name: each.found(alerts) for each in cases if each.found(alerts) != each.expected()}
    assert wrong == {}


def test_most_cases_stand_together() -> None:
    assert len(TOGETHER) + len(ALONE) == len(CASES)
    assert len(TOGETHER) >= 50
