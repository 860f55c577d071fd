"""What the tests need of Debian's packages: fetched with apt-get where that is possible, with the reason where not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 900
INSTALL = ("install", "-y", "-qq", "--no-install-recommends")


def apt_get(*arguments: str, folder: Path | None = None) -> str | None:
    """Run apt-get; None where it succeeded, else why not."""
    command = ["apt-get", *arguments]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` did not end in {LIMIT_S} s"
    if not done.returncode:
        return None
    return f"`{' '.join(command)}` failed: {[*(done.stderr or done.stdout).strip().splitlines(), ''][-1]}"


def refusal(what: str) -> str | None:
    """Why nothing can be installed here. Brings the list of packages up to date; an older one may do as well."""
    if os.geteuid() != 0:
        return f"no {what} on this machine, and only root may install one"
    if shutil.which("apt-get") is None:
        return f"no {what} on this machine, and no apt-get to install one with"
    apt_get("update", "-qq")
    return None


def provide(find: Callable[[], str | None], install: Callable[[], str | None], tests: str, advice: str) -> int:
    """Install what is not there. Where that fails, the tests will say so again: setting up goes on."""
    if not find() and (fault := install()):
        sys.stderr.write(f"setup: {fault}; the tests of {tests} will fail. {advice}\n")
    return 0
