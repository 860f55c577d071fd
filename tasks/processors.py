"""Which processor a task of a plan has."""

from __future__ import annotations

from collections.abc import Sequence

from samovar.changelog.formats.record import Position
from samovar.state.store import TaskStore
from samovar.tasks.input.processor import Processor
from samovar.tasks.model.plan import InputSpec, Plan
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.user.processor import UserTaskProcessor


def make_processor(
    plan: Plan, partition: int, store: TaskStore, inputs: Sequence[InputSpec], position: Position | None
) -> Processor:
    """What a task of this plan does, over its store, from a stored position on."""
    make = RuleProcessor if plan.task is None else UserTaskProcessor
    return make(plan, partition, store, inputs, position)
