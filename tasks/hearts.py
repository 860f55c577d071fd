"""Which heart a plan's tasks have."""

from __future__ import annotations

from collections.abc import Sequence

from samovar.changelog.record import Position
from samovar.state.store import TaskStore
from samovar.tasks.core import Core
from samovar.tasks.heart import Heart
from samovar.tasks.plan import InputSpec, Plan
from samovar.tasks.user_heart import UserHeart


def heart_of(
    plan: Plan, partition: int, store: TaskStore, inputs: Sequence[InputSpec], position: Position | None
) -> Heart:
    """What a task of this plan does, over its store, from a stored position on."""
    make = Core if plan.task is None else UserHeart
    return make(plan, partition, store, inputs, position)
