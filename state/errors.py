"""What can go wrong with a store: what happened, where, what to do next, and a code that scripts can rely on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass
class StoreError(Exception):
    """A store cannot do what was asked. `code` never changes its meaning."""

    what: str
    where: Path
    hint: str
    detail: str = ""

    code: ClassVar[str] = "store-failed"

    def __str__(self) -> str:
        detail = f"\n  {self.detail}" if self.detail else ""
        return f"{self.code}: {self.what}: {self.where}{detail}\n  {self.hint}"


class StoreLocked(StoreError):
    """Another container, or another part of this one, has the store open."""

    code = "store-held"


class StoreDamaged(StoreError):
    """Something in the store is not what was written. Nothing that is read from it can be trusted."""

    code = "store-damaged"


class StoreFull(StoreError):
    """The disk is full. The change that failed did not happen; the store is of use again once it was reopened."""

    code = "store-full"


class StoreMissing(StoreError):
    """There is no store in that folder."""

    code = "store-missing"


class StoreClosed(StoreError):
    """The store was closed before."""

    code = "store-closed"


_RESTORE = "Run `samovar restore` with this partition: it rebuilds the store from a snapshot or the changelog."
STOP_OR_READ = "Stop the container that runs on it, or read it while it runs: `samovar state` needs no lock."
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
_HELD = ("lock hold by current process", "Resource temporarily unavailable", "No locks available")
_DAMAGED = ("Corruption", "No such file or directory", "Input/output error")


def explained(error: Exception, where: Path, doing: str) -> StoreError:
    """What RocksDB said (it has one exception and a text) as the error that says what to do."""
    text = str(error)
    if "already closed" in text:
        return StoreClosed(f"a closed store was used ({doing})", where, "Open it again.")
    if any(word in text for word in _FULL):
        return StoreFull(f"no space left ({doing})", where, "Free some space, then start the container again.", text)
    if "LOCK" in text and any(word in text for word in _HELD):
        return StoreLocked("another process has this store open", where, STOP_OR_READ, text)
    if any(word in text for word in _DAMAGED):
        return StoreDamaged(f"the store is damaged ({doing})", where, _RESTORE, text)
    hint = "Check the folder's rights, the disk and the limit of open files, then start again."
    return StoreError(f"the store failed ({doing})", where, hint, text)


def damaged(where: Path, detail: str) -> StoreDamaged:
    """Damage that Samovar found itself."""
    return StoreDamaged("the store is damaged", where, _RESTORE, detail)


def out_of_order(place: int, where: Path) -> StoreError:
    """Pairs to ingest that are not in strict order of keys."""
    hint = "Sort by key and keep one pair per key; nothing was ingested."
    return StoreError(f"pair {place} to ingest is not after the one before it", where, hint)
