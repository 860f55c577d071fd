"""`samovar init DIR`: a folder with a service file, rules with their tests, and some events; it runs as it is."""

from __future__ import annotations

import re
from pathlib import Path

from samovar.common.errors import Refused
from samovar.common.umask import as_users_own

TEMPLATE = Path(__file__).parent / "init_template"
NAME = "SERVICE_NAME"  # stands in the template for the service's name


def init(folder: Path) -> list[Path]:
    """Makes the folder, which must be empty or not there, and returns the files."""
    # A service is named after its folder.
    name = re.sub(r"[^a-z0-9._-]+", "-", folder.absolute().name.lower()).strip("-._")[:60] or "detector"
    made = []
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Refused("folder-not-empty", f"{folder} is there and is not empty", "name a new or an empty folder")
        with as_users_own():
            for source in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
                path = folder / source.relative_to(TEMPLATE)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source.read_text("utf-8").replace(NAME, name), "utf-8")
                made.append(path)
    except OSError as error:
        what = f"cannot write {folder}: {error.strerror or error}"
        raise Refused("unwritable", what, "name another folder") from error
    return made


def next_steps(folder: Path) -> str:
    config = folder / "service.yml"
    return (
        f"\nNext:\n  samovar produce {config} purchase {folder / 'events.jsonl'}\n"
        f"  samovar run {config} --until-caught-up\n  samovar read {config} alerts"
    )
