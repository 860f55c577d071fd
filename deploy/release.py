"""Builds what a release uploads, checks it as an index would, and tries it where nothing else is installed.

    python deploy/release.py [DIST]        `make release`; needs the packages of requirements-release.lock

A source archive, and one wheel each for x86_64 and aarch64, built from that archive in a folder of their own. The wheel
of this machine is installed into a new environment whose PATH has no compiler and no Java, and runs there what the
README says. That of the other processor is only checked: nothing here can run it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINES = {"x86_64": 62, "aarch64": 183}  # with the number that an ELF header has for it
GLIBC = (2, 17)  # manylinux2014
KERNEL = "samovar/native/_kernel.so"
KERNEL_BYTES_MAX = 1_500_000
INSTALL_BYTES_MAX = 200_000_000
DEMO_S = 40


def main(arguments: Sequence[str]) -> int:
    dist = Path(arguments[0] if arguments else ROOT / "dist").resolve()
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        archive = build_archive(dist)
        wheels = {machine: build_wheel(archive, machine, dist, Path(scratch)) for machine in MACHINES}
        for machine, wheel in wheels.items():
            check_kernel(wheel, machine)
            shown = run([sys.executable, "-m", "auditwheel", "show", str(wheel)])
            if f"manylinux_2_17_{machine}" not in shown:  # which is what manylinux2014 is called since
                raise SystemExit(f"{wheel.name} is not what its tag says:\n{shown}")
        run([sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(dist.iterdir()))])
        try_out(wheels[platform.machine()], Path(scratch))
    for path in sorted(dist.iterdir()):
        say(f"{path.stat().st_size / 1e6:6.1f} MB  {path.name}")
    return 0


def build_archive(dist: Path) -> Path:
    say("source archive")
    run([sys.executable, "-c", f"from setuptools.build_meta import build_sdist; build_sdist({str(dist)!r})"], cwd=ROOT)
    return next(dist.glob("*.tar.gz"))


def build_wheel(archive: Path, machine: str, dist: Path, scratch: Path) -> Path:
    """Builds from the archive, so that what is uploaded is known to be enough."""
    say(f"wheel for {machine}")
    folder = scratch / machine
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "SAMOVAR_KERNEL_MACHINE": machine}
    run([*command, "--wheel-dir", str(dist), str(next(folder.iterdir()))], environment=environment)
    return next(dist.glob(f"*manylinux2014_{machine}.whl"))


def check_kernel(wheel: Path, machine: str) -> None:
    with zipfile.ZipFile(wheel) as packed:
        library = packed.read(KERNEL)
    if int.from_bytes(library[18:20], "little") != MACHINES[machine]:
        raise SystemExit(f"{wheel.name}: its kernel is for another processor")
    newest = max(tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", library))
    if newest > GLIBC:
        raise SystemExit(
            f"{wheel.name}: its kernel asks for glibc {newest[0]}.{newest[1]}, newer than manylinux2014 has"
        )
    if len(library) > KERNEL_BYTES_MAX:
        raise SystemExit(f"{wheel.name}: a kernel of {len(library):,} bytes; it should be stripped")
    say(f"kernel for {machine}: {len(library):,} bytes, glibc {newest[0]}.{newest[1]} or newer")


def try_out(wheel: Path, scratch: Path) -> None:
    """Installs the wheel by its name alone and runs what the README says."""
    say("trying it in a new environment")
    home, place = scratch / "home", scratch / "place"
    venv.create(home, with_pip=True)
    before = size_of(home)
    run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)])
    grown = size_of(home) - before
    say(f"installed: {grown / 1e6:.0f} MB")
    if grown > INSTALL_BYTES_MAX:
        raise SystemExit(f"the install takes {grown / 1e6:.0f} MB, more than {INSTALL_BYTES_MAX / 1e6:.0f}")
    place.mkdir()
    environment = {"PATH": str(home / "bin"), "HOME": str(place), "LANG": "C.UTF-8"}
    for command in (
        "samovar --version",
        "samovar init detector",
        "samovar rules test detector/rules",
        "samovar match detector/rules/card-testing.yml detector/events.jsonl --type purchase",
        f"samovar demo --for {DEMO_S}s",  # ends with 1 where it found nothing
    ):
        say(command)
        run(command.split(), cwd=place, environment=environment)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def run(command: Sequence[str], cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    path = None if environment is None else environment["PATH"]
    program = shutil.which(command[0], path=path) or command[0]
    done = subprocess.run(
        [program, *command[1:]], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    sys.stdout.write(f"release: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
