"""Refusals: what happened, detail, hint, and a code that scripts and runbooks can rely on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Refused(Exception):
    """Samovar will not go on, because any guess could lose or repeat data. `code` never changes: docs/errors.md."""

    code: str
    what: str
    hint: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f"\n  {self.detail}" if self.detail else ""
        return f"{self.code}: {self.what}{detail}\n  {self.hint}"

    @classmethod
    def read(cls, text: str) -> Refused:
        """A refusal from its text, as another process told it."""
        code, _, told = text.partition(": ")
        what, *more = [line.strip() for line in told.splitlines()] or [""]
        return cls(code, what, more[-1] if more else "", "\n  ".join(more[:-1]))


class Fenced(Exception):
    """Another container owns the partition now: nothing of this transaction happened."""


class CommitUnknown(Exception):
    """A commit was sent and no answer came. The writer is of no further use; what is true must be read back."""


class LogUnavailable(Exception):
    """The log cannot be reached at the moment; asking again later may help."""


class UsageError(Exception):
    """What was asked cannot be done; the text says why, and what to do."""
