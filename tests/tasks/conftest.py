"""Containers in the test's own process, with a clock that the test sets, on an embedded log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import make_service
from tests.faults.stage import Stage, Staging, staged


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Staging]:
    """Makes a service of its own for each call."""
    monkeypatch.setattr("samovar.tasks.runtime.container.POLL_S", 0.0)
    with ExitStack() as stack:
        made: list[Stage] = []

        def make(*arguments: Any, **more: Any) -> Stage:
            service = make_service(tmp_path / str(len(made)), *arguments, **more)
            stack.callback(service.close)
            made.append(stack.enter_context(staged(service)))
            return made[-1]

        yield make
