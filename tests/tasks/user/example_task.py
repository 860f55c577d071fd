"""A task of an installed module."""

from __future__ import annotations

from samovar import Context, Event, Task


class Theirs(Task):
    """Does nothing."""

    def process(self, event: Event, ctx: Context) -> None: ...
