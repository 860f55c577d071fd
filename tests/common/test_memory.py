"""How much memory is free, by what the system says."""

from __future__ import annotations

from pathlib import Path

from samovar.common.memory import free_memory


def test_the_container_counts_where_it_leaves_less_than_the_machine(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert free_memory(tmp_path, tmp_path) == 4_096_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("3000\n")
    assert free_memory(tmp_path, tmp_path) == 4_096_000
    (tmp_path / "memory.max").write_text("5000\n")
    assert free_memory(tmp_path, tmp_path) == 2_000
    (tmp_path / "memory.max").write_text("1000\n")
    assert free_memory(tmp_path, tmp_path) == 0


def test_this_machine_says_it() -> None:
    assert (free_memory() or 0) > 0
