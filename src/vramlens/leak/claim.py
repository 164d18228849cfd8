"""A leak in words, the same in every report: how much grows how fast, what keeps it, what to do,
and what that rests on.

The texts are as the leak has them: whoever prints them makes them visible.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramlens.ground.source_code import without_comment
from vramlens.ground.verdict import Verdict
from vramlens.leak.leak import Leak, LeakOwner
from vramlens.units import counted, format_size

_LONGEST_CHAIN = 12
"""Links that are shown, three lines of 80 characters: the first name the holder, the last what it has."""
_HELD_BY = "held by "
_KEEPERS = {
    "external": "no tensor uses it: a library (NCCL, cuBLAS), a CUDA context or another process"
    " does",
    "waiting": "it was freed, but another stream that is steps behind still uses it",
    "stream": "nothing keeps it, but no other stream or pool can use it",
    "pool": "nothing keeps it, but no other stream or pool can use it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakClaim:
    """A leak in words.

    Attributes:
        headline: how certain it is, how much grows how fast.
        owner: what keeps it, and how; empty where no owner can be seen.
        facts: what more is known of who keeps it and where it is allocated, one clause each.
        fix: what to do; empty where nothing needs doing.
        notes: what that rests on; the last says why no more is certain.
    """

    headline: str
    owner: str
    facts: tuple[str, ...]
    fix: str
    notes: tuple[str, ...]


def claim_of(leak: Leak, *, unseen: str, where: str = "", end: str = "") -> LeakClaim:
    """The words for a leak.

    Args:
        unseen: what to say of who keeps it where neither an owner nor its class tells.
        where: on which device, as an end of "1.00 MiB per step".
        end: what follows the headline: when memory is full.
    """
    allocated = _allocated(leak)
    if leak.owner is None:
        facts = (*allocated, _keeper_by_class(leak) or unseen)
    else:
        facts = (*_chain_words(leak.owner.chain), *allocated)
    return LeakClaim(
        headline=_headline(leak, f"{growth_words(leak, where)}{end}"),
        owner="" if leak.owner is None else owner_words(leak, leak.owner),
        facts=facts,
        fix=leak.advice or "",
        notes=tuple(notes_of(leak)),
    )


def _headline(leak: Leak, growth: str) -> str:
    """How certain it is, before how much grows; what takes the run nowhere is not cried out."""
    if leak.is_small:
        return f"Too small to matter: {growth} ({leak.verdict})"
    return f"LEAK {leak.verdict}: {growth}" if leak.sure else f"GROWTH, maybe a leak: {growth}"


def growth_words(leak: Leak, where: str = "") -> str:
    """How much grows how fast: ``1.00 MiB per step, 12.00 MiB so far in 12 steps``.

    Args:
        where: on which device, or at which line.
    """
    if _is_of_nodes(leak):
        return (
            f"its autograd graph grows{_nodes_per_step(leak)}{where}, {leak.nodes:,} nodes so far"
            " (host memory, no tensors)"
        )
    total = format_size(leak.bytes)
    outside = ", outside PyTorch" if leak.kind == "external" else ""
    if not leak.steps:
        return f"{total}{where} over the recording{outside}"
    return f"{_rate_words(leak)}{where}, {total} so far{_steps_words(leak)}{outside}"


def _nodes_per_step(leak: Leak) -> str:
    """By how many autograd nodes a step makes a graph longer; "" where that is no whole number."""
    nodes = round(leak.nodes / leak.steps)
    return f" by {counted(nodes, 'node')} per step" if nodes else ""


def _is_of_nodes(leak: Leak) -> bool:
    """Whether autograd nodes stay, whose backward pass has freed their tensors."""
    return leak.nodes > 0 and leak.steps > 0 and not leak.bytes_per_step


def _rate_words(leak: Leak) -> str:
    """How much a step leaves; in a recording, how much each time, where most steps leave nothing."""
    is_watched = leak.first_step is not None
    is_usual = is_watched and leak.owner is not None and leak.unit_steps == 1
    is_measured = bool(_steps_words(leak)) or (is_watched and not is_usual)
    return leak.rate_text if is_measured else f"about {leak.rate_text}"


def _steps_words(leak: Leak) -> str:
    """Of how many steps the bytes so far are, where that is the rate times them. A watch does not
    judge a program's first step, nor its last: what they left is among the bytes of a live leak.
    """
    if leak.is_rate_times_steps:
        return f" in {counted(leak.steps, 'step')}"
    is_watched = leak.first_step is not None and leak.owner is not None
    if is_watched and leak.unit_steps == 1 and leak.steps_of_bytes is not None:
        return f" in {counted(leak.steps_of_bytes, 'step')}"
    return ""


def owner_words(leak: Leak, owner: LeakOwner) -> str:
    """What keeps it and how: ``history, a list (train.py:41), keeps 1 tensor of every step``."""
    code = without_comment(owner.source)
    statement = f"{place_text(owner.file, owner.line)} {code}".strip()
    where = f" ({statement})" if statement else ""
    return f"{owner.name}, {with_article(owner.kind or 'holder')}{where}, {_keeps(leak)}"


def notes_of(leak: Leak) -> Iterator[str]:
    """Yields what the verdict rests on, and at last why no more is certain."""
    if leak.unit_steps == 1:
        yield from _range_of_rate(leak)
    yield from leak.evidence
    if leak.reason:
        doubt = "not proven: " if leak.sure else "not certain: "
        yield leak.reason if leak.verdict == Verdict.NOT_A_PROBLEM else doubt + leak.reason


def _range_of_rate(leak: Leak) -> Iterator[str]:
    if leak.low is not None and leak.high is not None and leak.low != leak.high:
        bounds = f"{format_size(leak.low)} to {format_size(leak.high)} per step"
        yield f"{bounds}, if at least half of the steps are considered"


def place_text(file: str, line: int, function: str = "") -> str:
    """``train.py:41 in step``, with the folder where that is not the present one."""
    if not file:
        return ""
    try:
        near = os.path.relpath(file)
    except (OSError, ValueError):  # the present folder is gone; another drive
        near = file
    number = f":{line}" if line else ""
    inside = f" in {function}" if function else ""
    return f"{file if near.startswith('..') else near}{number}{inside}"


def with_article(kind: str) -> str:
    """``a list``, ``an OrderedDict``."""
    begins_with_vowel = kind[:1].lower() in "aeiou" or kind.startswith("lru_")  # el-ar-you
    return f"{'an' if begins_with_vowel else 'a'} {kind}"


def _allocated(leak: Leak) -> tuple[str, ...]:
    """The line that asks for the memory, where that is not the owner's own."""
    owner = leak.owner
    is_owners = owner is not None and (leak.file, leak.line) == (owner.file, owner.line)
    if is_owners or not leak.file:
        return ()
    return (f"allocated at {place_text(leak.file, leak.line, leak.function)}",)


