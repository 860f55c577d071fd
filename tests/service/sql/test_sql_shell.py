"""The shell of `samovar sql`, by a pipe in the place of a keyboard, and once on a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from samovar.service.sql.session import SqlSession
from samovar.service.sql.shell import Shell, SqlCompleter
from tests.support.project import ROOT
from tests.support.small_service import Service, make, many


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    made = make(tmp_path_factory.mktemp("shell") / "s")
    made.process(many(60))
    return made


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def typed(service: Service, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def typed(*lines: str) -> str:
        with service.log() as log, create_pipe_input() as keys, SqlSession(service.settings, log) as session:
            keys.send_text("".join(f"{line}\r" for line in lines) + "\x04")
            Shell(session, input=keys, output=DummyOutput()).run()
        done = capsys.readouterr()
        return done.out + done.err

    return typed


def test_statements_end_with_a_semicolon_and_may_have_several_lines(typed: Callable[..., str]) -> None:
    said = typed("select count(*) as n,", "  ';' as mark -- ;", "from purchase;", "select 41 + 1 as answer;")
    assert "n   mark\n--  ----\n60  ;\n" in said
    assert "    42\n" in said


def test_commands_say_what_there_is(typed: Callable[..., str]) -> None:
    said = typed(
        ".tables", ".schema purchase", "\\d alerts_testing", ".timer on", "select 1;", ".mode json", "select 2 as b;"
    )
    assert "alerts\nsessions\nlabels\n" in said
    assert "  amount       double\n" in said
    assert "  key         map(varchar, varchar)\n" in said
    assert "timer on" in said
    assert '{"b": 2}' in said


def test_faults_end_no_shell(typed: Callable[..., str]) -> None:
    said = typed("selec 1;", "select x;", ".foo", ".mode none", ".schema purchse", "select 7 as still;")
    for part in (
        "syntax error",
        "no column `x`",
        "no command `.foo`",
        "table, line, json, csv",
        "did you mean `purchase`?",
    ):
        assert part in said
    assert "    7\n" in said


def test_what_was_typed_is_kept_in_a_private_file(typed: Callable[..., str], home: Path) -> None:
    typed("select 'kept';")
    file = home / "samovar" / "sql_history"
    assert "select 'kept'" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def completed(service: Service, text: str) -> list[str]:
    with service.log() as log, SqlSession(service.settings, log) as session:
        found = SqlCompleter(session).get_completions(Document(text), CompleteEvent())
        return [each.text for each in found]


def test_tables_columns_functions_and_commands_are_completed(service: Service) -> None:
    assert completed(service, "select * from alerts_") == ["alerts_countries", "alerts_testing", "alerts_unusual"]
    assert completed(service, "select 1 from purchase where am") == ["amount"]
    assert '"end"' in completed(service, "select * from alerts where en")
    assert "date_trunc" in completed(service, "select date_tr")
    assert "select" in completed(service, "sel")
    assert completed(service, ".sc") == [".schema"]
    assert completed(service, ".mode c") == ["csv"]
    assert "purchase" in completed(service, ".schema pur")


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.master, self.process, self.seen = master, process, ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: str, seconds: float = 120.0) -> None:
        """Waits until it is shown; what was shown before it is gone then."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 65_536).decode("utf-8", "replace")
        self.seen = self.seen[self.seen.index(text) + len(text) :]


@contextmanager
def terminal(*arguments: object) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "samovar.service.cli", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_ctrl_c_ends_a_query_and_not_the_shell(service: Service) -> None:
    with terminal("sql", service.config) as shell:
        shell.expect("samovar>")
        values = " * ".join(f"{name}.amount" for name in "abcdef")
        shell.type(f"select sum({values})\r")
        shell.type(f"from {', '.join(f'purchase {name}' for name in 'abcdef')};\r")
        shell.expect("records, ")  # it is under way
        shell.process.send_signal(signal.SIGINT)
        shell.expect("stopped")
        shell.type("select 'still', 'there';\r")
        shell.expect("'still'")
        shell.expect("there")
        shell.type(".quit\r")
        assert shell.process.wait(60) == 0


def test_wide_values_are_cut_on_a_terminal_only(service: Service) -> None:
    with terminal("sql", service.config, "select repeat('x', 500) as wide, 1 as one") as shown:
        shown.expect("x…")
        assert shown.process.wait(60) == 0
