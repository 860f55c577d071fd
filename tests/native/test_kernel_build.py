"""The kernel is rebuilt when it must be, not when it need not be, and never half."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from samovar.native import build
from samovar.native import kernel as native

SOURCE = """
#include <string>
#include <unordered_map>
#include <vector>
extern "C" __attribute__((visibility("default"))) long answer() {
  std::unordered_map<std::string, std::vector<int>> map;
  map["a"].assign(42, 1);
  return (long)map["a"].size() + NUMBER;
}
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel folder of its own, with one source file."""
    folder = tmp_path / "native" / "match"
    folder.mkdir(parents=True)
    monkeypatch.setattr(build, "KERNEL", folder.parent)
    monkeypatch.setattr(build, "LIBRARY", folder.parent / "_kernel.so")
    write(folder, "0")
    return folder


def test_builds_once_and_again_after_a_change(kernel: Path) -> None:
    assert build.build()
    assert answer() == 42
    assert not build.build()
    (kernel / "extra.h").write_text("// a header counts too\n")
    assert build.build()
    assert not build.build()
    assert build.build(force=True)


def test_several_files_become_one_library(kernel: Path) -> None:
    (kernel / "second.cpp").write_text("long second() { return 8; }\n")
    source = (kernel / "answer.cpp").read_text()
    (kernel / "answer.cpp").write_text("long second();\n" + source.replace("+ 0", "+ second()"))
    assert build.build()
    assert answer() == 50


def test_a_failed_build_says_why_and_leaves_the_old_library(kernel: Path) -> None:
    build.build()
    write(kernel, "no_such_name")
    with pytest.raises(build.BuildError, match="no_such_name"):
        build.build()
    assert answer() == 42
    assert {path.name for path in kernel.parent.iterdir()} == {"_kernel.so", "_kernel.hash", "match"}


def test_a_symbol_that_nobody_supplies_fails_the_build(kernel: Path) -> None:
    source = (kernel / "answer.cpp").read_text()
    (kernel / "answer.cpp").write_text("long missing();\n" + source.replace("+ 0", "+ missing()"))
    with pytest.raises(build.BuildError, match="missing"):
        build.build()


def test_compiler_that_does_not_exist(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="cannot run the compiler 'no-such-compiler'"):
        build.build()


def test_main_reports_instead_of_raising(
    kernel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("sys.argv", ["build.py"])
    assert build.main() == 1
    assert capsys.readouterr().err.startswith("kernel: not built: ")


# ---------------------------------------------------------------- which library is loaded


def test_a_library_of_other_sources_is_refused(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.build()
    message = refusal(build.LIBRARY, monkeypatch)
    assert "was built from other sources than those of this version of Samovar" in message
    assert str(build.LIBRARY) in message
    assert "Build it with `make kernel`" in message


def test_a_library_that_says_nothing_of_its_sources_is_refused(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ABI_SOURCE", "// %s\n")
    build.build()
    message = refusal(build.LIBRARY, monkeypatch)
    assert message.startswith("this library is not the kernel of this version of Samovar, or is older: ")
    assert "Build it with `make kernel`" in message


def test_what_is_no_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kernel.so"
    file.write_bytes(b"half")
    assert refusal(file, monkeypatch).startswith("the compiled kernel cannot be loaded: ")
    file.unlink()
    assert refusal(file, monkeypatch).startswith(f"the compiled kernel is missing: {file}\n  Build it with")


def test_every_source_and_table_counts_for_what_a_library_says_of_itself(kernel: Path) -> None:
    seen = [build.abi_of(build.source_files())]
    for name in ("extra.h", "extra.cpp", "extra.def"):
        (kernel / name).write_text("//\n")
        seen.append(build.abi_of(build.source_files()))
        (kernel / name).write_text("// other\n")
        seen.append(build.abi_of(build.source_files()))
    (kernel / "notes.txt").write_text("not a source")
    assert len({*seen, build.abi_of(build.source_files())}) == len(seen)


def refusal(library: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of a library by code whose sources are the real ones."""
    monkeypatch.setattr(build, "KERNEL", Path(build.__file__).resolve().parent)
    monkeypatch.setenv("SAMOVAR_KERNEL", str(library))
    with pytest.raises(native.KernelMissingError) as raised:
        native.kernel.__wrapped__()
    return str(raised.value)


def write(folder: Path, number: str) -> None:
    (folder / "answer.cpp").write_text(SOURCE.replace("NUMBER", number))


def answer() -> int:
    # Copied under a new name each time: the loader would hand out the library it already has.
    copy = build.LIBRARY.parent.parent / f"{build.LIBRARY.with_suffix('.hash').read_text()[:16]}.so"
    copy.write_bytes(build.LIBRARY.read_bytes())
    function = ctypes.CDLL(str(copy)).answer
    function.restype = ctypes.c_long
    return int(function())
