"""What the tests of the rule language's front end share."""

from __future__ import annotations

from typing import Any

from samovar.patterns.rulefile.rule_file import LoadedRuleFile, load_text
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.findings import Finding, render
from samovar.patterns.syntax.tree import Rule
from tests.support.project import ROOT

CASES = ROOT / "tests" / "cases"

SCHEMA = Schema.of(
    {
        "purchase": {"card": "string", "amount": "double", "country": "string", "ok": "boolean"},
        "login": {"card": "string", "user": "string", "device": "string", "tries": "int", "process": {"name": "text"}},
        "wire": {"card": "long", "account": "string", "amount": "double"},
    }
)


def rule_text(match: str, **sections: str) -> str:
    """A rule file: the match from line 3 on, two columns in; further sections as YAML after it."""
    body = "".join(f"  {line}\n" if line else "\n" for line in match.split("\n"))
    return "rule: r\nmatch: |\n" + body + "".join(f"{name}: {value}\n" for name, value in sections.items())


def load(match: str, /, options: Any = None, **sections: str) -> LoadedRuleFile:
    """`options` are the further arguments of load_text."""
    return load_text(rule_text(match, **sections), "r.yml", **(options or {}))


def sound(match: str, /, options: Any = None, **sections: str) -> Rule:
    """The rule of a text that has no fault."""
    loaded = load(match, options, **sections)
    text = rule_text(match, **sections)
    assert loaded.rule is not None, "\n".join(render(finding, text) for finding in loaded.findings)
    return loaded.rule


def marked(finding: Finding, text: str) -> str:
    """What stands over the carets, on the finding's first line."""
    line = text.split("\n")[finding.span.line - 1]
    end = finding.span.end_column - 1 if finding.span.end_line == finding.span.line else len(line)
    return line[finding.span.column - 1 : end]
