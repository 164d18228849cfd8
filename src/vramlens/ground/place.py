"""A place: a line of the user's program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's program: the file as the recording names it, the line (from 1; 0:
    unknown), the function.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line} in {self.function}"
            if self.line
            else f"{self.file} in {self.function}"
        )
