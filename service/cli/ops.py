"""The commands of anyone who keeps a service running: status, doctor, dlq, rewind, repartition."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from contextlib import nullcontext
from functools import partial
from typing import Annotated

import typer

from samovar.changelog.formats.redrives import DeadLetterPlace
from samovar.changelog.spark.session import is_local
from samovar.common.errors import Refused
from samovar.common.progress import Progress
from samovar.service.auth.audit import record_reading
from samovar.service.cli.options import (
    Config,
    DryRun,
    Engine,
    Json,
    Master,
    add_group,
    instant_or_epoch,
    milliseconds,
    refuse_engine,
    service_log,
)
from samovar.service.cli.state import at_site
from samovar.service.ops.doctor import document, examine, finding_lines, worst
from samovar.service.ops.status import status_lines, status_of
from samovar.service.recovery.dead_letters import (
    LetterFilter,
    Summary,
    alone,
    hidden,
    letter_lines,
    letters_of,
    plan_redrive,
    redrive,
)
from samovar.service.recovery.repartition import abort as give_up
from samovar.service.recovery.repartition import plan_lines as repartition_lines
from samovar.service.recovery.repartition import plan_repartition
from samovar.service.recovery.repartition import repartition as repartitioned
from samovar.service.recovery.rewind import done_line, plan_lines, plan_rewind, rewind_all
from samovar.service.spark.progress import ProgressDisplay
from samovar.service.spark.repartition import copying_on_spark
from samovar.service.spark.session import refuse_remote_executors

NOT_RUNNING = UNWELL = 1
WATCH_S = 2.0
CLEAR = "\x1b[H\x1b[2J"

Reasons = Annotated[
    list[str] | None, typer.Option("--reason", metavar="R", help="Only of this class, as NOT_JSON; may be repeated.")
]

app = typer.Typer(rich_markup_mode=None)
dlq = add_group(app, "dlq", "Dead letters: look at them, and put them back.")


@app.command()
def status(
    config: Config,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until stopped.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document; with --watch one per line.")] = False,
) -> None:
    """Show who runs what: containers, tasks, lag, event time and what holds it, and how far restores are.

    Works for a service on one machine or many, and when nothing runs. Nothing is changed.

    Exit codes: 0 every task runs, 1 some do not, 2 wrong usage or refused.
    """
    with service_log(config) as (settings, log):
        while True:
            found = status_of(settings, log, int(time.time() * 1000))
            text = jsonlib.dumps(found.data()) if json else "\n".join(status_lines(found))
            print(CLEAR + text if watch and not json and sys.stdout.isatty() else text, flush=True)
            if not watch:
                break
            time.sleep(WATCH_S)
    raise typer.Exit(0 if found.runs else NOT_RUNNING)


@app.command()
def doctor(
    config: Config,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="A warning counts as a failure.")] = False,
    json: Json = False,
) -> None:
    """Look at all that a service stands on: file, rules, log, topics, rights, folders, disk, clocks, limits.

    Each finding says what to do about it. Nothing is changed: no topic is made, no record written.

    Exit codes: 0 nothing fails (with --strict: and no warning), 1 something does, 2 wrong usage.
    """
    found = []
    for finding in examine(config):
        found.append(finding)
        if not json:
            print("\n".join(finding_lines(finding)), flush=True)
    summary = document(found)
    if json:
        print(jsonlib.dumps(summary, ensure_ascii=False))
    else:
        counts = summary["counts"]
        print(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} wrong")
    raise typer.Exit(UNWELL if worst(found, strict=strict) else 0)


@dlq.command("show")
def dlq_show(
    config: Config,
    *,
    reason: Reasons = None,
    start: Annotated[str, typer.Option("--from", metavar="FROM", help="Where to begin.")] = "begin",
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Show at most this many; all are counted.")] = 50,
    pii: Annotated[bool, typer.Option("--pii", help="Also dead letters of streams with fields marked `pii`.")] = False,
    json: Json = False,
) -> None:
    """Show dead letters: why each is one, where it came from, its key and bytes; and how many there are.

    A letter is named by its place in the topic of dead letters, PARTITION/OFFSET. FROM is as for `samovar read`.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    summary, shown = Summary(), []
    with service_log(config) as (settings, log):
        if pii:
            record_reading(log, settings, "dlq show --pii", {"reasons": reason or [], "from": start})
        for letter in letters_of(settings, log, LetterFilter(tuple(reason or ()), start=start)):
            summary.add(letter)
            if summary.total > limit:
                continue
            letter = letter if pii else hidden(letter, settings)
            if json:
                shown.append(letter.data())
            else:
                print("\n".join(letter_lines(letter)))
    if json:
        found = {"letters": shown, "summary": summary.data(), "total": summary.total}
        print(jsonlib.dumps(found, ensure_ascii=False))
        return
    if summary.total > limit:
        print(f"... and {summary.total - limit:,} more")
    print("\n".join(summary.lines()))


