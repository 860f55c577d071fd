"""What the documentation shows, run as it is written.

A document is run from top to bottom in a folder of its own, which already holds the files of README.md:

    <!-- file: NAME -->      the block that follows is written to NAME
    ```yaml                  with `rule:` at its head: the rule loads, and the tests in it pass
    ```python                run, one snippet after the other, with the names of those before it
    ```console               `$ samovar ...` is run and prints what stands below it; `$ echo $?` prints its exit code;
                             `$ SAMOVAR_STATE=x samovar ...` has this in its environment

In what a command prints, `...` stands for any text. Blocks of other languages are only shown.
"""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from samovar.patterns.rule_tests import run_tests
from samovar.patterns.rulefile.rule_file import load_text
from samovar.service.cli import main

_BLOCK = re.compile(
    r"(?:^<!-- file: (?P<name>\S+) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block. `place` is `docs/language.md:12`, `name` the file that it is, if any."""

    place: str
    language: str
    text: str
    name: str | None


def blocks_of(path: Path, root: Path) -> Iterator[Block]:
    text = path.read_text("utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        yield Block(f"{path.relative_to(root)}:{line}", found["language"], found["text"], found["name"])


def write_files(blocks: list[Block], folder: Path) -> None:
    for block in blocks:
        if block.name is not None:
            (folder / block.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.name).write_text(block.text, "utf-8")


def run_document(blocks: list[Block], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for block in blocks:
        write_files([block], folder)
        if block.language == "yaml" and block.text.startswith("rule:"):
            run_rule(block)
        elif block.language == "python":
            exec(compile(block.text, block.place, "exec"), names)
        elif block.language == "console":
            run_console(block)


def run_rule(block: Block) -> None:
    loaded = load_text(block.text, block.place)
    assert loaded.rule is not None, [(block.place, finding.message) for finding in loaded.findings]
    for result in run_tests(loaded.rule):
        assert result.passed, (block.place, result.name, result.differences, result.why)


def run_console(block: Block) -> None:
    code = 0
    for command, shown in _COMMAND.findall(block.text):
        if command == "echo $?":
            printed = f"{code}\n"
        else:
            words = shlex.split(command)
            environment = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, words))
            program, *arguments = words[len(environment) :]
            assert program == "samovar", f"{block.place}: only samovar is run in a console block, not `{command}`"
            with patch.dict(os.environ, environment):
                printed, code = run_command(arguments)
        assert agrees(shown, printed), f"{block.place}: {command}\n--- shown\n{shown}--- printed\n{printed}"


def run_command(arguments: list[str]) -> tuple[str, int]:
    """What a command prints on both streams, in the order in which it does, and its exit code."""
    screen = io.BytesIO()
    streams = [io.TextIOWrapper(screen, "utf-8", write_through=True) for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        code = main.run(arguments)
    return screen.getvalue().decode(), code


def agrees(shown: str, printed: str) -> bool:
    """Equal, where `...` stands for any text; white space at the end of a line does not count.

    >>> agrees('{"id": "...", "at": 5}', '{"id": "8f3a", "at": 5}'), agrees("a\\n...", "b\\n")
    (True, False)
    """
    shown, printed = ("\n".join(line.rstrip() for line in text.strip().split("\n")) for text in (shown, printed))
    return re.fullmatch(".*?".join(map(re.escape, shown.split("..."))), printed, re.DOTALL) is not None
