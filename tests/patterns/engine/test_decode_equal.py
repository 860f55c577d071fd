"""The kernel's decoder == the strict one: on JSON with every oddity, on mutated JSON, and on noise.

Whole messages are written from a seed, which is many times faster than drawing them part by part; what hypothesis
shows on a failure is then the seed, and `Writer(seed).message()` is the message.
"""

from __future__ import annotations

import ctypes
import json
import mmap
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from samovar.native.kernel import kernel
from samovar.patterns.engine.decode import CODES
from tests.support.decoding import GOOD, assert_same, decode, decoder

NAMES = ["x", "a", "b", "c", "d", "a.b", "b.c", "c.d", "a.b.c", "b.c.d", "a.b.c.d", "ts", "type", "", "é"]
NAMES += ["a long name", "a long nam", "a long name!", r"\u0061", r"a\u002eb", "process", "name", "process.name", "y"]
SPACES = ["", "", "", "", " ", "\n\t\r "]
PIECES = ["a", "b", "seven77", "more than eight", " ", "é", "€", "\U0001f600", "\x7f", "\u2028", "/", "'", "."]
ESCAPES = [r"\"", r"\\", r"\/", r"\b", r"\f", r"\n", r"\r", r"\t", r"\u0000", r"\u0061", r"\u00E9", r"\ud83d\ude00"]
SURROGATES = [r"\uD800", r"\udfff", r"\ud800\ud800\udc00", r"\ud800\n"]
NUMBERS = ["0", "-0", "1", "-1", "0.0", "-0.0", "1e5", "1E+5", "1e-5", "0.1", "1e22", "1e23", "9007199254740993"]
NUMBERS += ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1e308"]
NUMBERS += ["18446744073709551615", "18446744073709551616", "1.7976931348623158e308", "5e-324", "1e-400", "2.5"]
WRONG_NUMBERS = ["01", "1.", ".5", "1e", "-", "+1", "NaN", "Infinity", "1e400", "1.7976931348623159e308"]
PATCHES = b'{}[],:"\\untf0-.e \x00\x1f\x80\xc3\xed\xf4'


