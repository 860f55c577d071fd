"""Processes that outlive the one that started them: told apart from others, waited for, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LOOK_S = 0.05


def spawn(command: list[str], log: Path) -> int:
    """Run on in a session of its own, after this process and without its Ctrl-C."""
    opened = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), opened, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(command[0], command, os.environ, file_actions=files, setsid=True)


def alive(pid: int, begun: str) -> bool:
    """Whether this very process still runs: a pid alone is given out again."""
    with suppress(ChildProcessError):  # one of our own that has ended stays in the list until it is waited for
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            return False
    return begun != "" and begun_of(pid) == begun


def begun_of(pid: int) -> str | None:
    """When a process was started, in the system's own words; None where there is no such process."""
    if Path("/proc/self/stat").exists():
        with suppress(OSError):
            # After the name, which is in brackets and may hold anything: state is the first, start time the 20th.
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            return None if fields[0] in "ZX" else fields[19]
        return None
    words = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", "/bin:/usr/bin")}
    listed = ["ps", "-o", "lstart=", "-p", str(pid)]
    shown = subprocess.run(listed, capture_output=True, text=True, env=words, check=False)
    return shown.stdout.strip() or None


def end(pid: int, begun: str, patience_s: float) -> None:
    """Ask, wait, and only then kill."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        if not wait_for(lambda: not alive(pid, begun), patience_s):
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not alive(pid, begun), patience_s)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def write_whole(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
