"""Commands by name. A module of commands is imported when one of its commands is typed: help and wrong usage are quick,
and the modules import what they need at their top.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from typer.core import TyperGroup
from typer.main import get_group

# Command, the module of this package that has it, and what the list of commands says about it.
COMMANDS = {
    "demo": ("demo", "Run two services with generated traffic, and show alerts."),
    "init": ("service", "Make a service folder that runs as it is."),
    "run": ("run", "Run a service: read its streams, match its rules, write alerts."),
    "serve": ("serve", "Serve the HTTP API and the pages of a service."),
    "status": ("ops", "Show containers, tasks, lag, event time and restores."),
    "doctor": ("ops", "Look for what could go wrong: file, rules, log, rights, disk."),
    "restore": ("restore", "Build stores again, from a snapshot, the changelog or the input."),
    "verify": ("state", "Compare each store with its changelog and its source."),
    "repartition": ("ops", "Give a stopped service more partitions, or fewer."),
    "archive": ("archive", "Copy topics into the archive before retention takes them."),
    "rewind": ("ops", "Set a stopped service back to a moment of event time."),
    "rules": ("", "Check, test, explain, backtest and publish rules."),
    "lists": ("publish", "Shared lists of a service's rules."),
    "state": ("state", "Look at the state of a service, also while it runs."),
    "dlq": ("ops", "Dead letters: look at them, and put them back."),
    "views": ("views", "Spark SQL over a service, published as Parquet."),
    "sql": ("sql", "SQL over alerts, sessions, inputs, states and views, and a shell."),
    "tables": ("tables", "Alerts, sessions and events as Delta tables."),
    "topics": ("service", "The topics of a service."),
    "tokens": ("serve", "API tokens: who may use the HTTP API."),
    "config": ("config", "The settings of a service, and where each comes from."),
    "read": ("service", "Show the records of a topic."),
    "produce": ("service", "Write JSON lines to the topic of a stream."),
    "traffic": ("demo", "Write generated events to the streams of a service."),
    "match": ("offline", "Find what rules match in a file of events."),
    "generate": ("demo", "Write test events with planted and labelled frauds."),
    "kafka": ("kafka", "A Kafka broker for trials and tests."),
}
RULES = {
    "check": ("rules", "Find errors, what is probably not meant, and what a rule costs."),
    "test": ("offline", "Run the tests inside rule files."),
    "explain": ("rules", "Explain a rule in plain English, with a drawing."),
    "backtest": ("backtest", "Run rules over the past, and compare with what was found."),
    "sample": ("backtest", "Keep the events of some keys, for previews of rules."),
    "publish": ("publish", "Give rules to a running service, without a restart."),
    "disable": ("publish", "Stop a rule."),
    "enable": ("publish", "Let a rule run again, or alert that was in shadow."),
    "rollback": ("publish", "Publish an earlier text of a rule again."),
    "history": ("publish", "Show what was published: by whom, when, and where it came in."),
    "diff": ("publish", "Show what differs between two numbers of a rule."),
    "plan": ("publish", "Show which fields of the streams changed, and what that means."),
}


@cache
def load(module: str) -> dict[str, Any]:
    """The commands of a module: those of `samovar` (its `app`), and those of `samovar rules` (its `rules`)."""
    found = import_module(f"samovar.service.cli.{module}")
    return {part: get_group(getattr(found, part)).commands for part in ("app", "rules") if hasattr(found, part)}


class LazyGroup(TyperGroup):
    """Commands that are known by name, and loaded when they are asked for."""

    table: ClassVar[dict[str, tuple[str, str]]]
    part: ClassVar[str]

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # Where a name is wrong, the nearest of these is suggested.
        self.commands = {**dict.fromkeys(self.table, self), **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module, _ = self.table.get(cmd_name, ("", ""))
        return load(module)[self.part][cmd_name] if module else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as click has it
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.table.items()])


class Commands(LazyGroup):
    table, part = COMMANDS, "app"


class RuleCommands(LazyGroup):
    table, part = RULES, "rules"
