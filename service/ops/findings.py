"""What `samovar doctor` found: how findings are worded and shown."""

from __future__ import annotations

from dataclasses import dataclass

from samovar.common.errors import Refused

OK, WARN, FAIL = "ok", "warn", "fail"


ABOUT = 12  # characters, of the column that says what it is about


INDENT = " " * (ABOUT + 8)


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at."""

    about: str
    state: str
    what: str
    fix: str = ""


def fine(about: str, what: str) -> Diagnosis:
    return Diagnosis(about, OK, what)


def refused(about: str, error: Refused) -> Diagnosis:
    return Diagnosis(about, FAIL, f"{error.code}: {error.what}", error.hint)


def finding_lines(finding: Diagnosis) -> list[str]:
    """A finding for people."""
    first, *others = finding.what.splitlines() or [""]
    lines = [f"{finding.state:<4}  {finding.about:<{ABOUT}}  {first}", *(INDENT + each for each in others)]
    return lines + ([f"{INDENT}fix: {finding.fix}"] if finding.fix else [])
