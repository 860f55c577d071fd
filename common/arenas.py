"""The C library's memory, kept together: by default it makes up to sixteen heaps for the threads of two processors, and
what one thread frees in its heap is of no use to another.
"""

from __future__ import annotations

import ctypes
import os

ARENA_MAX = -8  # glibc's name for it in `mallopt`
ARENAS = 2
OWN = "MALLOC_ARENA_MAX"  # who sets it wants another number


def few_arenas() -> bool:
    """Set it once, before a process starts its threads; False where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or OWN in os.environ:
        return False
    return bool(mallopt(ARENA_MAX, ARENAS))
