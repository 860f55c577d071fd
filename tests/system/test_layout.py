"""The ground the rest stands on: symlinks, version, a command line that starts light, clean files."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import samovar

FOLDERS = ("changelog", "common", "patterns", "service", "state", "tasks")

# What `samovar --help` must not pay for.
HEAVY = ("lark", "numpy", "pyarrow", "re2", "rich", "yaml", "samovar.patterns", "samovar.state", "samovar.changelog")

# Put together from parts, so that this file does not find itself.
UNWANTED = re.compile(
    "|".join(
        (
            r"files\.python" + r"hosted\.org",
            r"(?:test\.)?pypi" + r"\.org",
            r"pypi\.python" + r"\.org",
            r"--(?:extra-)?index" + r"-url[ =]\S+://",
            r"(?<![\w.])/" + r"(?:home|Users)/[a-z]\w+/",
            r"(?<![\w.])/" + r"root/",
        )
    )
)
MADE = {"build", "dist", "__pycache__"}
TEXT = {".cfg", ".cpp", ".h", ".html", ".json", ".jsonl", ".lark", ".lock", ".md", ".py", ".toml", ".txt", ".yaml"}
TEXT |= {".yml", ""}


@pytest.mark.parametrize("folder", FOLDERS)
def test_symlinks_are_relative_and_lead_to_the_folders(root: Path, folder: str) -> None:
    link = root / "samovar" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..", folder)
    assert link.resolve() == root / folder


def test_no_module_is_reached_under_two_names(root: Path, tmp_path: Path) -> None:
    """Also next to a clone that is called samovar, which Python could take for a package without an __init__.py."""
    (tmp_path / "samovar" / "samovar").mkdir(parents=True)
    code = "import samovar.patterns, samovar.native.build as b; print(samovar.patterns.__file__)"
    for folder in (root.parent, tmp_path):
        assert Path(run_python(code, folder).strip()) == root / "samovar" / "patterns" / "__init__.py"


def test_versions_agree(root: Path) -> None:
    assert importlib.metadata.version("samovar") == samovar.__version__
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == samovar.__version__


def test_compiler_is_pinned_to_one_version(root: Path) -> None:
    pins = re.findall(r"ziglang==([\d.]+)", (root / "pyproject.toml").read_text())
    pins += re.findall(r"^ziglang==([\d.]+)", (root / "requirements.lock").read_text(), re.MULTILINE)
    assert len(pins) == 3
    assert len(set(pins)) == 1


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["rules", "--help"]])
def test_command_line_starts_light(root: Path, arguments: list[str]) -> None:
    code = (
        "import sys; from samovar.service.cli import main as cli; code = cli.run(sys.argv[1:]); "
        f"print(code, sorted(set(sys.modules) & set({HEAVY!r})))"
    )
    last_line = run_python(code, root, *arguments).splitlines()[-1]
    assert last_line == "0 []"


def test_version_option(root: Path) -> None:
    code = "from samovar.service.cli import main as cli; import sys; sys.exit(cli.run(['--version']))"
    assert run_python(code, root) == f"samovar {samovar.__version__}\n"


def test_kernel_folder_ships_its_sources(root: Path) -> None:
    shipped = {path.suffix for path in (root / "native").glob("*/*") if path.is_file()}
    assert {".cpp", ".def", ".h"} <= shipped <= {".cpp", ".def", ".h", ".pyc"}


def test_no_registry_hosts_and_no_home_paths(root: Path) -> None:
    found = [
        f"{path.relative_to(root)}:{number}: {match[0]}"
        for path in text_files(root)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (match := UNWANTED.search(line))
    ]
    assert found == []


def text_files(root: Path) -> list[Path]:
    """The files of the project, as git sees them where there is git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [root / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in root.rglob("*") if not is_made(path.relative_to(root))]
    return [path for path in paths if path.suffix in TEXT and path.is_file() and not path.is_symlink()]


def is_made(path: Path) -> bool:
    """Caches and environments: folders with a dot, except CI's own."""
    return any(part in MADE or (part.startswith(".") and part != ".ci") for part in path.parts[:-1])


def run_python(code: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
