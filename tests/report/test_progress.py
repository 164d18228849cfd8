"""The progress bar: for people, and only when it takes a while."""

import io

from vramlens.report import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def read_in(stream, monkeypatch, seconds):
    clock = iter(range(0, 1000, seconds)) if seconds else iter(lambda: 0, 1)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.reading_progress("reading", stream) as show:
        for share in (0.1, 0.5, 0.9):
            show(share)
    return stream.getvalue()


def test_shows_after_a_second(monkeypatch):
    assert "reading" in read_in(Terminal(), monkeypatch, 2)


def test_shows_nothing_when_it_is_quick(monkeypatch):
    assert read_in(Terminal(), monkeypatch, 0) == ""


def test_shows_nothing_when_nobody_watches(monkeypatch):
    assert read_in(io.StringIO(), monkeypatch, 2) == ""