class Writer:
    """JSON as text from a seed, with equal names, odd spaces, odd numbers, escapes, and sometimes a fault."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.wrong = self.random.random() < 0.1

    def message(self) -> bytes:
        members = self.members(1)
        if self.random.random() < 0.9:
            members += ['"type": "t"', f'"ts": {self.random.choice(["1", "1700000000000", "2.5"])}']
        return f"{self.space()}{{{','.join(members)}}}{self.space()}".encode()

    def mutated(self) -> bytes:
        data = bytearray(self.message())
        for _ in range(self.random.randint(1, 3)):
            place = self.random.randint(0, len(data))
            patch = bytes([self.random.choice(PATCHES)]) if self.random.random() < 0.7 else b""
            data[place : place + self.random.randint(0, 2)] = patch
        return bytes(data[: self.random.randint(0, len(data))] if self.random.random() < 0.2 else data)

    def value(self, depth: int) -> str:
        kind = self.random.random()
        if kind < 0.25 and depth < 6:
            return f"{{{','.join(self.members(depth + 1)) or self.space()}}}"
        if kind < 0.35 and depth < 6:
            return f"[{','.join(self.value(depth + 1) for _ in range(self.random.randint(0, 3))) or self.space()}]"
        if kind < 0.5:
            return self.random.choice(["null", "null", "true", "false"])
        return self.space() + (self.number() if kind < 0.7 else self.string()) + self.space()

    def members(self, depth: int) -> list[str]:
        # Few names below the top, so that paths meet each other.
        names = NAMES if depth == 1 or self.random.random() < 0.2 else NAMES[1:11]
        count = self.random.randint(0, 6)
        return [f'{self.space()}"{self.random.choice(names)}"{self.space()}:{self.value(depth)}' for _ in range(count)]

    def string(self) -> str:
        pieces = self.random.choice([PIECES, PIECES + ESCAPES, PIECES + ESCAPES + SURROGATES * self.wrong])
        return f'"{"".join(self.random.choices(pieces, k=self.random.randint(0, 6)))}"'

    def number(self) -> str:
        kind = self.random.randint(0, 3)
        if kind == 0:
            return self.random.choice(NUMBERS + WRONG_NUMBERS * self.wrong)
        if kind == 1:
            return str(self.random.randint(-(10 ** self.random.randint(1, 20)), 10 ** self.random.randint(1, 20)))
        return repr(self.random.uniform(-1, 1) * 10.0 ** self.random.randint(-30, 30))

    def space(self) -> str:
        return self.random.choice(SPACES)


SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_equal_on_json(seed: int) -> None:
    for place in range(20):
        assert_same(Writer(seed + place).message())


@given(SEEDS)
def test_equal_on_mutated_json(seed: int) -> None:
    for place in range(20):
        assert_same(Writer(seed + place).mutated())


@given(st.one_of(st.binary(max_size=40), st.text(' \n{}[]:,"\\u019eE+-.truefalsn', max_size=30).map(str.encode)))
@example(b"\xed\xa0\x80")
@example(b"\\ud800\\u12")
def test_equal_on_noise(noise: bytes) -> None:
    assert_same(noise)
    assert_same(b'{"x": ' + noise + b", " + GOOD + b"}")
    assert_same(b'{"x": "' + noise + b'", ' + GOOD + b"}")


@given(st.text(), st.booleans())
def test_equal_on_text(text: str, ascii_only: bool) -> None:
    assert_same(json.dumps({"x": text, text: 1, "type": text, "ts": 1}, ensure_ascii=ascii_only).encode())


WRITTEN = st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@given(st.one_of(WRITTEN, st.floats(allow_nan=False, allow_infinity=False).map(repr), st.integers().map(str)))
@example("-92233720368547758080")
@example("1" * 5000)
@example("0." + "0" * 5000 + "1")
def test_equal_on_numbers(number: str) -> None:
    assert_same(b'{"x": ' + number.encode() + b", " + GOOD + b"}")
    assert_same(b'{"type": "t", "y": 1, "ts": ' + number.encode() + b"}")


CLOCK = r"[T ]([01][0-9]|2[0-4]):?[0-6][0-9](:?[0-6][0-9]([.,][0-9]{1,5})?)?(Z|[+-][0-2][0-9](:?[0-6][0-9])?)?"
ISO = st.from_regex(rf"[0-9]{{4}}-?(0[0-9]|1[0-3])-?[0-3][0-9]({CLOCK})?", fullmatch=True)


@given(st.one_of(ISO, st.datetimes().map(lambda t: t.isoformat() + "Z"), st.text("0123456789-:+.,TZ ", max_size=30)))
def test_equal_on_times(text: str) -> None:
    assert_same(json.dumps({"type": "t", "ts": text}).encode())


@given(SEEDS, st.integers(0, 12), st.booleans())
def test_a_message_does_not_see_its_neighbours(seed: int, count: int, copy: bool) -> None:
    many = [Writer(seed + i).mutated() if i % 3 else Writer(seed + i).message() for i in range(count)]
    alone = [decode([message], copy=copy)[0] for message in many]
    assert repr(decode(many, copy=copy)) == repr(alone)


# ---------------------------------------------------------------- never a byte outside


class Fence:
    """A page between two that may not be touched: a read on either side of it ends the process."""

    def __init__(self) -> None:
        self.pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
        self.first = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for page in (0, 2):
            assert protect(self.first + page * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0

    def verdict(self, message: bytes, at_end: bool) -> str:
        """The verdict on a message that touches one of the fences."""
        start = 2 * mmap.PAGESIZE - len(message) if at_end else mmap.PAGESIZE
        self.pages[start : start + len(message)] = message
        verdict, bounds = (ctypes.c_uint32 * 2)(), (ctypes.c_int64 * 2)(start, start + len(message))
        ends = ctypes.addressof(bounds) + 8
        batch = decoder().batch()
        where = decoder().handle, batch.handle, self.first, ctypes.addressof(bounds), ends, 1
        kernel().samovar_decode_json(*where, 0, None, None, 1, ctypes.addressof(verdict))
        return CODES[verdict[0]]


FENCE = Fence()


@given(SEEDS, st.booleans())
def test_nothing_outside_a_message_is_read(seed: int, at_end: bool) -> None:
    for place in range(20):
        message = Writer(seed + place).mutated()[: mmap.PAGESIZE]
        (seen,) = decode([message])
        assert FENCE.verdict(message, at_end) == getattr(seen, "code", "OK")
