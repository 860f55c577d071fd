"""Which tests and seeds run which lines of the mutated modules, and how long each takes: the others need not be tried.

It is found by running all of them once, and kept in a file. A file of tests is run again when it has changed, or a
mutated module that it runs has; so is a seed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutants.killing import OPTIONS, QUIETLY, Step, give_time, in_child, run_seeds
from tests.mutants.mutation import ROOT, Mutant, path_of

REACH = ROOT / "build" / "mutants-reach.json"
QUICK_S, SLOW_S = 0.5, 2.0  # tests that are tried first; those that are not worth their time
FEW, SOME = 8, 20  # the very first tests; the first seeds
NOT_HERE = {"kafka", "kafka_cluster", "spark", "browser"}  # fixtures that take long to start
Lines = dict[str, list[int]]  # by module


@dataclass(frozen=True)
class Reached:
    """What one test, or one seed, runs."""

    seconds: float
    lines: Lines

    def runs(self, mutant: Mutant) -> bool:
        return any(mutant.first <= line <= mutant.last for line in self.lines.get(mutant.module, ()))


class Tracer:
    """Notes the lines that run of some modules, in all threads."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = {str(ROOT / "samovar" / f"{module}.py"): module for module in modules}
        self._lines: dict[str, set[int]] = {}

    @contextmanager
    def noting(self) -> Iterator[None]:
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def taken(self) -> Lines:
        lines, self._lines = self._lines, {}
        return {module: sorted(found) for module, found in lines.items()}

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        module = self._modules.get(frame.f_code.co_filename)
        if module is None:
            return None
        lines = self._lines.setdefault(module, set())

        def within(frame: FrameType, event: str, _arg: Any) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
            return within

        return within


@dataclass
class _Plugin:
    """Of pytest: what each test of a file runs. What a setup runs counts for all that follow: they may share it."""

    tracer: Tracer
    setups: Lines = field(default_factory=dict)
    found: dict[str, Reached] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not NOT_HERE.intersection(getattr(item, "fixturenames", ()))]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        give_time()
        began_s = time.monotonic()
        with self.tracer.noting():
            yield
        self.found[item.nodeid] = Reached(time.monotonic() - began_s, merged(self.setups, self.tracer.taken()))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        yield
        self.setups = merged(self.setups, self.tracer.taken())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)


def merged(one: Lines, other: Lines) -> Lines:
    return {module: sorted({*one.get(module, ()), *other.get(module, ())}) for module in {*one, *other}}


class Reach:
    """The source of truth for what is worth trying on a mutant."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._kept: dict[str, Any] = json.loads(REACH.read_text()) if REACH.exists() else {}
        self.tests: dict[str, Reached] = {}
        self.seeds: dict[int, Reached] = {}

    def look(self, tests: Sequence[str], seeds: int) -> None:
        """Run what was not run yet."""
        for file in sorted({file for each in tests for file in _files(each)}):
            name = str(file.relative_to(ROOT))
            found = self._found(name, [file], partial(self._run_file, name))
            self.tests |= {test: Reached(**each) for test, each in found.items()}
        simulator = sorted((ROOT / "tests" / "simulation").glob("*.py"))
        for seed in range(1, seeds + 1):
            found = self._found(f"seed {seed}", simulator, partial(self._run_seed, seed))
            if found:
                self.seeds[seed] = Reached(**found[""])

    def _found(self, name: str, files: Sequence[Path], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What is kept under a name, or what comes of a run."""
        key, kept = _digest(files), self._kept.get(name)
        if kept is None or kept["key"] != key or kept["codes"] != self._codes(kept["found"]):
            found = run()
            self._kept[name] = kept = {"key": key, "codes": self._codes(found), "found": found}
            self._keep()
        result: dict[str, Any] = kept["found"]
        return result

    def _codes(self, found: Mapping[str, Any]) -> dict[str, str]:
        modules = sorted({module for each in found.values() for module in each["lines"]} & set(self._modules))
        return {module: _digest([path_of(module)]) for module in modules}

    def _keep(self) -> None:
        REACH.parent.mkdir(exist_ok=True)
        part = REACH.with_suffix(".part")
        part.write_text(json.dumps(self._kept))
        part.replace(REACH)

    def _run_file(self, file: str) -> dict[str, Any]:
        def act() -> dict[str, Any]:
            plugin = _Plugin(Tracer(self._modules))
            options = [each for each in OPTIONS if each != "-x"]
            pytest.main([*options, *QUIETLY, file], plugins=[plugin])
            return {name: asdict(each) for name, each in plugin.found.items() if name not in plugin.failed}

        found = in_child(act)
        return found if isinstance(found, dict) else {}

    def _run_seed(self, seed: int) -> dict[str, Any]:
        def act() -> dict[str, Any]:
            tracer, began_s = Tracer(self._modules), time.monotonic()
            with tracer.noting():
                failure = run_seeds([seed])
            return {} if failure else {"": asdict(Reached(time.monotonic() - began_s, tracer.taken()))}

        found = in_child(act)
        return found if isinstance(found, dict) else {}

    def steps(self, mutant: Mutant) -> list[Step]:
        """What runs the mutated statement, the quickest first; tests of one file stand together."""
        tests = sorted((name for name, each in self.tests.items() if each.runs(mutant)), key=self._test_s)
        seeds = [seed for seed, each in self.seeds.items() if each.runs(mutant)]
        few, quick = tests[:FEW], [name for name in tests[FEW:] if self._test_s(name) <= QUICK_S]
        slow = [name for name in tests[FEW:] if QUICK_S < self._test_s(name) <= SLOW_S]
        parts = tuple(sorted(few)), tuple(sorted(quick)), tuple(sorted(slow))
        steps: list[Step] = [parts[0], parts[1], seeds[:SOME], parts[2], seeds[SOME:]]
        return [step for step in steps if step]

    def _test_s(self, name: str) -> float:
        return self.tests[name].seconds


def _files(test: str) -> list[Path]:
    path = ROOT / test
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def _digest(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
