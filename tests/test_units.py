"""Sizes: what is printed reads back, and what people write means what they think."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramlens import UsageError
from vramlens.units import (
    GIB,
    KIB,
    MIB,
    agreeing,
    counted,
    first_of,
    format_duration,
    format_size,
    parse_size,
)

FACTORS = {
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
SIZES = st.integers(0, 1 << 60)


@given(SIZES)
def test_a_printed_size_reads_back_within_its_rounding(size: int) -> None:
    printed = format_size(size)
    unit = {"KiB": KIB, "MiB": MIB, "GiB": GIB}.get(printed.split()[1], 0)
    assert (
        abs(parse_size(printed) - size) <= unit / 200 + 1 + size // 2**50
    )  # two digits; a float's own


@given(SIZES, st.sampled_from(["", " B", " byte", "bytes"]))
def test_bytes_are_exact(size: int, unit: str) -> None:
    assert parse_size(f"{size}{unit}") == size


@given(st.integers(0, 10**6), st.sampled_from(sorted(FACTORS)))
def test_units(count: int, name: str) -> None:
    factor = FACTORS[name]
    for written in (f"{count}{name}", f" {count} {name.lower()} ", f"{count}.0{name.upper()}"):
        assert parse_size(written) == count * factor


@pytest.mark.parametrize(("letter", "factor"), [("K", KIB), ("M", MIB), ("G", GIB), ("T", 2**40)])
def test_a_letter_alone_is_a_power_of_1024(letter: str, factor: int) -> None:
    assert parse_size(f"80{letter}") == parse_size(f"80 {letter.lower()}") == 80 * factor
    assert parse_size(f"1.5{letter}") == factor * 3 // 2


@given(SIZES, SIZES)
def test_larger_sizes_never_read_smaller(one: int, other: int) -> None:
    for smaller, larger in (sorted((one, other)), (one, one + 1)):
        assert parse_size(format_size(smaller)) <= parse_size(format_size(larger))


@given(SIZES)
def test_the_sign_is_kept(size: int) -> None:
    assert format_size(-size) == (f"-{format_size(size)}" if size else "0 bytes")


@pytest.mark.parametrize(
    ("size", "printed"),
    [
        (0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1536, "1.50 KiB"), (57 * MIB, "57.00 MiB"),
        (3_983_588_884, "3.71 GiB"), (MIB, "1.00 MiB"), (2048 * GIB, "2048.00 GiB"), (-MIB, "-1.00 MiB"),
    ],
)  # fmt: skip
def test_printed_as_pytorch_prints(size: int, printed: str) -> None:
    assert format_size(size) == printed


@pytest.mark.parametrize(
    "text", ["", "MiB", "12 parsecs", "-5", "1e9", "1,5GiB", "\u0663MiB", "0x10", "5 Mi B", "nan"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "99999999999999999999G", "8388608.0TiB"])
def test_what_is_larger_than_all_memory(text: str) -> None:
    with pytest.raises(UsageError, match="is too large"):
        parse_size(text)
    assert parse_size("9223372036854775807") == 2**63 - 1


@pytest.mark.parametrize(
    ("nanoseconds", "printed"),
    [
        (0, "0 ns"), (812, "812 ns"), (1000, "1.00 us"), (999.6, "1.00 us"), (23_100, "23.1 us"), (471e6, "471 ms"),
        (999_400_000, "999 ms"), (999_600_000, "1.00 s"), (1.238e9, "1.24 s"), (9.996e9, "10.0 s"), (5e12, "5,000 s"),
    ],
)  # fmt: skip
def test_durations_have_three_digits(nanoseconds: float, printed: str) -> None:
    assert format_duration(nanoseconds) == printed


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 holes are"), (1, "1 hole is"), (2, "2 holes are")]
)
def test_words_agree_with_their_number(number: int, words: str) -> None:
    assert f"{counted(number, 'hole')} {agreeing(number, 'is', 'are')}" == words


def test_the_first_words_and_how_many_more_there_are() -> None:
    assert first_of(["a", "b", "c"], 3) == "a, b, c"
    assert first_of(range(1500), 2) == "0, 1 and 1,498 more"
    assert first_of([], 2) == ""
