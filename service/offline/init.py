"""`samovar init DIR`: a folder with a service file, rules with their tests, and some events; it runs as it is."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from samovar.common.errors import Refused
from samovar.common.umask import as_users_own

NAME = "SERVICE_NAME"  # stands in the template for the service's name


def init(folder: Path) -> list[Path]:
    """Makes the folder, which must be empty or not there, and returns the files."""
    template = files("samovar.service.offline").joinpath("init_template")
    name = service_name(folder)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Refused("folder-not-empty", f"{folder} is there and is not empty", "name a new or an empty folder")
        with as_users_own():
            folder.mkdir(parents=True, exist_ok=True)
            return sorted(_copy(template, folder, name))
    except OSError as error:
        raise Refused(
            "unwritable", f"cannot write {folder}: {error.strerror or error}", "name another folder"
        ) from error


def service_name(folder: Path) -> str:
    """A service's name made of the folder's.

    >>> service_name(Path("Card Fraud"))
    'card-fraud'
    """
    text = re.sub(r"[^a-z0-9._-]+", "-", folder.absolute().name.lower()).strip("-._")
    return text[:60] or "detector"


def _copy(source: Traversable, target: Path, name: str) -> list[Path]:
    made = []
    for item in source.iterdir():
        path = target / item.name
        if item.is_dir():
            path.mkdir()
            made += _copy(item, path, name)
        else:
            path.write_text(item.read_text("utf-8").replace(NAME, name), "utf-8")
            made.append(path)
    return made


def next_steps(folder: Path) -> str:
    config = folder / "service.yml"
    return (
        f"\nNext:\n  samovar produce {config} purchase {folder / 'events.jsonl'}\n"
        f"  samovar run {config} --until-caught-up\n  samovar read {config} alerts"
    )
