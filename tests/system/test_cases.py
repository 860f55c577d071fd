"""The conformance cases: every implementation of the language gives what their files expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Rule
from tests import oracle
from tests.support.matching import Options, arrived, replayed
from tests.support.project import ROOT

CASES = sorted((ROOT / "tests" / "cases" / "match").iterdir())
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Case:
    """A case, and what the arguments of its command mean."""

    rule: Rule
    lines: list[str]
    expected: list[dict[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def events(self) -> list[dict[str, Any] | None]:
        return [json.loads(line) if line.strip() else None for line in self.lines]


# A case's matches, as the command prints them.
Implementation: TypeAlias = Callable[[Case], list[dict[str, Any]]]


def by_the_oracle(case: Case) -> list[dict[str, Any]]:
    return oracle.run([case.rule], case.events, **case.options).matches


def by_the_matcher(case: Case) -> list[dict[str, Any]]:
    program = compile_rules([case.rule])
    names = {name: case.options[name] for name in ("type_field", "time_field") if name in case.options}
    options = Options(case.options.get("flush", True), case.options.get("show_suppressed", False))
    batch = arrived(program, case.events, **names)
    return replayed(program, [batch], case.options.get("slack_ms"), options)[0]


IMPLEMENTATIONS: dict[str, Implementation] = {"oracle": by_the_oracle, "matcher": by_the_matcher}


def read_case(folder: Path) -> Case:
    loaded = load_text((folder / "rule.yml").read_text())
    assert loaded.rule is not None, loaded.findings
    meta = folder / "meta.json"
    arguments = json.loads(meta.read_text())["args"] if meta.exists() else []
    return Case(
        loaded.rule,
        (folder / "events.jsonl").read_text().split("\n"),
        [json.loads(line) for line in (folder / "expected.jsonl").read_text().split("\n") if line.strip()],
        options_of(arguments),
    )


def options_of(arguments: list[str]) -> dict[str, Any]:
    """The arguments of `samovar match` as those of `run`."""
    options: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        match argument:
            case "--no-flush":
                options["flush"] = False
            case "--all":
                options["show_suppressed"] = True
            case "--type-field" | "--time-field":
                options[argument[2:].replace("-", "_")] = next(rest)
            case "--slack":
                options["slack_ms"] = milliseconds(next(rest))
            case _:
                raise AssertionError(f"the cases know no argument {argument}")
    return options


def milliseconds(duration: str) -> int:
    number = duration.rstrip("mshd")
    return int(number) * UNITS_MS[duration[len(number) :]]


def compared(matches: list[dict[str, Any]], names: set[str]) -> list[str]:
    """What is compared: the keys that the expected file has. Some files show a skipped step as an empty list."""
    shown = []
    for match in matches:
        record = {name: value for name, value in match.items() if name in names}
        if "steps" in record:
            record["steps"] = {step: lines for step, lines in record["steps"].items() if lines}
        shown.append(json.dumps(record, sort_keys=True))
    return shown


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_case(folder: Path, implementation: Implementation) -> None:
    case = read_case(folder)
    names = {name for match in case.expected for name in match}
    found = implementation(case)
    assert compared(found, names) == compared(case.expected, names)


def test_there_are_cases() -> None:
    assert len(CASES) >= 64
