"""The command line knows its commands by name, and loads a module when one of its commands is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from samovar.service.cli.lazy import COMMANDS, RULES, load
from samovar.service.cli.main import app

MODULES = sorted({module for module, _ in (*COMMANDS.values(), *RULES.values()) if module})


def test_the_tables_name_every_command_of_every_module() -> None:
    found = {
        part: {name: module for module in MODULES for name in load(module).get(part, {})} for part in ("app", "rules")
    }
    assert found["app"] == {name: module for name, (module, _) in COMMANDS.items() if module}
    assert found["rules"] == {name: module for name, (module, _) in RULES.items()}


def test_every_module_of_commands_is_named(root: Path) -> None:
    groups = ("\napp = typer.Typer(", "\nrules = typer.Typer(")
    texts = {path.stem: path.read_text("utf-8") for path in (root / "service" / "cli").glob("*.py")}
    found = {name for name, text in texts.items() if name != "main" and any(group in text for group in groups)}
    assert found == set(MODULES)


@pytest.mark.parametrize(("typed", "meant"), [(["statu"], "'status'"), (["rules", "chek"], "'check'")])
def test_a_wrong_name_is_answered_with_the_nearest(typed: list[str], meant: str) -> None:
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 2
    assert f"Did you mean {meant}" in done.output


@pytest.mark.parametrize("arguments", [[], ["rules"]])
def test_help_has_one_line_per_command(arguments: list[str]) -> None:
    table = RULES if arguments else COMMANDS
    shown = CliRunner().invoke(app, [*arguments, "--help"]).output.splitlines()
    assert shown[shown.index("Commands:") + 1 :] == [
        f"  {name:<{max(map(len, table))}}  {about}" for name, (_, about) in table.items()
    ]
