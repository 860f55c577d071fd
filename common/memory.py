"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path


def free_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes: of the machine, or of the container (cgroup 2) where that leaves less; None where nothing says so."""
    found = []
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass
    try:
        limit, used = ((groups / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        found += [int(limit) - int(used)] if limit != "max" else []
    except OSError:
        pass
    return max(0, min(found)) if found else None
