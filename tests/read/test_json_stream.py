"""JSON piece by piece: the same values as the standard library reads, whatever the window cuts."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramlens.errors import UnsafeInput
from vramlens.read import json_stream
from vramlens.read.json_stream import JsonStream, Malformed

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text()
)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4)
)


@pytest.fixture(params=[1, 2, 7, 64, 1 << 22])
def block(request, monkeypatch):
    monkeypatch.setattr(json_stream, "_BLOCK", request.param)
    return request.param


@given(
    st.lists(st.dictionaries(st.text(max_size=5), values, max_size=4), max_size=5),
    st.sampled_from([None, 1]),
)
def test_reads_what_json_reads(block_sizes, indent):
    for size in (1, 3, 1 << 16):
        json_stream._BLOCK, before = size, json_stream._BLOCK
        try:
            text = json.dumps(block_sizes, indent=indent)
            assert list(JsonStream(io.BytesIO(text.encode())).elements()) == block_sizes
        finally:
            json_stream._BLOCK = before


def test_members_and_numbers_at_the_window_edge(block):
    stream = JsonStream(io.BytesIO(b'{"a": 1234567890, "b": -1.5e10 , "c": true,"d":"x"}'))
    found = {}
    for key in stream.members():
        found[key] = stream.value()
    assert found == {"a": 1234567890, "b": -1.5e10, "c": True, "d": "x"}


def test_a_mark_and_bytes_that_are_no_utf8(block):
    stream = JsonStream(io.BytesIO(b'\xef\xbb\xbf["\xff\xc3\xa9"]'))
    assert list(stream.elements()) == ["�é"]


def test_rewound_gives_every_byte_again(block):
    data = b'{"level": "error"}\n{"message": "CUDA out of memory"}\n' * 50
    stream = JsonStream(io.BytesIO(data))
    for _ in stream.members():
        stream.value()
    assert stream.rewound().read() == data


@pytest.mark.parametrize("text", ['{"a": 1', '{"a"', '{"a":', "{", "", '{"a": 1}}x'[:7]])
def test_the_end_is_told_from_a_mistake(text):
    stream = JsonStream(io.BytesIO(text.encode()))
    with pytest.raises(Malformed) as caught:
        [stream.value() for _ in stream.members()]
    assert caught.value.ended


def test_a_mistake_is_told_at_once(monkeypatch):
    reads = []

    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def read(self, size=-1):
            reads.append(size)
            return b"[rank0]: error " * 1000

    with pytest.raises(Malformed) as caught:
        list(JsonStream(Endless()).elements())
    assert not caught.value.ended
    assert len(reads) < 400


def test_a_value_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(json_stream, "LARGEST_VALUE", 1 << 10)
    monkeypatch.setattr(json_stream, "_BLOCK", 256)
    with pytest.raises(Malformed, match="1,024"):
        JsonStream(io.BytesIO(b'"' + b"a" * 100_000)).value()


def test_depth_is_refused_not_recursed():
    with pytest.raises(UnsafeInput, match="deep"):
        JsonStream(io.BytesIO(b"[" * 200_000 + b"]" * 200_000)).value()
