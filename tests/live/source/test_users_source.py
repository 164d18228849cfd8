"""The user's files are read as long as a search may take."""

from __future__ import annotations

from typing import Any

import pytest

from vramlens.live.source import users_source
from vramlens.live.source.source_stores import Module
from vramlens.live.source.users_source import UsersSource


def test_reading_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]

    def read_slowly(file: str) -> Module:
        seconds[0] += 0.5
        return Module(file, lines=[])

    monkeypatch.setattr(users_source, "read_source", read_slowly)
    monkeypatch.setattr(users_source, "thread_time", lambda: seconds[0])
    search: Any = None
    source = UsersSource(search)
    source._files = [f"{number}.py" for number in range(400)]
    assert len(list(source.modules())) == 5
    assert len(list(source.modules())) == 5
