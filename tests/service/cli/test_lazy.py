"""The command line knows its commands by name, and loads a module when one of its commands is typed."""

from __future__ import annotations

import subprocess
import sys
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


def test_no_command_needs_pyarrow_to_be_loaded() -> None:
    """It is an extra. What needs it asks for it when it is used."""
    code = (
        "import sys, pkgutil, importlib; sys.modules['pyarrow'] = None\n"
        "import samovar.service.cli as cli\n"
        "for each in pkgutil.iter_modules(cli.__path__):\n"
        "    each.name == '__main__' or importlib.import_module('samovar.service.cli.' + each.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
