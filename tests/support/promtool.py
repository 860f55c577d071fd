"""Prometheus' promtool for the tests of the alarms: where it is, and `python tests/support/promtool.py` to fetch it.

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

ADVICE = (
    "Install Debian's prometheus (apt-get install prometheus), or say where promtool is: PROMTOOL=/path/to/promtool"
    " make test"
)
FETCH_S = 300


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
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        return "no promtool on this machine, and no apt-get to fetch it with"
    print("setup: fetching promtool out of Debian's package prometheus, for the tests of the alarms", flush=True)
    with tempfile.TemporaryDirectory(prefix="samovar-promtool-") as folder:
        update = [[apt, "update", "-qq"]] if os.geteuid() == 0 else []
        # A list of packages that is not quite new may still do: only the package itself must come.
        for command in (*update, [apt, "download", "-qq", "prometheus"]):
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_S)
            except subprocess.TimeoutExpired:
                return f"`{' '.join(command)}` did not end in {FETCH_S} s"
            if done.returncode and "download" in command:
                return f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
        (package,) = Path(folder).glob("*.deb")
        subprocess.run([dpkg, "-x", package, folder], check=True, timeout=FETCH_S)
        cached().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached().parent) as beside:  # never half of it where it is looked for
            shutil.copy2(Path(folder) / "usr" / "bin" / "promtool", Path(beside) / "promtool")
            (Path(beside) / "promtool").rename(cached())
    return None if find_promtool() else "the package prometheus has no promtool that runs here"


def main() -> int:
    if find_promtool():
        return 0
    fault = fetch()
    if fault is not None:
        print(f"setup: {fault}; the tests of the alarms will fail. {ADVICE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
