"""What an error's text leaves open: only a recording or a look at the machine can tell."""

from __future__ import annotations

from vramlens.analyses.error_text.libraries import FOREIGN
from vramlens.analyses.error_text.message_sums import Owners
from vramlens.analyses.error_text.no_memory import NOT_MEMORY
from vramlens.read.oom_text import OomMessage


def unknowns_of(
    message: OomMessage, wall: str, owners: Owners, hint: str | None
) -> tuple[str, ...]:
    """What only a recording or a look at the machine can tell."""
    if wall == "host" or message.kind in NOT_MEMORY:
        where = "Which line of the program asked for it is in the traceback, not in this message."
        return (where,) if message.frame is None else ()
    if message.kind in FOREIGN:
        return ("What else was on the GPU at that moment is not printed.",)
    sentences = (
        ["Part of the message is missing: it breaks off before its end."] if message.cut else []
    )
    sentences += [
        "Why this much was live (growth, one large step, or simply its size) takes a recording."
    ]
    if message.live_bytes is None:
        sentences.append(
            "How much PyTorch held, and how much of that lay in holes, is not printed."
        )
    if hint == "undecided":
        sentences.append(
            "The sizes of the holes, and whether expandable_segments was already on, are not printed."
        )
    if owners.how == "unclear":
        sentences.append(
            "One of the listed processes may be this one (a container hides that), so the others' share is open."
        )
    if owners.how == "inferred":
        sentences.append(
            "The process that holds as much as PyTorch reserved is taken to be this one (a container hides it)."
        )
    if message.hidden_processes:
        sentences.append(
            f"The driver would not tell the size of {message.hidden_processes} process(es) (WSL, Windows, MIG)."
        )
    elif owners.own_bytes is None and message.total_bytes is not None and owners.how != "unclear":
        sentences.append(
            "What this process holds outside PyTorch, and what others hold, is not printed."
        )
    return tuple(sentences)
