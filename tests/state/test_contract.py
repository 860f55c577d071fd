"""Every store keeps the contract: the two that hold rows, each wrapper alone, and the stack of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from samovar.state.memory import MemoryStore
from samovar.state.prefixed import PrefixedStore
from samovar.state.rocks import RocksStore
from samovar.state.stack import CachedStore, Overlay, Stack
from samovar.state.store import Store
from samovar.state.ttl import TtlStore
from tests.contracts.store import StoreContract


def with_neighbours() -> MemoryStore:
    """A store whose other rows must not be seen through a namespace in the middle of them."""
    store = MemoryStore()
    store.write([(key, b"a neighbour's") for key in (b"", b"n", b"n\xfe", b"n\xff\xfe", b"o", b"\xff")])
    return store


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestRocksStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = RocksStore(tmp_path / "store")
        yield store
        store.close()


class TestPrefixed(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        below = with_neighbours()
        before = list(below.range())
        store = PrefixedStore(below, b"n\xff\xff")
        yield store
        for key, _ in list(store.range()):
            store.delete(key)
        assert list(below.range()) == before


class TestPrefixedWithNothingBehindIt(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        below = MemoryStore()
        below.put(b"\xfe\xff", b"a neighbour's")
        return PrefixedStore(below, b"\xff\xff")


class TestOverlay(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return Overlay(MemoryStore())


class TestOverlayOverRows(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        below = MemoryStore()
        below.write([(bytes([byte]), b"deleted above") for byte in range(256)])
        store = Overlay(below)
        store.write([(bytes([byte]), None) for byte in range(256)])
        return store


class TestOverlayOverCached(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return Overlay(CachedStore(MemoryStore(), cache_bytes=1000))


class TestExpiring(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        below = with_neighbours()
        return TtlStore(PrefixedStore(below, b"nr"), PrefixedStore(below, b"nx"), ttl_ms=1000, now=lambda: 5000)


class TestStack(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        stack = Stack(with_neighbours(), cache_bytes=1000)
        stack.store("other", ttl_ms=None, now=lambda: 5000).put(b"k", b"a neighbour's")
        stack.keep()
        return stack.store("n", ttl_ms=None, now=lambda: 5000)
