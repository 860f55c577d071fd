"""Prints the part of a lock file that some packages need, hashes and all: an image holds no test tools.

    python deploy/locked.py requirements.lock > run.lock                      what Samovar itself needs
    python deploy/locked.py requirements.lock setuptools ziglang > build.lock

Reads the `# via` comments of the lock, which say who asked for a package. Standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

OWN = "samovar (pyproject.toml)"
_HEAD = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)


def blocks_of(text: str) -> dict[str, str]:
    """The lines of each package; one that has another version for another Python has both."""
    starts = [found.start() for found in _HEAD.finditer(text)]
    blocks: dict[str, str] = {}
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        name = text[start:end].partition("==")[0]
        blocks[name] = blocks.get(name, "") + text[start:end]
    return blocks


def asked_by(block: str) -> set[str]:
    """Who needs a package: names of packages, or Samovar itself."""
    lines = (line.strip().removeprefix("# via").strip(" #") for line in block.splitlines() if line.startswith("    #"))
    return {name for name in lines if name}


def wanted(blocks: dict[str, str], roots: list[str]) -> set[str]:
    """The packages that are needed, and all that they need."""
    unknown = [name for name in roots if name not in blocks]
    if unknown:
        raise SystemExit(f"locked.py: the lock has no {', '.join(unknown)}")
    found = set(roots) or {name for name, block in blocks.items() if OWN in asked_by(block)}
    while more := {name for name, block in blocks.items() if name not in found and asked_by(block) & found}:
        found |= more
    return found


def main(arguments: list[str]) -> None:
    blocks = blocks_of(Path(arguments[0]).read_text("utf-8"))
    names = wanted(blocks, arguments[1:])
    sys.stdout.write("".join(block for name, block in blocks.items() if name in names))


if __name__ == "__main__":
    main(sys.argv[1:])
