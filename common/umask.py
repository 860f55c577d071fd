"""The mask of the process. Imported on every start: standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

OTHERS = 0o077  # the rights of all but the owner
_users_mask: int | None = None


def keep_private() -> None:
    """From here on, whatever this process and its children make is for this user alone: 0600 and 0700."""
    global _users_mask  # noqa: PLW0603 - as the mask itself, it is the process's
    _users_mask = os.umask(OTHERS)


@contextmanager
def as_users_own() -> Iterator[None]:
    """While this lasts, files are made as the user's other programs make them: they are sources, and hold no data."""
    mask = None if _users_mask is None else os.umask(_users_mask)
    try:
        yield
    finally:
        if mask is not None:
            os.umask(mask)
