"""Debian's chromium for the tests of the pages: where it is, and `python -m tests.browser.chromium` to install it.

It is looked for at $CHROMIUM and on PATH. `make test` installs it with apt-get where it runs as root on Debian or
Ubuntu, and otherwise says what to do.
"""

from __future__ import annotations

import os
import shutil
import sys

from tests.support.debian import INSTALL, apt_get, provide, refusal

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ADVICE = (
    "Install Debian's chromium (apt-get install chromium), or say where one is: CHROMIUM=/path/to/chromium make test"
)
# No sandbox, since a root user has none; and nothing that would call anyone.
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()


def find_chromium() -> str | None:
    given = os.environ.get("CHROMIUM")
    if given:
        return shutil.which(given)
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def install() -> str | None:
    """None where it is there now; else why it is not."""
    print("setup: installing chromium with apt-get, for the tests of the pages", flush=True)
    if fault := refusal("chromium") or apt_get(*INSTALL, "chromium"):
        return fault
    return None if find_chromium() else "apt-get installed chromium, but it is not on PATH"


if __name__ == "__main__":
    sys.exit(provide(find_chromium, install, "the pages", ADVICE))
