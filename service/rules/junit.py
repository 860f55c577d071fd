"""Test results as JUnit XML, which CI systems show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree as ET

# What XML 1.0 cannot hold, escaped or not.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Case:
    """One test; `failure` is its first line, `text` the whole."""

    suite: str
    name: str
    file: str
    line: int
    failure: str | None = None
    text: str = ""
    skipped: str | None = None


def write_junit(cases: Iterable[Case]) -> str:
    """The XML text: a suite a rule."""
    suites: dict[str, list[Case]] = {}
    for case in cases:
        suites.setdefault(case.suite, []).append(case)
    root = ET.Element("testsuites", _counts([case for suite in suites.values() for case in suite]))
    for name, members in suites.items():
        suite = ET.SubElement(root, "testsuite", {"name": _clean(name), **_counts(members)})
        for case in members:
            _add_case(suite, case)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_case(suite: ET.Element, case: Case) -> None:
    attributes = {"classname": case.suite, "name": case.name, "file": case.file, "line": str(case.line)}
    element = ET.SubElement(suite, "testcase", {name: _clean(value) for name, value in attributes.items()})
    if case.failure is not None:
        ET.SubElement(element, "failure", {"message": _clean(case.failure)}).text = _clean(case.text)
    elif case.skipped is not None:
        ET.SubElement(element, "skipped", {"message": _clean(case.skipped)})


def _counts(cases: list[Case]) -> dict[str, str]:
    failures = sum(case.failure is not None for case in cases)
    skipped = sum(case.skipped is not None for case in cases)
    return {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
