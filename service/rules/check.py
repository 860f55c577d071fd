"""`samovar rules check`: every error and every finding of the lint, for all files at once, and what rules cost.

The document of `--json`:

    {"ok": bool, "rules": [{"path", "rule", "version", "ok", "findings": [...], "cost": {...} | null}, ...],
     "summary": {"files", "rules", "errors", "warnings", "infos"}}

A finding is as in samovar.patterns.syntax.findings.to_json; `rule`, `version` and `cost` are null where a file has
errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samovar.patterns.analysis.cost import Cost, cost
from samovar.patterns.analysis.lint.linter import lint
from samovar.patterns.engine.compile import CompileError, compile_rules
from samovar.patterns.explain.english import size_words
from samovar.patterns.explain.phrases import counted, duration_words
from samovar.patterns.rulefile.rule_file import LoadedRuleFile, load_paths
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.semantics.versioning import version_of
from samovar.patterns.syntax.findings import Finding, has_errors, to_json
from samovar.patterns.syntax.tree import Span
from samovar.service.rules.explain import show, text_of

CLEAN, FOUND, USAGE = 0, 1, 2
_START = Span(1, 1, 1, 1)


class SchemaUnreadable(ValueError):
    """The command cannot begin: a schema that cannot be read."""


@dataclass(frozen=True)
class CheckedFile:
    """One file. `rule` is its rule's id; None, as `cost`, where the file has errors."""

    path: str
    rule: str | None
    version: str | None
    findings: tuple[Finding, ...]
    cost: Cost | None

    @property
    def failed(self) -> bool:
        return has_errors(self.findings)


def check(paths: Sequence[str], schema: Schema | None = None) -> list[CheckedFile]:
    """Check rule files, and folders of them."""
    given = list(dict.fromkeys(paths))
    empty = [_no_rules(path) for path in given if _is_empty(Path(path))]
    return empty + [_one(loaded, schema) for loaded in load_paths(given, schema=schema)]


def read_schema(path: str) -> Schema:
    try:
        return Schema.parse(Path(path).read_text("utf-8"))
    except OSError as fault:
        raise SchemaUnreadable(f"cannot read the schema {path}: {fault.strerror or fault}") from fault
    except ValueError as fault:
        raise SchemaUnreadable(
            f"{path} is not a schema: {fault}\n  A schema maps event types to their fields."
        ) from fault


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
    document = {
        "ok": exit_code(checked, strict) == CLEAN,
        "rules": [_rule_json(one) for one in checked],
        "summary": summary(checked),
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_text(checked: Sequence[CheckedFile]) -> str:
    """Findings with carets, then a line a rule, then the sum."""
    parts = []
    for one in checked:
        text = text_of(one.path) if one.findings else ""
        parts += [show(finding, text) for finding in one.findings]
    rules = list(_rule_lines(checked))
    return "\n\n".join([*parts, *(["\n".join(rules)] if rules else []), _sum(checked)])


# ---------------------------------------------------------------- parts


def _one(loaded: LoadedRuleFile, schema: Schema | None) -> CheckedFile:
    rule = loaded.rule
    if rule is None:
        path = loaded.findings[0].path if loaded.findings else ""
        return CheckedFile(path, None, None, loaded.findings, None)
    try:
        compile_rules([rule])
    except CompileError as fault:
        finding = Finding("too-large", "error", str(fault), rule.path, rule.form.span)
        return CheckedFile(rule.path, None, None, (*loaded.findings, finding), None)
    findings = sorted((*loaded.findings, *lint(rule, schema)), key=lambda finding: (finding.span, finding.id))
    return CheckedFile(rule.path, rule.id, version_of(rule), tuple(findings), cost(rule))


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(file.suffix in (".yml", ".yaml") for file in path.rglob("*"))


def _no_rules(path: str) -> CheckedFile:
    text = "the folder holds no rule file"
    return CheckedFile(
        path,
        None,
        None,
        (Finding("no-rules", "error", text, path, _START, "*.yml or *.yaml in it, or below it"),),
        None,
    )


def _rule_json(one: CheckedFile) -> dict[str, Any]:
    return {
        "path": one.path,
        "rule": one.rule,
        "version": one.version,
        "ok": not one.failed,
        "findings": [to_json(finding) for finding in one.findings],
        "cost": None if one.cost is None else asdict(one.cost),
    }


def _rule_lines(checked: Sequence[CheckedFile]) -> Iterator[str]:
    width = max((len(one.rule) for one in checked if one.rule is not None), default=0)
    for one in checked:
        if one.rule is not None and one.cost is not None:
            held = "for ever" if one.cost.held_ms is None else duration_words(one.cost.held_ms)
            sizes = f"{size_words(one.cost.typical_bytes)} per key, at most {size_words(one.cost.worst_bytes)}"
            yield f"{one.rule:<{width}}  {sizes}, held {held} after its last event"


def _sum(checked: Sequence[CheckedFile]) -> str:
    counts = summary(checked)
    found = ", ".join(counted(counts[name + "s"], name) for name in ("error", "warning", "info"))
    return f"{counted(counts['rules'], 'rule')} in {counted(counts['files'], 'file')}: {found}"
