"""Telling what an input holds: texts in their encodings, and what is no text."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import pytest

from vramlens.read.oom.oom_text import find_oom_messages
from vramlens.read.opened_source import open_source

ERROR = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 8.00 GiB of which 1.00 MiB is free."


def kind_of(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with open_source(path) as source:
        assert source.stream.read(1)
        return source.kind


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (ERROR.encode(), "text"),
        (ERROR.replace("GPU 1", "GPU \0").encode(), "text"),  # as PyTorch 2.2 prints GPU 0
        ("\x1b[31mSpeicher übergelaufen\x1b[0m\r\n".encode("latin-1"), "text"),
        ("память закончилась, ошибка\n".encode("cp1251") * 9, "text"),
        ("é".encode() * 5000, "text"),  # the head may end inside a letter
        (b'{"a": 1}', "json"),
        (b"\xef\xbb\xbf[1]", "json"),
        (b"\x80\x04}.", "pickle"),
        (bytes(4096), "binary"),
        (random.Random(1).randbytes(100_000), "binary"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0>\0\x01\0\0\0", "binary"),
        (ERROR.encode("utf-16"), "text"),
        (b"\xfe\xff" + ERROR.encode("utf-16-be"), "text"),
        ('{"a": 1}'.encode("utf-16"), "json"),
    ],
)
def test_the_first_bytes_tell_what_it_is(tmp_path: Path, content: bytes, kind: str) -> None:
    assert kind_of(tmp_path / "file", content) == kind
    assert kind_of(tmp_path / "file.gz", gzip.compress(content)) == kind


def test_programs_are_no_texts() -> None:
    with open_source(sys.executable) as source:
        assert source.kind == "binary"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read_as_utf_8_in_bounded_pieces(tmp_path: Path, encoding: str) -> None:
    text = "\N{BYTE ORDER MARK}" + "x \N{FIRE} ü\r\n" * 50_000 + ERROR
    path = tmp_path / "log.txt"
    path.write_bytes(text.encode(encoding) + b"\x41")  # and half a letter
    with open_source(path) as source:
        assert source.stream.read().decode() == text[1:] + "\N{REPLACEMENT CHARACTER}"
    with open_source(path) as source:
        (message,) = find_oom_messages(source.stream)
        assert message.device == 1
        assert source.position() == path.stat().st_size


def test_a_mark_alone_is_an_empty_text(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"\xff\xfe")
    with open_source(path) as source:
        assert (source.kind, source.stream.read()) == ("text", b"")
