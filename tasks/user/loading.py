"""Finds a user's class: `profiles:CardProfiles` is the class of that name in profiles.py next to the service file, or,
where there is no such file, in an installed module.

A file is loaded under a name of its own, so that two services of one process, or a user's `json.py`, cannot meet; what
lies next to it can be imported by it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.tasks.user.calls import fault_of

VERSION_DIGITS = 12
METHODS = ("process", "on_timer", "window", "init", "close")


def file_of(name: str, folder: Path) -> Path:
    """Where a module of the user's is expected."""
    return folder.joinpath(*name.split(".")).with_suffix(".py")


def load_class(source: str, folder: Path) -> type[Any]:
    """The class that `module:Class` names, or a refusal (task-class)."""
    module_name, _, name = source.partition(":")
    module = _module(source, module_name, folder)
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        known = [each for each, value in vars(module).items() if inspect.isclass(value) and hasattr(value, "process")]
        tip = did_you_mean(name, known) or (f"it has {', '.join(known)}" if known else "it has no task at all")
        shown = getattr(module, "__file__", None) or module.__name__
        raise _task_refusal(source, f"{shown} has no class `{name}`", tip)
    if not callable(getattr(found, "process", None)):
        raise _task_refusal(
            source, f"the class `{name}` has no method `process`", "write `def process(self, event, ctx)`"
        )
    for method in METHODS:
        call = getattr(found, method, None)
        if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
            # It would be called, do nothing, and say nothing.
            raise _task_refusal(source, f"its `{method}` is async or has a `yield`", "write a plain method")
    if inspect.isabstract(found):
        left = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise _task_refusal(source, f"the class `{name}` leaves methods open: {left}", "write them")
    return found


def version_of(source: str, folder: Path, *settings: object) -> str:
    """Another one when the file of the class is another, or a setting that changes what it does."""
    path = file_of(source.partition(":")[0], folder)
    if not path.is_file():
        origin = getattr(importlib.util.find_spec(source.partition(":")[0]), "origin", None)
        path = Path(origin or path)
    code = path.read_bytes() if path.is_file() else b""
    return hashlib.sha256(code + repr((source, settings)).encode()).hexdigest()[:VERSION_DIGITS]


def _module(source: str, name: str, folder: Path) -> ModuleType:
    path = file_of(name, folder)
    try:
        return _load_module(path) if path.is_file() else importlib.import_module(name)
    except ModuleNotFoundError as error:
        if path.is_file() or error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(source, error) from error
        near = (
            did_you_mean(path.name, [each.name for each in folder.glob("*.py")]) or "write it next to the service file"
        )
        raise _task_refusal(source, f"there is no {path}, nor a module `{name}`", near) from None
    except Exception as error:
        raise _broken(source, error) from error


def _load_module(path: Path) -> ModuleType:
    path = path.resolve()
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)  # the last: what is installed comes first
    mark = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"samovar_task_{mark}_{path.stem}", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module


def _broken(source: str, error: Exception) -> Refused:
    fault = fault_of(error)
    return _task_refusal(source, f"it cannot be imported: {fault.message}", "fix it, then start again", fault.trace)


def _task_refusal(source: str, what: str, hint: str, detail: str = "") -> Refused:
    return Refused("task-class", f"`{source}` is no task: {what}", hint, detail.replace("\n", "\n  "))
