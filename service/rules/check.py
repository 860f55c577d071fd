"""`samovar rules check`: every error and every finding of the lint, for all files at once, and what rules cost.

The document of `--json`:

    {"ok": bool, "rules": [{"path", "rule", "version", "ok", "findings": [...], "cost": {...} | null}, ...],
     "summary": {"files", "rules", "errors", "warnings", "infos"}}

A finding is as in samovar.patterns.syntax.findings.to_json; `rule`, `version` and `cost` are null where a file has
errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from samovar.patterns.analysis.cost import Cost, cost
from samovar.patterns.analysis.lint.linter import lint
from samovar.patterns.engine.compile import CompileError, compile_rules
from samovar.patterns.explain.english import size_words
from samovar.patterns.explain.phrases import counted, duration_words
from samovar.patterns.rulefile.rule_file import load_paths
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.semantics.versioning import version_of
from samovar.patterns.syntax.findings import Finding, has_errors, to_json
from samovar.patterns.syntax.tree import Span
from samovar.service.rules.explain import show, text_of

CLEAN, FOUND, USAGE = 0, 1, 2


class SchemaUnreadable(ValueError):
    """The command cannot begin: a schema that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class CheckedFile:
    """One file. `rule` is its rule's id; None, as `version` and `cost`, where the file has errors."""

    path: str
    findings: tuple[Finding, ...]
    rule: str | None = None
    version: str | None = None
    cost: Cost | None = None


def check(paths: Sequence[str], schema: Schema | None = None) -> list[CheckedFile]:
    """Checks rule files, and folders of them."""
    given = list(dict.fromkeys(paths))
    checked = []
    for path in given:
        if Path(path).is_dir() and not any(file.suffix in (".yml", ".yaml") for file in Path(path).rglob("*")):
            text, hint = "the folder holds no rule file", "*.yml or *.yaml in it, or below it"
            finding = Finding(
                id="no-rules", level="error", message=text, path=path, span=Span(1, 1, 1, 1), expected=hint
            )
            checked.append(CheckedFile(path=path, findings=(finding,)))
    for loaded in load_paths(given, schema=schema):
        rule, findings = loaded.rule, loaded.findings
        if rule is None:
            checked.append(CheckedFile(path=findings[0].path if findings else "", findings=findings))
            continue
        try:
            compile_rules([rule])
        except CompileError as fault:
            finding = Finding(id="too-large", level="error", message=str(fault), path=rule.path, span=rule.form.span)
            checked.append(CheckedFile(path=rule.path, findings=(*findings, finding)))
            continue
        linted = sorted((*findings, *lint(rule, schema)), key=lambda finding: (finding.span, finding.id))
        checked.append(
            CheckedFile(path=rule.path, findings=tuple(linted), rule=rule.id, version=version_of(rule), cost=cost(rule))
        )
    return checked


def read_schema(path: str) -> Schema:
    try:
        return Schema.parse(Path(path).read_text("utf-8"))
    except OSError as fault:
        raise SchemaUnreadable(f"cannot read the schema {path}: {fault.strerror or fault}") from fault
    except ValueError as fault:
        text = f"{path} is not a schema: {fault}\n  A schema maps event types to their fields."
        raise SchemaUnreadable(text) from fault


def exit_code(checked: Sequence[CheckedFile], strict: bool) -> int:
    """1 for errors, or with `strict` for warnings."""
    counts = summary(checked)
    return FOUND if counts["errors"] or (strict and counts["warnings"]) else CLEAN


def summary(checked: Sequence[CheckedFile]) -> dict[str, int]:
    levels = [finding.level for one in checked for finding in one.findings]
    return {
        "files": len(checked),
        "rules": sum(one.rule is not None for one in checked),
        "errors": levels.count("error"),
        "warnings": levels.count("warning"),
        "infos": levels.count("info"),
    }


def as_json(checked: Sequence[CheckedFile], strict: bool = False) -> str:
    rules = [
        {
            "path": one.path,
            "rule": one.rule,
            "version": one.version,
            "ok": not has_errors(one.findings),
            "findings": [to_json(finding) for finding in one.findings],
            "cost": None if one.cost is None else asdict(one.cost),
        }
        for one in checked
    ]
    document = {"ok": exit_code(checked, strict) == CLEAN, "rules": rules, "summary": summary(checked)}
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_text(checked: Sequence[CheckedFile]) -> str:
    """Findings with carets, then one line per rule, then the sum."""
    parts, lines = [], []
    width = max((len(one.rule) for one in checked if one.rule is not None), default=0)
    for one in checked:
        text = text_of(one.path) if one.findings else ""
        parts += [show(finding, text) for finding in one.findings]
        if one.cost is not None:
            held = "for ever" if one.cost.held_ms is None else duration_words(one.cost.held_ms)
            sizes = f"{size_words(one.cost.typical_bytes)} per key, at most {size_words(one.cost.worst_bytes)}"
            lines.append(f"{one.rule:<{width}}  {sizes}, held {held} after its last event")
    if lines:
        parts.append("\n".join(lines))
    counts = summary(checked)
    found = ", ".join(counted(counts[name + "s"], name) for name in ("error", "warning", "info"))
    parts.append(f"{counted(counts['rules'], 'rule')} in {counted(counts['files'], 'file')}: {found}")
    return "\n\n".join(parts)
