"""Builds the native kernel: every *.cpp in the folders next to this file becomes `native/_kernel.so`.

    python native/build.py [--force] [--sanitize]

Run by the Makefile and by setup.py, so it needs nothing but the standard library and a compiler. The compiler is
`$CXX` where that is set, and otherwise the `zig c++` of the pinned `ziglang` wheel: the same compiler on every
machine, no root rights, no system headers.

Zig would first build all of libc++ (a minute and a half on two cores). The kernel needs little of it, so the few
sources that matter are compiled from the wheel into an archive, and the link takes what it uses.

The library carries a hash of its sources, `samovar_abi`; native/kernel.py refuses one whose hash is another.
With --sanitize it becomes `build/sanitize/_kernel.so`, with clang's address and undefined behaviour sanitizers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

KERNEL = Path(__file__).resolve().parent
LIBRARY = KERNEL / "_kernel.so"
SANITIZED = KERNEL.parent / "build" / "sanitize" / "_kernel.so"

# No contraction: a fused multiply-add would let two processors disagree on a match. Only what is marked is exported.
FLAGS = (
    "-std=c++20 -O3 -fPIC -fno-rtti -fvisibility=hidden -ffp-contract=off "
    "-ffunction-sections -fdata-sections -Wall -Wextra -Wno-missing-field-initializers"
).split()
# Of the undefined behaviour only what needs RTTI is left out. Frame pointers are for the stacks in a report, and
# fuzzer-no-link counts what is reached, for tests/native/fuzz.py.
SANITIZE_FLAGS = (
    "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined,float-cast-overflow,fuzzer-no-link "
    "-fno-sanitize=vptr,function -fno-sanitize-recover=all"
).split()
RUNTIME_FLAGS = (
    "-std=c++23 -O2 -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections -w -D_LIBCPP_BUILDING_LIBRARY "
    "-DLIBCXX_BUILDING_LIBCXXABI -D_LIBCXXABI_BUILDING_LIBRARY -DLIBCXXABI_SILENT_TERMINATE"
).split()

# Oldest systems the result runs on: glibc 2.17, which is what manylinux2014 means, and x86-64 with SSE4.2.
TARGETS = {
    ("Linux", "x86_64"): ("-target", "x86_64-linux-gnu.2.17", "-mcpu=x86_64_v2"),
    ("Linux", "aarch64"): ("-target", "aarch64-linux-gnu.2.17"),
    ("Darwin", "x86_64"): ("-target", "x86_64-macos.12.0", "-mcpu=x86_64_v2"),
    ("Darwin", "arm64"): ("-target", "aarch64-macos.12.0"),
}

MACHINE = "SAMOVAR_KERNEL_MACHINE"  # builds for another processor than this one

# The same of x86-64 for a compiler of the user's.
OWN_TARGETS = {"x86_64": ("-msse4.2", "-mpopcnt")}

LIBCXX = (
    "algorithm charconv functional hash memory new new_helpers stdexcept string verbose_abort ryu/d2fixed ryu/d2s "
    "ryu/f2s"
)
LIBCXXABI = (
    "abort_message cxa_aux_runtime cxa_default_handlers cxa_exception cxa_exception_storage cxa_guard cxa_handlers "
    "cxa_personality cxa_thread_atexit cxa_virtual fallback_malloc private_typeinfo stdlib_exception stdlib_stdexcept "
    "stdlib_typeinfo"
)


ABI_SOURCE = """extern "C" __attribute__((visibility("default"))) const char samovar_abi[] = "%s";\n"""


class BuildError(Exception):
    """The kernel could not be built; the text says why and what to do."""


@dataclass(frozen=True)
class Compiler:
    """How to call the compiler. `zig_lib` is the wheel's library folder, None for a compiler of the user's."""

    command: tuple[str, ...]
    version: str
    target: tuple[str, ...] = ()
    zig_lib: Path | None = None


def build(force: bool = False) -> bool:
    """Builds the kernel if its sources, flags or compiler changed since the last time. True if it did."""
    chosen = os.environ.get("CXX", "").strip()
    return build_library(own_compiler(chosen) if chosen else zig_compiler(), FLAGS, LIBRARY, force)


def build_sanitized(clang: str, force: bool = False) -> bool:
    """Builds the kernel with sanitizers, by a clang++ that has their runtime. True if it did."""
    SANITIZED.parent.mkdir(parents=True, exist_ok=True)
    link = [*SANITIZE_FLAGS, "-shared-libasan"]
    return build_library(own_compiler(clang), [*FLAGS, *SANITIZE_FLAGS], SANITIZED, force, link)


def build_library(
    compiler: Compiler, flags: Sequence[str], library: Path, force: bool, link: Sequence[str] = ()
) -> bool:
    files = source_files()
    stamp, abi = library.with_suffix(".hash"), abi_of(files)
    # It changes with anything that changes the result, this file included.
    how = repr((compiler.version, compiler.target, list(flags), abi)).encode()
    digest = hashlib.sha256(how + Path(__file__).resolve().read_bytes()).hexdigest()
    if not force and library.exists() and stamp.exists() and stamp.read_text().strip() == digest:
        return False
    sources = [path for path in files if path.suffix == ".cpp"]
    print(f"kernel: compiling {len(sources)} file(s) with {compiler.version} ...", flush=True)
    begun = time.monotonic()
    # Built next to its place, so that the rename is atomic: a running process never sees half a library.
    with tempfile.TemporaryDirectory(prefix=".kernel-", dir=library.parent) as scratch:
        named = Path(scratch, "abi.cpp")
        named.write_text(ABI_SOURCE % abi)
        compile_and_link(compiler, flags, [*sources, named], Path(scratch), link).replace(library)
        new_stamp = Path(scratch, "stamp")
        new_stamp.write_text(digest + "\n")
        new_stamp.replace(stamp)
    print(f"kernel: built in {time.monotonic() - begun:.1f} s", flush=True)
    return True


def source_files() -> list[Path]:
    return sorted(path for path in KERNEL.glob("*/*") if path.suffix in (".cpp", ".h", ".def"))


def abi_of(files: Iterable[Path]) -> str:
    """A hash of the kernel's sources: what the library and the Python code around it must agree on."""
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"\n{path.parent.name}/{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def own_compiler(chosen: str) -> Compiler:
    command = tuple(shlex.split(chosen))
    first_line = run([*command, "--version"]).partition("\n")[0].strip()
    return Compiler(command, f"{chosen} ({first_line})", OWN_TARGETS.get(platform.machine(), ()))


