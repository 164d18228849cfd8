"""A refused request as its message tells of it: the evidence that headline and findings rest on."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.analyses.error_text.message_sums import ProcessShares
from vramlens.read.oom.oom_text import OomMessage
from vramlens.units import format_size


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused request.

    Attributes:
        wall: what refused it.
        short_bytes: what it lacked; None where the text does not tell.
        slack_bytes: by how much rounding may move that.
        owners: who holds what of the device.
    """

    message: OomMessage
    wall: str
    short_bytes: int | None
    slack_bytes: int
    owners: ProcessShares

    @property
    def shortage(self) -> str:
        """``at least about 1.50 GiB``: what it lacked; "" where the text does not tell."""
        if self.short_bytes is None:
            return ""
        at_least = "at least " if self.message.cut else ""
        return f"{at_least}{about(self.short_bytes, self.slack_bytes)}"

    @property
    def largest_other(self) -> tuple[int, int]:
        """The process that holds most beside this one, and its bytes; there has to be one."""
        return max(self.owners.others, key=lambda other: other[1])


def about(size_bytes: int, slack_bytes: int) -> str:
    """A sum of printed figures, that it is rough where rounding is a large part of it."""
    return f"{'about ' if slack_bytes * 50 > size_bytes else ''}{format_size(size_bytes)}"
