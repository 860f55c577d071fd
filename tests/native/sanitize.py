"""The tests of the kernel with clang's address and undefined behaviour sanitizers: `python -m tests.native.sanitize`.

Builds `build/sanitize/_kernel.so`, next to the usual library and not in its place, and runs pytest with it. Arguments
go to pytest, in place of the tests that are run by default. The first finding ends its process, with a report.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from samovar.native.build import SANITIZED, BuildError, build_sanitized
from tests.native.clang import ADVICE, find_clang, library_of, runtime_of, write_symbolizer

REPORT = SANITIZED.parent / "report"  # with a number behind it: pytest keeps what a test writes, and ends with it
ROOT = Path(__file__).resolve().parent.parent.parent
_SYSTEM = "batches bounded cases hot_keys matcher_equals_oracle order_property states".split()
TESTS = ("tests/patterns", "tests/native", *(f"tests/system/test_{each}.py" for each in _SYSTEM), "tests/simulation")
# One starts compilers, one measures the time that the parser takes, and one is this one's own.
IGNORED = (
    "tests/native/test_kernel_build.py",
    "tests/patterns/parse/test_hostile.py",
    "tests/native/test_sanitized.py",
)


def environment(clang: str) -> dict[str, str]:
    """For a Python that loads the library with sanitizers; libstdc++ with it, since they watch what it throws."""
    preloaded = runtime_of(clang), library_of(clang, "libstdc++.so.6")
    return os.environ | {
        "SAMOVAR_KERNEL": str(SANITIZED),
        "LD_PRELOAD": " ".join(preloaded),
        # Python never frees all that it has; and what a test wants to fail must not end the process.
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:log_path={REPORT}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={REPORT}",
        "PYTHONMALLOC": "malloc",  # so that a read beyond a bytes object is seen
        **write_symbolizer(clang, SANITIZED.parent),
    }


def take_reports() -> str:
    """What sanitizers found since this was last asked."""
    files = sorted(REPORT.parent.glob(f"{REPORT.name}.*"))
    reports = "\n".join(file.read_text(errors="replace") for file in files)
    for file in files:
        file.unlink()
    return reports


def main() -> int:
    clang = find_clang()
    if clang is None:
        print(f"sanitize: no clang++ with sanitizers. {ADVICE}", file=sys.stderr)
        return 1
    try:
        build_sanitized(clang)
    except BuildError as error:
        print(f"sanitize: {error}", file=sys.stderr)
        return 1
    chosen = sys.argv[1:] or [test for test in TESTS if (ROOT / test).exists()]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0", "-m", "not address_space"]
    ignored = [f"--ignore={test}" for test in IGNORED]
    take_reports()
    done = subprocess.run([*pytest, *ignored, *chosen], cwd=ROOT, env=environment(clang), check=False)
    print(take_reports(), end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
