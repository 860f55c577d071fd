"""The commands that look at state: state get, scan, history, digest, diff; and verify."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from samovar.changelog.spark.session import may_be_local
from samovar.common.progress import Progress
from samovar.service.auth.audit import record_reading
from samovar.service.cli.options import Config, Engine, Json, Master, add_group, refuse_engine, service_log
from samovar.service.query.commands import QueryResult, diff, digests, get, history, scan
from samovar.service.query.verify import Verdict, text_of_verdict
from samovar.service.query.verify import verify as verified
from samovar.service.spark.progress import ProgressDisplay
from samovar.service.spark.session import starting_for
from samovar.service.spark.verify import verify_all
from samovar.service.topology.stores import StateLocation, site_of
from samovar.tasks.runtime.repartition_fence import refuse_unfinished

NOTHING, DIFFERENT, UNVERIFIABLE = 1, 1, 3

Key = Annotated[str, typer.Argument(metavar="KEY", show_default=False)]
Rule = Annotated[str | None, typer.Option(metavar="R", help="Only this rule.", show_default=False)]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", min=0, metavar="P", help="Only this partition; may be repeated.")
]
Stage = Annotated[
    str | None, typer.Option(metavar="S", help="Only this stage: main, by-..., or a task's name.", show_default=False)
]
Folder = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Another state, as `restore --out` makes it.")
]


Asked = tuple[Sequence[int], str | None]  # partitions and stage

app = typer.Typer(rich_markup_mode=None)
state = add_group(app, "state", "Look at the state of a service, also while it runs. Nothing is changed.")


@contextmanager
def at_site(
    config: Path, state: Path | None = None, *, shows: str | None = None, past: bool = True
) -> Iterator[StateLocation]:
    """The service at its log and its archive. `shows` is the command, where it shows keys and states as they are."""
    with service_log(config, past=past) as (settings, log):
        if shows is not None:
            record_reading(log, settings, shows, {})
        refuse_unfinished(settings.service, log)
        yield site_of(settings, log, state)


@state.command("get")
def state_get(
    config: Config, key: Key, *, rule: Rule = None, stage: Stage = None, store: Folder = None, json: Json = False
) -> None:
    """Show what is held of a key: per rule its live partial matches, how far each is and what it waits for.

    KEY is written as in events: c1; for a key of several fields `c1,u7`, `card=c1,user=u7` or a JSON array.

    Exit codes: 0 fine, 1 nothing is held of this key, 2 wrong usage or refused.
    """
    with at_site(config, store, shows="state get") as site:
        found = get(site, key, rule, stage)
        _print(found, json)
    raise typer.Exit(0 if found.data else NOTHING)


@state.command("scan")
def state_scan(
    config: Config,
    *,
    rule: Rule = None,
    partition: Partitions = None,
    stage: Stage = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most this many keys.")] = 100,
    store: Folder = None,
    json: Json = False,
) -> None:
    """List keys that have state, with their rules and the size of their rows.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with at_site(config, store, shows="state scan") as site:
        _print(scan(site, rule, partition or (), limit, stage), json)


@state.command("history")
def state_history(
    config: Config,
    key: Key,
    *,
    rule: Rule = None,
    partition: Partitions = None,
    stage: Stage = None,
    json: Json = False,
) -> None:
    """Show every change of a key that the changelog still has, with offset and time.

    Compaction removes old changes: within min_compaction_lag (24 h unless set) all of them are there.

    Exit codes: 0 fine, 1 no change of this key is there, 2 wrong usage or refused.
    """
    with at_site(config, shows="state history") as site:
        found = history(site, key, rule, partition or (), stage)
        _print(found, json)
    raise typer.Exit(0 if found.data else NOTHING)


@state.command("digest")
def state_digest(
    config: Config, *, partition: Partitions = None, stage: Stage = None, store: Folder = None, json: Json = False
) -> None:
    """Print the digest of each partition's state: equal exactly where the states are.

    Exit codes: 0 fine, 2 wrong usage or refused.
    """
    with at_site(config, store) as site:
        _print(digests(site, partition or (), stage), json)


@state.command("diff")
def state_diff(
    config: Config,
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    other: Annotated[Path | None, typer.Argument(metavar="[DIR2]", show_default=False)] = None,
    *,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show at most this many keys.")] = 100,
    json: Json = False,
) -> None:
    """List the keys whose state differs: between the live store and DIR, or between two folders.

    Exit codes: 0 equal, 1 different, 2 wrong usage or refused.
    """
    with at_site(config) as site:
        found = diff(site, *((folder, other) if other else (site.state, folder)), limit)
        _print(found, json)
    raise typer.Exit(DIFFERENT if found.data else 0)


def _print(found: QueryResult, json: bool) -> None:
    for line in [jsonlib.dumps(found.data, ensure_ascii=False)] if json else found.lines:
        print(line)


@app.command()
def verify(
    config: Config,
    *,
    partition: Partitions = None,
    stage: Stage = None,
    engine: Engine = "local",
    master: Master = None,
    json: Json = False,
) -> None:
    """Hold each store against its changelog and its source: the input folded again, by the same rules.

    Works while the service runs. The first difference is shown with its rule and key, and what each side holds.
    `--engine spark` verifies all stores at once, states larger than memory too, and lists every key that differs. On a
    cluster (`--master`), which reaches no stores, it holds the changelogs of all partitions against the source.

    Exit codes: 0 equal, 1 different, 2 wrong usage or refused, 3 equal, but not all of it can be verified any more.
    """
    refuse_engine(engine, master)
    verdicts = []
    with at_site(config) as site:
        asked = partition or (), stage
        on_spark = engine == "spark"
        for verdict in _verified_on_spark(site, asked, master, json) if on_spark else _verify_stores(site, asked, json):
            verdicts.append(verdict)
            if not json:
                print("\n".join(text_of_verdict(verdict)), flush=True)
        there = {(each.stage, each.partition) for each in verdicts}
        for here in site.stages(stage):
            missing = [each for each in here.chosen(partition or ()) if (here.stage, each) not in there]
            if missing and not json:
                more = f" of {here.stage}" if here.stage else ""
                print(f"no store on this machine: partition {', '.join(map(str, missing))}{more}", file=sys.stderr)
    if json:
        print(jsonlib.dumps([each.data() for each in verdicts], ensure_ascii=False))
    if not all(each.is_equal for each in verdicts):
        raise typer.Exit(DIFFERENT)
    raise typer.Exit(UNVERIFIABLE if any(each.unverifiable for each in verdicts) else 0)


def _verify_stores(site: StateLocation, asked: Asked, quiet: bool) -> Iterator[Verdict]:
    progress = Progress(sys.stderr, quiet=quiet)
    for here, each in site.found(*asked):
        verdict = verified(here, each, int(time.time() * 1000), lambda _, done: progress.reading(done, None))
        progress.clear()
        yield verdict


def _verified_on_spark(site: StateLocation, asked: Asked, master: str | None, quiet: bool) -> Iterator[Verdict]:
    if may_be_local(master):
        site.found(*asked)  # refuses what is not there before Spark starts
    with (
        ProgressDisplay(sys.stderr, as_json=quiet) as display,
        starting_for(site.settings, "samovar verify", master, display.say) as start,
    ):
        session = start.ready()
        if session.is_local:
            found, what = site.found(*asked), "stores against changelog and source"
        else:
            partitions, stage = asked
            found = [(here, each) for here in site.stages(stage) for each in here.chosen(partitions)]
            what = "changelogs against the source; stores lie on their own machines"
        display.say(f"verifying {len(found)} {what}")
        yield from verify_all(session, site, found, display)
