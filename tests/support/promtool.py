"""Prometheus' promtool for the tests of the alarms: where it is, and `python -m tests.support.promtool` to fetch it.

It is looked for at $PROMTOOL, on PATH and in the user's cache. `make test` takes it out of Debian's package prometheus
where apt-get can be asked, without installing the package: no server is started. Otherwise it says what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.debian import LIMIT_S, apt_get, provide

ADVICE = (
    "Install Debian's prometheus (apt-get install prometheus), or say where promtool is: PROMTOOL=/path/to/promtool"
    " make test"
)


def cached() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "samovar" / "promtool"


def find_promtool() -> str | None:
    given = os.environ.get("PROMTOOL")
    if given:
        return shutil.which(given)
    return shutil.which("promtool") or shutil.which(str(cached()))


def fetch() -> str | None:
    """None where it is there now; else why it is not."""
    dpkg = shutil.which("dpkg-deb")
    if shutil.which("apt-get") is None or dpkg is None:
        return "no promtool on this machine, and no apt-get to fetch it with"
    print("setup: fetching promtool out of Debian's package prometheus, for the tests of the alarms", flush=True)
    if os.geteuid() == 0:
        apt_get("update", "-qq")  # a list of packages that is not quite new may still do
    with tempfile.TemporaryDirectory(prefix="samovar-promtool-") as folder:
        if fault := apt_get("download", "-qq", "prometheus", folder=Path(folder)):
            return fault
        (package,) = Path(folder).glob("*.deb")
        subprocess.run([dpkg, "-x", package, folder], check=True, timeout=LIMIT_S)
        cached().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached().parent) as beside:  # never half of it where it is looked for
            shutil.copy2(Path(folder) / "usr" / "bin" / "promtool", Path(beside) / "promtool")
            (Path(beside) / "promtool").rename(cached())
    return None if find_promtool() else "the package prometheus has no promtool that runs here"


if __name__ == "__main__":
    sys.exit(provide(find_promtool, fetch, "the alarms", ADVICE))
