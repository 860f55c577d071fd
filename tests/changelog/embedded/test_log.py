"""The embedded log keeps the contract of logs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samovar.changelog.embedded.locks import folder_of
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Log
from tests.contracts.log import LogContract
from tests.contracts.log_driving import NewLog


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def log(folder: Path) -> Iterator[Log]:
    log = EmbeddedLog(folder)
    yield log
    log.close()


@pytest.fixture
def new_log(folder: Path) -> Iterator[NewLog]:
    logs: list[EmbeddedLog] = []

    def make() -> Log:
        logs.append(EmbeddedLog(folder))
        return logs[-1]

    yield make
    for each in logs:
        each.close()


class TestEmbeddedLog(LogContract):
    @pytest.fixture
    def loosen(self, folder: Path) -> Callable[[str], None]:
        """Somebody tidies up the lock files while the service runs."""
        return lambda group: shutil.rmtree(folder_of(folder, group))
