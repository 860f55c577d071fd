"""The bundle of the rule editor: of what is pinned by hash, made again only when something changed, and not needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from samovar.service.http.web.editor import build

WEB = Path(build.__file__).resolve().parent.parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources of the pages, without a bundle."""
    shutil.copytree(WEB, tmp_path / "web", ignore=shutil.ignore_patterns("_editor.*", "__pycache__"))
    return tmp_path / "web"


def built(web: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(web / "editor" / "build.py"), *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_every_package_is_pinned_by_its_hash_and_no_address_is_written_down() -> None:
    text = (WEB / "editor" / "package-lock.json").read_text("utf-8")
    packages = json.loads(text)["packages"]
    own = packages.pop("")
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert all(version[0].isdigit() for version in own["dependencies"].values())
    assert "resolved" not in text
    assert "://" not in text


def test_without_a_registry_it_says_so_and_the_pages_go_on(copy: Path, tmp_path: Path) -> None:
    nowhere = {"npm_config_registry": "http://127.0.0.1:9/", "npm_config_cache": str(tmp_path / "cache")}
    done = built(copy, "--optional", **nowhere)
    assert done.returncode == 0
    assert "editor: not bundled" in done.stderr
    assert "plain text field" in done.stderr
    assert len(done.stderr.splitlines()) < 10
    assert not (copy / "static" / "_editor.js").exists()
    assert built(copy, **nowhere).returncode == 1


def test_an_unchanged_bundle_is_not_made_again(copy: Path) -> None:
    (copy / "static" / "_editor.js").write_text("export {};")
    (copy / "static" / "_editor.hash").write_text(digest(copy))
    done = built(copy)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def digest(web: Path) -> str:
    program = f"import runpy; print(runpy.run_path({str(web / 'editor' / 'build.py')!r})['fingerprint']())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_a_changed_source_asks_for_a_new_bundle(copy: Path) -> None:
    before = digest(copy)
    with (copy / "editor" / "highlight.js").open("a") as source:
        source.write("// more\n")
    assert digest(copy) != before
