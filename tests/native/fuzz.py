"""Coverage-guided fuzzing of the kernel: `python -m tests.native.fuzz SECONDS [TARGET...]`.

Every target is a program of clang's libFuzzer around the library with sanitizers. Its corpus, under build/fuzz, begins
with seeds (seeds.py) and what was found before (found/), and is kept for the next time. An input that ends a target is
left under build/fuzz/crashes: with the fault repaired it goes to found/.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from samovar.native.build import SANITIZE_FLAGS, SANITIZED, BuildError, build_sanitized, run
from tests.native.clang import ADVICE, find_clang, runtime_of, write_symbolizer

HERE = Path(__file__).resolve().parent
FOUND = HERE / "found"
BUILD = SANITIZED.parent.parent / "fuzz"
TARGETS = ("json", "avro", "rows", "program")
LIMITS = ("-rss_limit_mb=3000", "-timeout=20", "-max_len=20000", "-print_final_stats=1")


def build_target(target: str, clang: str) -> Path:
    """The target's program; built again where it is older than its sources or the library."""
    source, built = HERE / f"fuzz_{target}.cpp", BUILD / f"fuzz_{target}"
    newest = max(path.stat().st_mtime for path in (source, HERE / "fuzzing.h", SANITIZED))
    if not built.exists() or built.stat().st_mtime < newest:
        BUILD.mkdir(parents=True, exist_ok=True)
        flags = ["-std=c++20", *SANITIZE_FLAGS, "-fsanitize=fuzzer", "-shared-libasan"]
        paths = f"-Wl,-rpath,{SANITIZED.parent},-rpath,{Path(runtime_of(clang)).parent}"
        run([clang, *flags, str(source), str(SANITIZED), paths, "-o", str(built)])
    return built


def environment(clang: str) -> dict[str, str]:
    """The sanitizer's runtime must come before the library that needs it."""
    return os.environ | {
        "SAMOVAR_FUZZ_PROGRAMS": str(BUILD / "programs"),
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=64",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "LD_PRELOAD": runtime_of(clang),
        **write_symbolizer(clang, SANITIZED.parent),
    }


def fuzz(target: str, seconds: int, clang: str) -> bool:
    """Whether nothing was found."""
    corpus, crashes = BUILD / "corpus" / target, BUILD / "crashes" / f"{target}-"
    corpus.mkdir(parents=True, exist_ok=True)
    crashes.parent.mkdir(exist_ok=True)
    folders = [corpus, *(folder for folder in (BUILD / target, FOUND / target) if folder.exists())]
    options = f"-max_total_time={seconds}", f"-artifact_prefix={crashes}", f"-dict={BUILD / 'numbers.dict'}", *LIMITS
    command = [str(each) for each in (build_target(target, clang), *options, *folders)]
    print(f"fuzz: {target} for {seconds} s", flush=True)
    return subprocess.run(command, env=environment(clang), check=False).returncode == 0


def main() -> int:
    seconds, chosen = int(sys.argv[1]), sys.argv[2:] or TARGETS
    clang = find_clang()
    if clang is None:
        print(f"fuzz: no clang++ with its fuzzer. {ADVICE}", file=sys.stderr)
        return 1
    try:
        build_sanitized(clang)
        from tests.native.seeds import write_seeds  # noqa: PLC0415 - needs the kernel, which the line above may refuse

        write_seeds(BUILD)
        found = [target for target in chosen if not fuzz(target, seconds, clang)]
    except BuildError as error:
        print(f"fuzz: {error}", file=sys.stderr)
        return 1
    if found:
        print(f"fuzz: inputs that end {', '.join(found)} are under {BUILD / 'crashes'}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
