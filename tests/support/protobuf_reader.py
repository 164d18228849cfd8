"""Reads protobuf bytes by the encoding's rules alone: fields as (number, value), in order; the
tests' own decoder.
"""

from __future__ import annotations

from collections.abc import Iterator


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers for varints, bytes for what has a length."""
    at = 0
    while at < len(data):
        key, at = varint_at(data, at)
        number, kind = key >> 3, key & 7
        assert number > 0
        if kind == 0:
            value, at = varint_at(data, at)
            yield number, value
        else:
            assert kind == 2, f"wire type {kind} is never written"
            size, at = varint_at(data, at)
            assert at + size <= len(data)
            yield number, data[at : at + size]
            at += size


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends."""
    value = 0
    for place in range(10):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise AssertionError("a varint of more than ten bytes")


def one(data: bytes) -> dict[int, int | bytes]:
    """The fields of a message in which none repeats."""
    found = list(fields(data))
    assert len({number for number, _ in found}) == len(found)
    return dict(found)
