"""Runs a notebook's cells in order, in one namespace and without Jupyter: what they print, and their last value.

    python -m tests.support.notebooks docs/spark.ipynb      runs it, and writes its outputs into it

Lines that begin with `!` are commands, whose output is not kept.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any


def run_notebook(notebook: dict[str, Any], folder: Path) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell. Commands and relative paths are those of the folder."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with chdir(folder):
        return [
            _outputs("".join(cell["source"]), namespace) for cell in notebook["cells"] if cell["cell_type"] == "code"
        ]


def _outputs(source: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    lines = source.splitlines()
    for command in (line[1:] for line in lines if line.startswith("!")):
        subprocess.run(command, shell=True, check=True, capture_output=True, env={**os.environ, "PATH": path})
    tree = ast.parse("\n".join("" if line.startswith("!") else line for line in lines))
    last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if last is not None:
        tree.body.pop()
    said, found = io.StringIO(), list[dict[str, Any]]()
    with redirect_stdout(said):
        exec(compile(tree, "<cell>", "exec"), namespace)
        value = None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    if said.getvalue():
        text = said.getvalue().splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        found.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return found


def written(notebook: dict[str, Any], outputs: list[list[dict[str, Any]]]) -> str:
    """A notebook with these outputs, as a file holds it."""
    cells = [dict(cell) for cell in notebook["cells"]]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    for cell, found in zip(codes, outputs, strict=True):
        cell["outputs"] = found
    return json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    file = Path(sys.argv[1]).absolute()
    given = json.loads(file.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as scratch:
        file.write_text(written(given, run_notebook(given, Path(scratch))), "utf-8")