@dlq.command("redrive")
def dlq_redrive(
    config: Config,
    *,
    reason: Reasons = None,
    offset: Annotated[
        list[str] | None,
        typer.Option("--offset", metavar="P/O", help="Only this dead letter, as `dlq show` names it; may be repeated."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="STREAM", help="Into this stream, and not where it came from.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Put dead letters back where they came from, with their key and bytes, after their cause was repaired.

    Says first what it will do. A letter goes out once, also when this is killed in the middle and run again; one that
    dies again is a new letter, and tells how often it was redriven. Event time has gone on since: what is behind it by
    now becomes a late event.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    screen = sys.stderr if json else sys.stdout
    wanted = LetterFilter(tuple(reason or ()), tuple(_place(each) for each in offset or ()))
    done = 0
    with service_log(config) as (settings, log), nullcontext() if dry_run else alone(settings, log) as member:
        plan = plan_redrive(settings, log, wanted, to)
        print("\n".join(plan.lines()), file=screen, flush=True)
        if member is not None and plan.places:
            progress = Progress(sys.stderr, quiet=json)
            count = len(plan.places)
            done = redrive(settings, log, member, plan, to, lambda each: progress.reading(each, each / count))
            progress.clear()
            print(f"{done:,} dead letter{'s' * (done != 1)} redriven", file=screen)
    if json:
        print(jsonlib.dumps({"plan": plan.data(), "dry_run": dry_run, "redriven": done}))


def _place(text: str) -> DeadLetterPlace:
    partition, _, offset = text.partition("/")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise typer.BadParameter(
            f"`{text}` is not a dead letter: write PARTITION/OFFSET, as 3/17", param_hint="--offset"
        )
    return DeadLetterPlace(int(partition), int(offset))


@app.command()
def rewind(
    config: Config,
    *,
    to_time: Annotated[str, typer.Option(metavar="T", help="The event time to go back to.", show_default=False)],
    alerts: Annotated[str, typer.Option(metavar="skip|again", help="What becomes of alerts after T.")] = "skip",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Set a stopped service back to event time T: state, offsets and journal together.

    Says first what it will do. The state of T is folded from the input and the journal; when the service runs again, it
    goes on from there, with the rules that it then has. Alerts after T that were published are found again: with
    `--alerts skip` they are not published a second time, with `--alerts again` they are. Late events and dead letters
    after T come again.

    It can be killed at any moment and run again with the same T.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    if alerts not in ("skip", "again"):
        raise typer.BadParameter(f"`{alerts}`: choose skip or again", param_hint="--alerts")
    to_ms = instant_or_epoch("--to-time", to_time)
    screen = sys.stderr if json else sys.stdout
    done = []
    with at_site(config, past=False) as site:  # what it sets back must be in the log
        plans = plan_rewind(site, to_ms)
        print("\n".join(plan_lines(plans, to_ms, alerts)), file=screen, flush=True)
        if not dry_run:
            progress = Progress(sys.stderr, quiet=json)
            for each in rewind_all(site, plans, to_ms, alerts, lambda _, events: progress.reading(events, None)):
                progress.clear()
                done.append(each)
                print(done_line(each), file=screen, flush=True)
    if json:
        report = {"to": to_ms, "alerts": alerts, "dry_run": dry_run, "plan": [each.data() for each in plans]}
        print(jsonlib.dumps(report | {"rewound": [each.data() for each in done]}))


@app.command()
def repartition(
    config: Config,
    *,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="New number of partitions.", show_default=False)
    ] = None,
    abort: Annotated[bool, typer.Option("--abort", help="Give up one that was begun, before its switch.")] = False,
    wait: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long it waits for the service to stop, once all is copied."),
    ] = "1h",
    engine: Engine = "local",
    master: Master = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Give a service with state another number of partitions; inputs that have grown are taken over.

    Says first what it will do. The rows of each key go to the task that the key has among N partitions, while the
    service runs, and are proved to be the same there. Then it says what it waits for: that producers and containers are
    stopped, all that is in the inputs is processed, inputs have N partitions on Kafka (on the embedded log it grows
    them), and the service file has the new number. For the switch changelogs, journals and repartition topics are made
    again under their names.

    `--engine spark` copies the rows up to the moment of its start, and reads them again, by a task per partition: with
    all cores, or on a cluster (`--master`). What comes after that, and the switch, is done here.

    It can be killed at any moment and run again, by either engine. From the switch on the service does not start until
    it is done; before that `--abort` gives it up, and nothing was changed.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    if (partitions is None) is not abort:
        raise typer.BadParameter("write either --partitions N or --abort", param_hint="--partitions")
    refuse_engine(engine, master)
    screen = sys.stderr if json else sys.stdout
    report: dict[str, object] = {"dry_run": dry_run}
    with service_log(config) as (settings, log), ProgressDisplay(sys.stderr, as_json=json) as display:
        if engine == "spark":
            refuse_remote_executors(settings, is_local=master is None or is_local(master))
        if partitions is None:
            report["aborted"] = not dry_run and give_up(settings, log)
            print("given up: nothing was changed" if report["aborted"] else "nothing was begun", file=screen)
        else:
            plan = plan_repartition(settings, log, partitions)
            print("\n".join(repartition_lines(plan)), file=screen, flush=True)
            report["plan"] = plan.data()
            if plan.left is not None and not dry_run:
                give_up(settings, log)  # what an ended one left, if anything
            elif not dry_run:
                progress = Progress(sys.stderr, quiet=json)
                said: list[str] = []

                def on_wait(blocked: Refused) -> None:
                    if str(blocked) not in said:
                        said[:] = [str(blocked)]
                        progress.clear()
                        print(f"copied, and followed; to switch it waits:\n{blocked}", file=screen, flush=True)

                wait_s = milliseconds("--wait", wait) / 1000 if wait != "0" else 0.0
                spark = partial(copying_on_spark, settings, master, display, display.say)
                by = spark if engine == "spark" else None
                done = repartitioned(plan, lambda _, rows: progress.reading(rows, None), on_wait, wait_s, by)
                progress.clear()
                report["repartitioned"] = done.data()
                waiting = f", {done.waiting:,} events that wait" if done.waiting else ""
                print(f"{done.rows:,} rows, {done.size:,} bytes{waiting}: equal before and after", file=screen)
                for stage, found in done.digests.items():
                    print(f"  {stage}: digest {found}", file=screen)
                print(f"the service could not run for {done.stopped_s:.1f} s", file=screen)
    if json:
        print(jsonlib.dumps(report))
