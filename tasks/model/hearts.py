"""Which heart a plan's tasks have."""

from __future__ import annotations

from collections.abc import Sequence

from samovar.changelog.record import Position
from samovar.state.store import TaskStore
from samovar.tasks.model.plan import InputSpec, Plan
from samovar.tasks.model.processor import Heart
from samovar.tasks.rules.processor import Core
from samovar.tasks.user.processor import UserHeart


def heart_of(
    plan: Plan, partition: int, store: TaskStore, inputs: Sequence[InputSpec], position: Position | None
) -> Heart:
    """What a task of this plan does, over its store, from a stored position on."""
    make = Core if plan.task is None else UserHeart
    return make(plan, partition, store, inputs, position)
