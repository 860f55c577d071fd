"""`samovar rules test FILE|DIR...`: runs the tests inside rule files.

Exit codes: 0 all passed, 1 some failed or a rule has errors, 2 wrong usage or an unreadable file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree as ET

from samovar.patterns.engine.compile import CompileError
from samovar.patterns.engine.matcher import RuleFailure
from samovar.patterns.rule_tests import RuleTestResult, run_tests
from samovar.patterns.rulefile.loading import rendered
from samovar.patterns.rulefile.rule_file import load_paths
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding, has_errors, to_json

PASSED, FAILED, USAGE = 0, 1, 2
NOT_XML = re.compile(
    "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)  # what XML 1.0 cannot hold, escaped or not


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
    passed = sum(result.passed for file in files for result in file.results)
    # A rule with errors counts as one test that failed.
    failed = sum(file.broken for file in files) + sum(not result.passed for file in files for result in file.results)
    if as_json:
        results = [
            {
                "path": file.path,
                "rule": file.rule,
                "findings": [to_json(finding) for finding in file.findings],
                "tests": [json_of_result(result) for result in file.results],
            }
            for file in files
        ]
        document = {"passed": passed, "failed": failed, "files": results}
        out.write(json.dumps(document, ensure_ascii=False) + "\n")
    else:
        bare = sum(not file.results and not file.broken for file in files)
        total = f"{passed} passed, {failed} failed" + (f", {bare} without tests" if bare else "")
        out.write("\n".join([*(line for file in files for line in _file_lines(file)), total]) + "\n")
    if junit is not None:
        try:
            Path(junit).write_text(junit_xml(files), "utf-8")
        except OSError as error:
            err.write(f"samovar: cannot write {junit}: {error.strerror or error}\n")
            return USAGE
    if any(finding.id == "unreadable-file" for file in files for finding in file.findings):
        return USAGE
    return FAILED if failed else PASSED


def run_files(paths: Sequence[str], schema: Schema | None) -> Iterator[FileResult]:
    for one in load_paths(paths, schema=schema):
        if one.rule is None:
            yield FileResult(one.findings[0].path, None, one.findings, ())
            continue
        results: tuple[RuleTestResult, ...] = ()
        findings = one.findings
        try:
            results = tuple(run_tests(one.rule))
        except (CompileError, RuleFailure) as error:
            code = "too-large" if isinstance(error, CompileError) else "rule-failed"
            findings += (
                Finding(id=code, level="error", message=str(error), path=one.rule.path, span=one.rule.form.span),
            )
        yield FileResult(one.rule.path, one.rule.id, findings, results)


# ---------------------------------------------------------------- text


def _file_lines(file: FileResult) -> Iterator[str]:
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
            yield from ("    " + line for line in _failure_lines(result))


def _failure_lines(result: RuleTestResult) -> Iterator[str]:
    if result.expected != result.found:
        yield _headline(result)
    for difference in result.differences:
        expected, found = difference.expected, difference.found
        if expected is None:
            yield f"one too many: {_compact(found or {})}"
        elif found is None:
            yield f"did not come: {_compact(expected) if expected else 'a match'}"
        else:
            rows = [(name, _shown(expected[name]), _shown(found.get(name))) for name in difference.names]
            left = max(len(name) for name, _, _ in rows)
            width = max(len("expected"), *(len(text) for _, text, _ in rows))
            for name, *texts in [("", "expected", "found"), *rows]:
                yield f"{name:{left}}  {texts[0]:{width}}  {texts[1]}"
    yield from result.why


def _headline(result: RuleTestResult) -> str:
    if result.expected == result.found:
        names = dict.fromkeys(name for difference in result.differences for name in difference.names)
        return f"{', '.join(names)} not as expected"
    expected, found = (
        "no match" if count == 0 else "1 match" if count == 1 else f"{count} matches"
        for count in (result.expected, result.found)
    )
    return f"expected {expected}, found {found}"


def _compact(match: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {_shown(value)}" for name, value in match.items() if value not in ({}, None))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- JSON and JUnit


def json_of_result(result: RuleTestResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "line": result.line,
        "passed": result.passed,
        "expected": result.expected,
        "found": result.found,
        "differences": [
            {"expected": one.expected, "found": one.found, "differs": list(one.names)} for one in result.differences
        ],
        "why": list(result.why),
    }


def junit_xml(files: Sequence[FileResult]) -> str:
    """Results as JUnit XML, which CI systems show: one suite per rule."""
    suites: dict[str, list[ET.Element]] = {}
    for file in files:
        name = file.rule or Path(file.path).stem
        suites.setdefault(name, []).extend(_cases(file, name))

    def counts(cases: Sequence[ET.Element]) -> dict[str, str]:
        failures, skipped = (sum(case.find(kind) is not None for case in cases) for kind in ("failure", "skipped"))
        return {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}

    root = ET.Element("testsuites", counts([case for cases in suites.values() for case in cases]))
    for name, cases in suites.items():
        ET.SubElement(root, "testsuite", {"name": name, **counts(cases)}).extend(cases)
    ET.indent(root)
    text = '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"
    return NOT_XML.sub("\ufffd", text)


def _cases(file: FileResult, suite: str) -> Iterator[ET.Element]:
    def case(name: str, line: int, kind: str = "", message: str = "", text: str = "") -> ET.Element:
        element = ET.Element("testcase", {"classname": suite, "name": name, "file": file.path, "line": str(line)})
        if kind:
            ET.SubElement(element, kind, {"message": message}).text = text
        return element

    if file.broken:
        yield case("loads", 1, "failure", "the rule has errors", rendered(file.findings))
    elif not file.results:
        yield case("has tests", 1, "skipped", "no tests")
    for result in file.results:
        failure = () if result.passed else ("failure", _headline(result), "\n".join(_failure_lines(result)))
        yield case(result.name, result.line, *failure)
