"""`samovar rules explain`: a rule in plain English, drawn, and what it costs.

The document of `--format json`:

    {"rule", "title", "severity", "version", "sections": [{"heading", "lines"}, ...], "drawing", "cost": {...}}
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

from samovar.patterns.analysis.cost import cost
from samovar.patterns.explain.draw.picture import draw_svg
from samovar.patterns.explain.draw.text import draw
from samovar.patterns.explain.english import as_text, explain
from samovar.patterns.rulefile.rule_file import MAX_FILE_BYTES, LoadedRuleFile
from samovar.patterns.semantics.versioning import version_of
from samovar.patterns.syntax.findings import Finding, render
from samovar.patterns.syntax.tree import Rule


def explained(rule: Rule, format: str = "text") -> str:
    """A rule explained as text, as an SVG picture, or as a JSON document; ends with a newline."""
    if format == "svg":
        return draw_svg(rule)
    if format == "json":
        return json.dumps(document(rule), indent=2, ensure_ascii=False) + "\n"
    return f"{as_text(explain(rule))}\nDrawn\n\n{draw(rule)}"


def document(rule: Rule) -> dict[str, object]:
    """The document of `--format json`."""
    return {
        "rule": rule.id,
        "title": rule.title,
        "severity": rule.severity,
        "version": version_of(rule),
        "sections": [{"heading": each.heading, "lines": list(each.lines)} for each in explain(rule).sections],
        "drawing": draw(rule),
        "cost": asdict(cost(rule)),
    }


def refusal(loaded: LoadedRuleFile, text: str) -> str:
    """What is wrong with a rule that cannot be explained."""
    return "\n\n".join(show(finding, text) for finding in loaded.findings)


def show(finding: Finding, text: str) -> str:
    """A finding with its line and caret; of a file without text only what it says."""
    lines = render(finding, text).split("\n")
    return "\n".join(line for line in lines if text or not re.match(r"\s+1? ?\| ", line))


def text_of(path: str) -> str:
    """A file's text as far as it can be shown; empty where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
