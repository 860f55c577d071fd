"""The `samovar` command: what a person or a script types.

This module is imported on every start, so it imports little; commands are loaded by name (samovar.service.cli.lazy).
Exit codes: 0 fine, 2 wrong usage, 70 a fault of ours, 130 stopped by Ctrl-C, 141 the
reader of our output went away; a command may add its own and says so in its help.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from typing import Annotated

import typer

from samovar import __version__
from samovar.common.umask import keep_private
from samovar.service.cli.lazy import Commands, RuleCommands

INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 128 + 2  # as if ended by SIGINT
BROKEN_PIPE = 128 + 13  # as if ended by SIGPIPE

# Plain help and no pretty tracebacks: rich takes longer to import than all the rest.
app = typer.Typer(
    name="samovar",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
rules = typer.Typer(
    cls=RuleCommands,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check, test, explain, backtest and publish rules.",
)
app.add_typer(rules, name="rules")


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"samovar {__version__}")
        raise typer.Exit()


@app.callback()
def samovar(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stateful event processing with a rule language."""


def main() -> None:
    """Entry point. Whatever happens, the user sees a sentence and an exit code, never a traceback."""
    keep_private()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command line and gives its exit code; a command sets its own by `raise typer.Exit(code)`."""
    code = 0
    try:
        try:
            app(arguments, prog_name="samovar")
        except SystemExit as leaving:  # how typer always leaves, also after it has shown wrong usage
            if isinstance(leaving.__context__, BrokenPipeError):
                raise leaving.__context__ from None
            code = leaving.code if isinstance(leaving.code, int) else 0
        sys.stdout.flush()  # here, where a broken pipe can still be answered
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone: let the interpreter's last flush go nowhere instead of failing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # the last line of defence
        what = f"internal error: {type(error).__name__}: {error}"
        try:
            with tempfile.NamedTemporaryFile(
                "w", prefix="samovar-", suffix=".log", delete=False, encoding="utf-8"
            ) as log:
                log.write(f"samovar {__version__}, Python {sys.version}\narguments: {sys.argv[1:]}\n\n")
                traceback.print_exception(error, file=log)
            where = f"details in {log.name}"
        except OSError as unwritable:
            where = f"details could not be written ({unwritable})"
        print(f"{what}; this is a fault of samovar, please report it, {where}", file=sys.stderr)
        return INTERNAL_ERROR
    return code


if __name__ == "__main__":
    main()
