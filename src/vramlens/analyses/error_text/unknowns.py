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
    sentences = ["The end of the message is missing."] if message.cut else []
    sentences += [
        "Only a recording shows why this much was in use (growth, one large step, or simply "
        "its size)."
    ]
    if message.live_bytes is None:
        sentences.append(
            "The message does not say how much PyTorch had reserved and how much of that was free."
        )
    if hint == "undecided":
        sentences.append(
            "The message does not print the sizes of the free blocks or whether "
            "expandable_segments was already on."
        )
    if owners.how == "unclear":
        sentences.append(
            "One of the listed processes may be this one (a container hides that), so the "
            "share of the others is unknown."
        )
    if owners.how == "inferred":
        sentences.append(
            "The process that uses as much as PyTorch reserved is assumed to be this one (a "
            "container hides that)."
        )
    if message.hidden_processes:
        sentences.append(
            f"The driver did not report the size of {message.hidden_processes} process(es) "
            "(WSL, Windows, MIG)."
        )
    elif owners.own_bytes is None and message.total_bytes is not None and owners.how != "unclear":
        sentences.append(
            "The message does not say how much this process uses outside PyTorch or how much "
            "others use."
        )
    return tuple(sentences)


def _unknown_line(text: str) -> str:
    """Why the line of the program is unknown."""
    if re.search(KILLED, text):
        return "A killed process prints no traceback, so the line of the program is unknown."
    return "The line of the program is in the traceback, not in this message."