def zig_compiler() -> Compiler:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(
            "no C++ compiler: the `ziglang` package is not installed in this Python.\n"
            "  `make test` sets everything up; or use a compiler of your own: CXX=g++ make test"
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    binary = package / ("zig.exe" if os.name == "nt" else "zig")
    version = run([str(binary), "version"]).strip()
    machine = os.environ.get(MACHINE, "")
    target = TARGETS.get((platform.system(), machine or platform.machine()), ())
    if machine and not target:
        raise BuildError(f"{MACHINE}={machine}: on {platform.system()} the kernel is built for x86_64 and aarch64")
    if platform.libc_ver()[0] != "glibc" and platform.system() == "Linux" and not machine:
        target = ()  # musl: build for this machine only
    return Compiler((str(binary), "c++"), f"zig {version}", target, package / "lib")


def compile_and_link(
    compiler: Compiler, flags: Sequence[str], sources: Sequence[Path], scratch: Path, link: Sequence[str]
) -> Path:
    out, zig_lib = scratch / "kernel.so", compiler.zig_lib
    # `defs` turns a symbol that nobody supplies into an error here instead of one at load time; -s strips debug data.
    on_linux = ["-Wl,-z,defs", "-Wl,--gc-sections", "-s"]
    no_dead_code = ["-Wl,-dead_strip"] if platform.system() == "Darwin" else on_linux
    objects = compile_all(compiler, flags, sources, scratch)
    if zig_lib is None:
        # The runtime of a sanitizer is found by the process that loads the library.
        run([*compiler.command, "-shared", *(link or no_dead_code), *objects, "-o", str(out)])
        return out
    # The part of libc++ that a kernel can need, as an archive. The target's headers go with `c++ -c`; only the link is
    # told to leave libc++ out.
    parts = [zig_lib / "libcxx" / "src" / f"{name}.cpp" for name in LIBCXX.split()]
    parts += [zig_lib / "libcxxabi" / "src" / f"{name}.cpp" for name in LIBCXXABI.split()]
    includes = [f"-I{zig_lib / folder}" for folder in ("libcxx/src", "libcxx/libc", "libcxxabi/include")]
    runtime = str(scratch / "runtime.a")
    made = compile_all(compiler, [*RUNTIME_FLAGS, *includes], parts, scratch)
    run([compiler.command[0], "ar", "rcs", runtime, *made])
    run(
        [*compiler.command, *compiler.target, "-O3", "-shared", "-nostdlib++"]
        + [*no_dead_code, *objects, runtime, "-lunwind", "-o", str(out)]
    )
    return out


def compile_all(compiler: Compiler, flags: Sequence[str], sources: Sequence[Path], scratch: Path) -> list[str]:
    """Object files, in the order of the sources. Zig keeps its own cache, so a second time is quick."""

    def compile_one(source: Path) -> str:
        made = scratch / f"{source.parent.parent.name}-{source.stem}.o"
        run([*compiler.command, *compiler.target, *flags, f"-I{KERNEL}", "-c", str(source), "-o", str(made)])
        return str(made)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(compile_one, sources))


def run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"cannot run the compiler {command[0]!r}: {error.strerror or error}") from error
    if done.returncode != 0:
        raise BuildError(f"this command failed (exit {done.returncode}):\n  {shlex.join(command)}\n{done.stderr}")
    if done.stderr.strip():
        print(done.stderr.rstrip(), file=sys.stderr)
    return done.stdout


def main() -> int:
    arguments = sys.argv[1:]
    try:
        if "--sanitize" in arguments:
            build_sanitized(os.environ.get("CXX", "").strip() or "clang++", "--force" in arguments)
        else:
            build("--force" in arguments)
    except BuildError as error:
        print(f"kernel: not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