def _keeper_by_class(leak: Leak) -> str:
    """What keeps memory that no object does, by the leak's class; empty where that tells nothing."""
    is_waiting = leak.kind == "stream" and leak.is_freed
    return _KEEPERS.get("waiting" if is_waiting else leak.kind or "", "")


def _keeps(leak: Leak) -> str:
    if leak.kind == "exception":
        return "keeps exceptions: their tracebacks keep every variable of their frames"
    if not leak.steps:
        return "keeps it"
    steps = leak.bytes / leak.bytes_per_step if leak.bytes_per_step else leak.steps
    tensors = round(leak.storages / max(steps, 1))
    if leak.kind != "graph":
        steps_per_tensor = round(steps / leak.storages) if leak.storages else 1
        if leak.storages == 1 < steps_per_tensor:
            return "keeps 1 tensor, which is larger after every step"
        if steps_per_tensor > 1:
            return f"keeps 1 tensor of about every {steps_per_tensor} steps"
        how_often = "of every step" if _is_of_every_step(leak) else "per step on average"
        return f"keeps {counted(max(tensors, 1), 'tensor')} {how_often}"
    if not tensors:
        return f"its graph grows{_nodes_per_step(leak)} (host memory, no tensors)"
    freed = " (backward has freed the saved ones)" if leak.is_freed else ""
    return f"keeps the autograd graph of every step, each with {counted(tensors, 'tensor')}{freed}"


def _is_of_every_step(leak: Leak) -> bool:
    """Whether most steps left something, as far as a watch can tell; a recording counts no others."""
    if leak.first_step is None or leak.last_step is None:
        return True
    return 2 * leak.steps * leak.unit_steps > leak.last_step - leak.first_step + 1


def _chain_words(chain: Sequence[str]) -> tuple[str, ...]:
    """The way from a root, without the middle of a long one."""
    if not chain:
        return ()
    shown = list(chain)
    left_out = len(shown) - _LONGEST_CHAIN + 1
    if left_out > 1:
        half = _LONGEST_CHAIN // 2
        shown[half : 1 - half] = [f"... {left_out:,} more"]
    return (_HELD_BY + " > ".join(shown).removeprefix(_HELD_BY),)
