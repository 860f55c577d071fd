"""How a command ends that cannot do what it was asked: a few sentences and exit code 2, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

REFUSED = 2


@contextmanager
def told() -> Iterator[None]:
    """Everything that a command may refuse, written to standard error."""
    from samovar.changelog.errors import LogUnavailable, Refused
    from samovar.service.match import UsageError
    from samovar.state.errors import StoreError

    try:
        yield
    except (Refused, StoreError) as refused:
        text = str(refused)
    except UsageError as error:
        text = f"samovar: {error}"
    except LogUnavailable as error:
        text = f"log-unavailable: {error}\n  see that the log of the service file can be reached, and try again"
    else:
        return
    print(text, file=sys.stderr)
    raise typer.Exit(REFUSED)
