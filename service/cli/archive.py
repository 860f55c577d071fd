"""The command that copies a service's topics into its archive, and looks at what is there."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

import typer

from samovar.common.progress import Progress
from samovar.service.cli.options import Config, Json, SetFlags
from samovar.service.cli.refusals import exit_on_refusal
from samovar.service.config.loading import load_service
from samovar.service.ops.archive import archive_status, plural, status_lines
from samovar.service.ops.log_output import make_logger
from samovar.service.ops.metrics import ArchiveMetrics
from samovar.service.recovery.archiving import Archiver, copy_all, verify_archive
from samovar.service.runtime.metrics_server import address_of, serving
from samovar.service.runtime.processes import ENDS_WITH_PARENT, end_with_parent, stopping
from samovar.service.topology.logs import opened

app = typer.Typer(rich_markup_mode=None)
NOT_WHOLE = 1
NONE = "nothing to copy yet: none of the service's topics is there"
REPAIR = (
    "Put a good copy of what is missing or damaged back. While the log still has its records, delete a damaged file:"
    " `samovar archive CONFIG` writes it again."
)


@app.command()
def archive(
    config: Config,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Copy on and on, until it is stopped.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Copy nothing: say how far it is.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Copy nothing: read every file, and prove that none is missing.")
    ] = False,
    metrics: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="With --follow: serve metrics for Prometheus here.")
    ] = None,
    json: Json = False,
    ends_with_parent: Annotated[bool, typer.Option(ENDS_WITH_PARENT, hidden=True)] = False,
    set_: SetFlags = None,
) -> None:
    """Copy what a service's topics hold into its archive, before retention takes it.

    Without options it copies all that there is now, and ends. It may be killed at any moment, and run twice at once:
    files appear whole, and their names say which offsets they have. `samovar run` follows by itself.

    Exit codes: 0 fine, 1 offsets are missing or a file is damaged (--status, --verify), 2 wrong usage or refused.
    """
    if sum((follow, status, verify)) > 1:
        raise typer.BadParameter("choose one of --follow, --status, --verify")
    with exit_on_refusal():
        settings = load_service(config, flags=set_ or ())
        with opened(settings) as log:
            if follow:
                if ends_with_parent:
                    end_with_parent()
                tell = make_logger(settings.run.log_form, sys.stderr, settings.service, settings.run.slot)
                archiver = Archiver(settings, log, settings.run.slot, tell)
                with ExitStack() as stack:
                    stack.enter_context(stopping(archiver.stopped.set, archiver.stopped.set))
                    if metrics is not None:
                        collector = ArchiveMetrics(archiver.snapshot)
                        stack.enter_context(serving(settings, log, address_of(metrics), collector))
                    counts = archiver.run()
                if json:
                    print(jsonlib.dumps(asdict(counts)))
                return
            if status:
                found = archive_status(settings, log, int(time.time() * 1000))
                print(
                    jsonlib.dumps([asdict(each) for each in found])
                    if json
                    else "\n".join(status_lines(found) or [NONE])
                )
                raise typer.Exit(NOT_WHOLE if any(each.lost is not None for each in found) else 0)
            progress = Progress(sys.stderr, quiet=json)
            if verify:
                verdicts, done = [], 0

                def on_records(records: int) -> None:
                    nonlocal done
                    done += records
                    progress.reading(done, None)

                for verdict in verify_archive(settings, log, on_records):
                    verdicts.append(verdict)
                    if not json:
                        progress.clear()
                        what = f"{plural(verdict.files, 'file')}, {plural(verdict.records, 'record')}"
                        print(f"{verdict.topic}/{verdict.partition}: {'; '.join([what, *verdict.faults])}")
                if json or not verdicts:
                    print(jsonlib.dumps([asdict(each) for each in verdicts]) if json else NONE)
                if not any(each.faults for each in verdicts):
                    return
                sys.stderr.write(f"  {REPAIR}\n")
                raise typer.Exit(NOT_WHOLE)
            copied = 0

            def on_file(records: int, left: int) -> None:
                nonlocal copied
                copied += records
                progress.reading(copied, copied / (copied + left) if copied + left else None)

            counts = copy_all(settings, log, on_file)
            progress.clear()
        text = f"{plural(counts.records, 'record')} copied, in {plural(counts.files, 'file')}"
        print(jsonlib.dumps(asdict(counts)) if json else text)
