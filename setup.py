"""Adds what pyproject.toml cannot say: the kernel is compiled and the editor bundled before files are gathered."""

import os
import runpy
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

KERNEL_BUILD = Path(__file__).parent / "samovar" / "native" / "build.py"
EDITOR_BUILD = Path(__file__).parent / "samovar" / "service" / "http" / "web" / "editor" / "build.py"


class BuildWithKernel(build_py):
    def run(self) -> None:
        # Run as a file, not imported: samovar's own imports are not there yet in a build environment.
        build = runpy.run_path(str(KERNEL_BUILD))
        try:
            build["build"]()
        except build["BuildError"] as error:
            sys.exit(f"kernel: not built: {error}")
        editor = runpy.run_path(str(EDITOR_BUILD))
        try:
            editor["build"]()
        except editor["BuildError"] as error:
            print(f"editor: not bundled, rules are edited in a plain text field: {error}", file=sys.stderr)
        super().run()


class PlatformWheel(bdist_wheel):
    """One wheel per platform for every Python: the kernel is loaded by ctypes and knows nothing of the interpreter."""

    def get_tag(self) -> tuple[str, str, str]:
        machine = os.environ.get("SAMOVAR_KERNEL_MACHINE")  # said by deploy/release.py, which checks the tag
        return "py3", "none", f"manylinux2014_{machine}" if machine else super().get_tag()[2]


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernel, "bdist_wheel": PlatformWheel}, distclass=NativeDistribution)
