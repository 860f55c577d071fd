"""Debian's clang for the sanitizers and the fuzzer: where it is, and `python -m tests.native.clang` to install it.

The compiler of the lock, zig, links neither. clang++ is looked for at $CLANG and on PATH; `make test`, `make sanitize`
and `make fuzz-kernel` install it with apt-get where they run as root on Debian or Ubuntu, and otherwise say what to do.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.debian import INSTALL, apt_get, provide, refusal

ADVICE = (
    "Install Debian's clang with its runtimes (apt-get install clang libclang-rt-14-dev; the number is clang's), or say"
    " where a clang++ is: CLANG=/path/to/clang++ make test"
)


def find_clang() -> str | None:
    """A clang++ that has the runtime of its address sanitizer."""
    found = shutil.which(os.environ.get("CLANG") or "clang++")
    return found if found and Path(runtime_of(found)).is_file() else None


def runtime_of(clang: str) -> str:
    return library_of(clang, f"libclang_rt.asan-{platform.machine()}.so")


def library_of(clang: str, name: str) -> str:
    command = [clang, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def write_symbolizer(clang: str, folder: Path) -> dict[str, str]:
    """What names the places in a report. The sanitizer must not be loaded into it too: it would outlive the report."""
    real = subprocess.run([clang, "-print-prog-name=llvm-symbolizer"], capture_output=True, text=True, check=True)
    script = folder / "llvm-symbolizer"
    script.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {real.stdout.strip()} "$@"\n')
    script.chmod(0o755)
    return {"ASAN_SYMBOLIZER_PATH": str(script), "UBSAN_SYMBOLIZER_PATH": str(script)}


def install() -> str | None:
    """None where it is there now; else why it is not."""
    print("setup: installing clang with apt-get, for the tests of the kernel with sanitizers", flush=True)
    if fault := refusal("clang++ with sanitizers") or apt_get(*INSTALL, "clang"):
        return fault
    version = subprocess.run(["clang++", "-dumpversion"], capture_output=True, text=True, check=True).stdout
    if fault := apt_get(*INSTALL, f"libclang-rt-{version.split('.')[0]}-dev"):
        return fault
    return None if find_clang() else "apt-get installed clang, but it has no sanitizers"


if __name__ == "__main__":
    sys.exit(provide(find_clang, install, "the kernel with sanitizers", ADVICE))
