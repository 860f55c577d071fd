"""The kernel with sanitizers, in short: `make sanitize` and `make fuzz-kernel` are the long forms."""

from __future__ import annotations

import subprocess
import sys

import pytest

from samovar.native.build import build_sanitized
from tests.native import fuzz, sanitize
from tests.native.clang import ADVICE, find_clang
from tests.native.seeds import write_seeds

SHORT = (
    "tests/system/test_cases.py", "tests/patterns/engine/test_decode.py", "tests/patterns/engine/test_avro.py",
    "tests/patterns/engine/test_programs.py", "tests/patterns/engine/test_damaged_states.py",
)  # fmt: skip


@pytest.fixture(scope="module")
def clang() -> str:
    found = find_clang()
    assert found is not None, f"no clang++ with sanitizers. {ADVICE}"
    build_sanitized(found)
    return found


def test_the_kernel_has_no_findings(clang: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *SHORT]
    environment = sanitize.environment(clang) | {"SAMOVAR_EXAMPLES": "20"}
    done = subprocess.run(command, cwd=sanitize.ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + sanitize.take_reports()[:5000]


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_what_was_found_and_the_seeds_have_no_findings(clang: str, target: str) -> None:
    write_seeds(fuzz.BUILD)
    folders = [folder for folder in (fuzz.BUILD / target, fuzz.FOUND / target) if folder.exists()]
    inputs = [file for folder in folders for file in sorted(folder.iterdir())]
    done = subprocess.run(
        [fuzz.build_target(target, clang), *inputs],
        env=fuzz.environment(clang), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    assert len(inputs) > 5
    assert done.stderr.count("Executed ") == len(inputs)


def test_a_finding_is_one(clang: str) -> None:
    """That sanitizers are at work at all: a read behind the end of what is there ends the process with a report."""
    script = """
import numpy as np
from samovar.native.kernel import joined
from samovar.patterns.engine.decoder import Decoder
decoder = Decoder(["x"])
batch = decoder.batch()
decoder.decode(batch, joined([b'{"type": "a", "ts": 1}']))
batch.select(np.array([1]))
"""
    environment = sanitize.environment(clang)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in sanitize.take_reports()
