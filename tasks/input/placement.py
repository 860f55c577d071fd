"""Which records must be in the partition of their key.

A key's state lives in one partition: the one where murmur2 places the text of the key field, among the partitions that
the state was made with. An event in another one would split it in two, so it is a dead letter. That matters only for
streams that rules or tasks read as they are keyed; others are sent on by another field. Published rules come and go, so
the offsets at which the check was turned on and off, in turn, stand in the position: what is read again after a crash
is judged as it was.
"""

from __future__ import annotations

from samovar.patterns.semantics.event_types import keyed_brackets, reads_type
from samovar.patterns.syntax.tree import Rule
from samovar.tasks.model.plan import InputSpec, Plan

MISPLACED, MOVED = "key-misplaced", "key-moved"


def checked_streams(plan: Plan) -> set[str]:
    """The streams of a plan whose records must be in the partitions of their keys."""

    def is_read_by(spec: InputSpec, rule: Rule) -> bool:
        return bool(keyed_brackets(rule)) if spec.types is None else any(reads_type(rule, each) for each in spec.types)

    return {
        spec.stream
        for spec in plan.inputs
        if spec.placed_in
        and (
            plan.task is not None
            or spec.stream in plan.placed
            or any(is_read_by(spec, each.rule) for each in plan.program.rules)
        )
    }
