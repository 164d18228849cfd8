"""One row of the doctor's findings."""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("problem", "note", "unknown", "ok")
"""The worst first."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One thing that was looked at.

    Attributes:
        name: what it is, in a word or two.
        state: "ok"; "note" (worth knowing, nothing is broken), "problem" (something will not work)
            or "unknown".
        text: what was found, in one plain sentence.
        do: what to do about it; empty where there is nothing to do.
    """

    name: str
    state: str
    text: str
    do: str = ""
