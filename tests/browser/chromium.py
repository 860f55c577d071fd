"""Debian's chromium for the tests of the pages: where it is, and `python tests/browser/chromium.py` to install it.

It is looked for at $CHROMIUM and on PATH. `make test` installs it with apt-get where it runs as root on Debian or
Ubuntu, and otherwise says what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ADVICE = (
    "Install Debian's chromium (apt-get install chromium), or say where one is: CHROMIUM=/path/to/chromium make test"
)
# No sandbox, since a root user has none; and nothing that would call anyone.
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()
INSTALL_S = 600


def find_chromium() -> str | None:
    given = os.environ.get("CHROMIUM")
    if given:
        return shutil.which(given)
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def install() -> str | None:
    """None where it is there now; else why it is not."""
    apt = shutil.which("apt-get")
    if os.geteuid() != 0:
        return "no chromium on this machine, and only root may install one"
    if apt is None:
        return "no chromium on this machine, and no apt-get to install one with"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    print("setup: installing chromium with apt-get, for the tests of the pages", flush=True)
    for command in ([apt, "update", "-qq"], [apt, "install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=INSTALL_S
            )
        except subprocess.TimeoutExpired:
            return f"`{' '.join(command)}` did not end in {INSTALL_S} s"
        # A list of packages that is not quite new may still do: only the installation itself must succeed.
        if done.returncode and "install" in command:
            return f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
    return None if find_chromium() else "apt-get installed chromium, but it is not on PATH"


def main() -> int:
    if find_chromium():
        return 0
    fault = install()
    if fault is not None:
        print(f"setup: {fault}; the tests of the pages will fail. {ADVICE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
