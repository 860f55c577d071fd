"""How a command ends that cannot do what it was asked: a few sentences and exit code 2, never a traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import typer

from samovar.changelog.schema_registry import RegistryUnavailable
from samovar.common.errors import LogUnavailable, Refused, UsageError
from samovar.patterns.engine.matcher import RuleFailure
from samovar.state.errors import StoreError

REFUSED = 2


@contextmanager
def exit_on_refusal(*, as_json: bool = False) -> Iterator[None]:
    """Writes what is refused inside to standard error, and ends the command."""
    try:
        yield
    except (Refused, StoreError) as refused:
        text = str(refused)
    except UsageError as error:
        text = f"samovar: {error}"
    except RuleFailure as failure:
        text = f"rule-failed: {failure}\n  {failure.hint}"
    except RegistryUnavailable as error:
        text = f"registry-unavailable: {error}\n  see that the registry can be reached from here, and try again"
    except LogUnavailable as error:
        text = f"log-unavailable: {error}\n  see that the log of the service file can be reached, and try again"
    else:
        return
    if as_json:  # as a line of `--log json` is (samovar.service.ops.log_output)
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": moment, "level": "error", "event": "refused", "text": text, "code": text.partition(":")[0]}
        text = json.dumps(line)
    print(text, file=sys.stderr)
    raise typer.Exit(REFUSED)
