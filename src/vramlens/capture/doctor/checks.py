"""One row of the doctor's findings, and what a check says for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


class CheckOutcome(NamedTuple):
    """What a check says: a row without its name."""

    state: str
    text: str
    do: str = ""


def ok(text: str) -> CheckOutcome:
    """Says that all is well."""
    return CheckOutcome("ok", text)


def note(text: str, do: str = "") -> CheckOutcome:
    """Says what is worth knowing, though nothing is broken."""
    return CheckOutcome("note", text, do)


def problem(text: str, do: str = "") -> CheckOutcome:
    """Says what will not work."""
    return CheckOutcome("problem", text, do)


def unknown(text: str, do: str = "") -> CheckOutcome:
    """Says that it cannot be told."""
    return CheckOutcome("unknown", text, do)
