"""Memory of many threads stays in few heaps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_service import make, run

# A hundred threads that each hold a little; a heap of a thread's own is at an address of its own, 64 MB apart.
HEAPS = """
import ctypes, sys, threading
from samovar.common.arenas import few_arenas
if sys.argv[1] == "few":
    assert few_arenas() == (len(sys.argv) == 2)
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
found, all_here = [], threading.Barrier(100)
def hold():
    all_here.wait()
    found.append(malloc(1000) >> 26)
threads = [threading.Thread(target=hold) for _ in range(100)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(set(found)))
"""


def heaps(root: Path, *arguments: str, **environment: str) -> int:
    inherited = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    env = inherited | {"PYTHONPATH": str(root)} | environment
    done = subprocess.run(
        [sys.executable, "-c", HEAPS, *arguments], capture_output=True, text=True, check=True, env=env, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have no such heaps")
def test_threads_share_few_heaps(root: Path) -> None:
    assert heaps(root, "few") <= 2 < heaps(root, "as they come")


@pytest.mark.skipif(sys.platform != "linux", reason="as above")
def test_who_sets_the_number_has_it(root: Path) -> None:
    assert heaps(root, "few", "not ours", MALLOC_ARENA_MAX="4") in (3, 4, 5)


def test_the_http_process_has_few_heaps_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads answer questions and follow topics: each with a heap of its own, it held 930 MB."""
    called: list[str] = []
    monkeypatch.setattr("samovar.service.cli.serve.few_arenas", lambda: called.append("few heaps"))
    monkeypatch.setattr("samovar.service.cli.serve.run", lambda *_: called.append("served"))
    service = make(tmp_path / "s")
    assert run("serve", service.config).exit_code == 0
    assert called == ["few heaps", "served"]
