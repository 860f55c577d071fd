"""`samovar rules test FILE|DIR...`: runs the tests inside rule files.

Exit codes: 0 all passed, 1 some failed or a rule has errors, 2 wrong usage or an unreadable file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from samovar.patterns.engine.compile import CompileError
from samovar.patterns.engine.matcher import RuleFailure
from samovar.patterns.rule_tests import MatchDifference, RuleTestResult, run_tests
from samovar.patterns.rulefile.loading import rendered
from samovar.patterns.rulefile.rule_file import load_paths
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding, has_errors, to_json
from samovar.service.rules.junit import Case, write_junit

PASSED, FAILED, USAGE = 0, 1, 2


@dataclass(frozen=True)
class FileResult:
    """A rule file: its findings, and its tests' results where it loaded."""

    path: str
    rule: str | None
    findings: tuple[Finding, ...]
    results: tuple[RuleTestResult, ...]

    @property
    def broken(self) -> bool:
        return has_errors(self.findings)


def rules_test(
    paths: Sequence[str], out: IO[str], err: IO[str], *, as_json: bool, junit: str | None, schema: Schema | None
) -> int:
    files = list(run_files(paths, schema))
    if not files:
        err.write(f"samovar: no rule files (*.yml, *.yaml) in {', '.join(paths)}\n")
        return USAGE
    if as_json:
        out.write(json.dumps(json_of(files), ensure_ascii=False) + "\n")
    else:
        out.write("\n".join(text_of(files)) + "\n")
    if junit is not None:
        try:
            Path(junit).write_text(write_junit(cases_of(files)), "utf-8")
        except OSError as error:
            err.write(f"samovar: cannot write {junit}: {error.strerror or error}\n")
            return USAGE
    if any(finding.id == "unreadable-file" for file in files for finding in file.findings):
        return USAGE
    return FAILED if failed_of(files) else PASSED


def run_files(paths: Sequence[str], schema: Schema | None) -> Iterator[FileResult]:
    for one in load_paths(paths, schema=schema):
        path = one.rule.path if one.rule is not None else one.findings[0].path
        if one.rule is None:
            yield FileResult(path, None, one.findings, ())
            continue
        try:
            results = tuple(run_tests(one.rule))
        except (CompileError, RuleFailure) as error:
            span = one.rule.form.span
            code = "too-large" if isinstance(error, CompileError) else "rule-failed"
            finding = Finding(code, "error", str(error), path, span)
            yield FileResult(path, one.rule.id, (*one.findings, finding), ())
        else:
            yield FileResult(path, one.rule.id, one.findings, results)


def passed_of(files: Sequence[FileResult]) -> int:
    return sum(result.passed for file in files for result in file.results)


def failed_of(files: Sequence[FileResult]) -> int:
    """Tests that failed; a rule with errors counts as one."""
    return sum(file.broken for file in files) + sum(not result.passed for file in files for result in file.results)


# ---------------------------------------------------------------- text


def text_of(files: Sequence[FileResult]) -> Iterator[str]:
    for file in files:
        if file.broken:
            yield f"FAILED  {file.path}: the rule has errors"
            yield rendered(finding for finding in file.findings if finding.level == "error")
        elif not file.results:
            yield f"no tests  {file.path}"
        for result in file.results:
            if result.passed:
                yield f"passed  {result.rule}: {result.name}"
            else:
                yield f"FAILED  {result.rule}: {result.name}  ({result.path}:{result.line})"
                yield from ("    " + line for line in failure_lines(result))
    bare = sum(not file.results and not file.broken for file in files)
    yield f"{passed_of(files)} passed, {failed_of(files)} failed" + (f", {bare} without tests" if bare else "")


def failure_lines(result: RuleTestResult) -> Iterator[str]:
    if result.expected != result.found:
        yield _headline(result)
    for difference in result.differences:
        yield from _side_by_side(difference)
    yield from result.why


def _headline(result: RuleTestResult) -> str:
    if result.expected != result.found:
        return f"expected {_matches(result.expected)}, found {_matches(result.found)}"
    names = dict.fromkeys(name for difference in result.differences for name in difference.names)
    return f"{', '.join(names)} not as expected"


def _matches(count: int) -> str:
    return "no match" if count == 0 else "1 match" if count == 1 else f"{count} matches"


def _side_by_side(difference: MatchDifference) -> Iterator[str]:
    if difference.expected is None:
        yield f"one too many: {_compact(difference.found)}"
    elif difference.found is None:
        yield f"did not come: {_compact(difference.expected) if difference.expected else 'a match'}"
    else:
        rows = [
            (name, _shown(difference.expected[name]), _shown(difference.found.get(name))) for name in difference.names
        ]
        width = max(len("expected"), *(len(expected) for _, expected, _ in rows))
        left = max(len(name) for name, _, _ in rows)
        yield f"{'':{left}}  {'expected':{width}}  found"
        for name, expected, found in rows:
            yield f"{name:{left}}  {expected:{width}}  {found}"


def _compact(match: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name}: {_shown(value)}" for name, value in (match or {}).items() if value not in ({}, None))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- JSON and JUnit


def json_of(files: Sequence[FileResult]) -> dict[str, Any]:
    return {
        "passed": passed_of(files),
        "failed": failed_of(files),
        "files": [
            {
                "path": file.path,
                "rule": file.rule,
                "findings": [to_json(finding) for finding in file.findings],
                "tests": [json_of_result(result) for result in file.results],
            }
            for file in files
        ],
    }


def json_of_result(result: RuleTestResult) -> dict[str, Any]:
    differences = [
        {"expected": one.expected, "found": one.found, "differs": list(one.names)} for one in result.differences
    ]
    return {
        "name": result.name,
        "line": result.line,
        "passed": result.passed,
        "expected": result.expected,
        "found": result.found,
        "differences": differences,
        "why": list(result.why),
    }


def cases_of(files: Sequence[FileResult]) -> Iterator[Case]:
    for file in files:
        name = file.rule or Path(file.path).stem
        if file.broken:
            yield Case(name, "loads", file.path, 1, "the rule has errors", rendered(file.findings))
        elif not file.results:
            yield Case(name, "has tests", file.path, 1, skipped="no tests")
        for result in file.results:
            failure = None if result.passed else _headline(result)
            yield Case(name, result.name, file.path, result.line, failure, "\n".join(failure_lines(result)))
