"""Lint: what is allowed, and yet probably not meant. Errors are the checker's; here are warnings and infos only.

The ids and what they mean are in lint_table.py. One file a kind of finding: lint_conditions (what can be true),
lint_habits (what surprises), lint_steps (what can be taken), lint_bounds (what is held), lint_unused.
"""

from __future__ import annotations

from samovar.patterns.findings import Finding
from samovar.patterns.lint_bounds import check_bounds
from samovar.patterns.lint_conditions import check_condition
from samovar.patterns.lint_habits import check_habits
from samovar.patterns.lint_places import places
from samovar.patterns.lint_steps import check_steps
from samovar.patterns.lint_table import LINTS, Notes
from samovar.patterns.lint_unused import check_unused
from samovar.patterns.schema import Schema
from samovar.patterns.syntax import Rule, Sequence

__all__ = ["LINTS", "lint"]


def lint(rule: Rule, schema: Schema | None = None) -> tuple[Finding, ...]:
    """Findings of level warning or info, in the order of the file. With a schema more can be known of values."""
    notes = Notes(rule, schema)
    for where in places(rule, schema, notes.effort):
        check_condition(where, notes)
    check_habits(notes)
    if isinstance(rule.form, Sequence):
        check_steps(rule.form, notes)
    check_bounds(notes)
    check_unused(notes)
    return notes.report.findings()
