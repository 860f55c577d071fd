"""What all benchmarks say alike: the machine, and numbers as people read them."""

from __future__ import annotations

import os
import platform


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
