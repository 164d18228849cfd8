"""The folder in which a process meets who attached to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramlens.attach.meeting_point import MeetingPoint
from vramlens.attach.target_process import TargetProcess
from vramlens.errors import InputError


@pytest.fixture
def place() -> Iterator[MeetingPoint]:
    """A meeting point of this process."""
    point = MeetingPoint(TargetProcess(os.getpid(), os.geteuid(), os.getegid(), "", ""))
    yield point
    point.close()


def test_a_file_lies_where_the_process_sees_it(place: MeetingPoint) -> None:
    path = Path(place.file_inside("sources", b"text"))
    assert path.read_bytes() == b"text"
    assert path.parent == place.folder


def test_a_link_that_is_there_already_is_not_followed(place: MeetingPoint, tmp_path: Path) -> None:
    (tmp_path / "private").write_bytes(b"private")
    (place.folder / "sources").symlink_to(tmp_path / "private")
    with pytest.raises(InputError, match="sources: it cannot be written: File exists"):
        place.file_inside("sources", b"text")
    assert (tmp_path / "private").read_bytes() == b"private"
