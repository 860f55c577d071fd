"""Whatever `run` refuses of a damaged store, `verify` and `doctor` report: they read what it reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samovar.state.rocks import RocksStore
from tests.support.small_service import Service, make, many, run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service with rows in tables and in the write-ahead log."""
    service = make(tmp_path_factory.mktemp("whole") / "s")
    service.process(many(300))
    for partition in range(2):
        store = RocksStore(service.store(partition))
        store.flush()
        store.close()
    service.process(many(40, start_s=2_000))
    return service


@pytest.fixture
def service(whole: Service, tmp_path: Path) -> Service:
    """The same in a folder that may be damaged."""
    shutil.copytree(whole.config.parent, tmp_path / "s", symlinks=True)
    return Service(tmp_path / "s" / "service.yml", whole.clock)


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda file: (file.stat().st_size > 0, file.name))


def properties(data: bytes) -> int:
    return data.index(b"rocksdb.block.based.table.index.type") + 3


PLACES: dict[str, tuple[str, Callable[[bytes], int]]] = {
    "table: data": ("*.sst", lambda _: 40),
    "table: properties": ("*.sst", properties),
    "table: index": ("*.sst", lambda data: data.index(b"rocksdb.block.based.table.index.type") - 200),
    "table: before its footer": ("*.sst", lambda data: len(data) - 60),
    "table: footer": ("*.sst", lambda data: len(data) - 20),
    "table: last byte": ("*.sst", lambda data: len(data) - 1),
    "manifest: begin": ("MANIFEST-*", lambda _: 2),
    "manifest: middle": ("MANIFEST-*", lambda data: len(data) // 2),
    "manifest: end": ("MANIFEST-*", lambda data: len(data) - 2),
    "current": ("CURRENT", lambda _: 10),
    "log: begin": ("*.log", lambda _: 3),
    "log: middle": ("*.log", lambda data: len(data) // 2),
}


def damage(store: Path, pattern: str, place: Callable[[bytes], int]) -> None:
    file = newest(store, pattern)
    data = bytearray(file.read_bytes())
    at = place(bytes(data))
    data[at : at + 4] = bytes(each ^ 0xFF for each in data[at : at + 4])
    file.write_bytes(data)


def verdicts(service: Service) -> Iterator[bool]:
    """Whether verify, doctor and run find nothing wrong, in this order: a run may change what is there."""
    yield run("verify", service.config).exit_code == 0
    yield run("doctor", service.config).exit_code == 0
    yield run("run", service.config, "--until-caught-up").exit_code == 0


@pytest.mark.parametrize("where", PLACES)
def test_what_run_refuses_is_reported_by_verify_and_doctor(service: Service, where: str) -> None:
    damage(service.store(0), *PLACES[where])
    is_verified, is_well, runs = verdicts(service)
    assert runs or not (is_verified or is_well), where


def test_a_whole_store_is_reported_as_such(service: Service) -> None:
    assert [*verdicts(service)] == [True, True, True]
    assert not [*service.state.rglob("check-*")]


def test_damaged_properties_of_a_table_are_refused_by_all_and_repaired_by_a_restore(service: Service) -> None:
    damage(service.store(0), *PLACES["table: properties"])
    assert [*verdicts(service)] == [False, False, False]
    assert "store-damaged" in run("doctor", service.config).output
    assert run("restore", service.config).exit_code == 0
    assert [*verdicts(service)] == [True, True, True]


def test_a_store_without_its_current_file_is_not_passed_over(service: Service) -> None:
    (service.store(0) / "CURRENT").unlink()
    assert [*verdicts(service)] == [False, False, False]
