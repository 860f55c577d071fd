"""Which records must be in the partition of their key, and where in an input that was so.

A key's state lives in one partition: the one where murmur2 places the text of the key field, among the partitions that
the state was made with. An event in another one would split it in two, so it is a dead letter. That matters only for
streams that rules or tasks read as they are keyed; others are sent on by another field. Published rules come and go, so
the offsets at which the check was turned on and off, in turn, stand in the position: what is read again after a crash
is judged as it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from samovar.patterns.semantics.event_types import keyed_brackets, reads_type
from samovar.patterns.syntax.tree import Rule
from samovar.tasks.model.plan import InputSpec, Plan

MISPLACED, MOVED = "key-misplaced", "key-moved"


def checked_streams(plan: Plan) -> set[str]:
    """The streams of a plan whose records must be in the partitions of their keys."""
    specs = [spec for spec in plan.inputs if spec.placed_in]
    if plan.task is not None:
        return {spec.stream for spec in specs}
    rules = [each.rule for each in plan.program.rules]
    return {
        spec.stream for spec in specs if spec.stream in plan.placed or any(reads_stream(rule, spec) for rule in rules)
    }


def reads_stream(rule: Rule, spec: InputSpec) -> bool:
    if spec.types is None:
        return bool(keyed_brackets(rule))
    return any(reads_type(rule, each) for each in spec.types)


def is_on(turns: Sequence[int]) -> bool:
    """Whether records are checked from the last turn on."""
    return len(turns) % 2 == 1


def is_on_at(turns: Sequence[int], offset: int) -> bool:
    return bisect_right(turns, offset) % 2 == 1


def needed_turns(turns: Sequence[int], safe: int) -> tuple[int, ...]:
    """Those that count for what may be read again, from `safe` on."""
    passed = bisect_right(turns, safe)
    return (*((0,) if passed % 2 else ()), *turns[passed:])
