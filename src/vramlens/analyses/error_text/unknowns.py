"""What an error's text leaves open: only a recording or a look at the machine can tell."""

from __future__ import annotations

import re

from vramlens.analyses.error_text.host_memory import KILLED
from vramlens.analyses.error_text.libraries import FOREIGN
from vramlens.analyses.error_text.message_sums import ProcessShares
from vramlens.analyses.error_text.no_memory import NOT_MEMORY
from vramlens.read.oom.oom_text import OomMessage


def unknowns_of(
    message: OomMessage, wall: str, owners: ProcessShares, hint: str | None
) -> tuple[str, ...]:
    """What only a recording or a look at the machine can tell."""
    if wall == "host" or message.kind in NOT_MEMORY:
        return () if message.frame is not None else (_unknown_line(message.text),)
    if message.kind in FOREIGN:
        return ("The message does not say what else was on the GPU at that moment.",)
    others_unsaid = owners.own_bytes is None and message.total_bytes is not None
    sentences = (
        (message.cut, "The end of the message is missing."),
        (
            True,
            "Only a recording shows why this much was in use (growth, one large step, or simply "
            "its size).",
        ),
        (
            message.live_bytes is None,
            "The message does not say how much PyTorch had reserved and how much of that was free.",
        ),
        (
            hint == "undecided",
            "The message does not print the sizes of the free blocks or whether "
            "expandable_segments was already on.",
        ),
        (
            owners.how == "unclear",
            "One of the listed processes may be this one (a container hides that), so the "
            "share of the others is unknown.",
        ),
        (
            owners.how == "inferred",
            "The process that uses as much as PyTorch reserved is assumed to be this one (a "
            "container hides that).",
        ),
        (
            message.hidden_processes,
            f"The driver did not report the size of {message.hidden_processes} process(es) "
            "(WSL, Windows, MIG).",
        ),
        (
            others_unsaid and owners.how != "unclear" and not message.hidden_processes,
            "The message does not say how much this process uses outside PyTorch or how much "
            "others use.",
        ),
    )
    return tuple(sentence for applies, sentence in sentences if applies)


def _unknown_line(text: str) -> str:
    """Why the line of the program is unknown."""
    if re.search(KILLED, text):
        return "A killed process prints no traceback, so the line of the program is unknown."
    return "The line of the program is in the traceback, not in this message."
