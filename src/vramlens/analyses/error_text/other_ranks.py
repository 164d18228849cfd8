"""The other ranks that a log says ran out of memory, too, beside the one that is explained: who,
and how much each.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.read.oom.oom_text import OomMessage
from vramlens.units import agreeing, format_size, joined

_MOST_RUNS = 6


def others_failed(message: OomMessage, messages: Sequence[OomMessage]) -> str:
    """``Also failed: GPU 0 to 6 (ranks 0 to 6), 50.00 to 56.00 MiB each``; "" where the log names
    no other.

    Who failed first is said where every failure has its date and time on its line, each happened
    once, and one is earlier than all others.
    """
    alike = _alike(message, messages)
    size_by_rank = {
        _who(other): other.tried_bytes
        for other in alike
        if other.tried_bytes is not None and _name(other) is not None
    }
    ranks = set(size_by_rank)
    if size_by_rank.pop(_who(message), None) is None or not size_by_rank:
        return ""
    first = _first([other for other in alike if _who(other) in ranks])
    in_log = f"; the first according to the log: {first}" if first else ""
    return (
        f"Also failed: {_names(list(size_by_rank))}, {_range(list(size_by_rank.values()))}{in_log}"
    )


def _alike(message: OomMessage, messages: Sequence[OomMessage]) -> list[OomMessage]:
    kind, verdict = message.kind, message.verdict
    return [other for other in messages if other.kind == kind and other.verdict == verdict]


def _who(message: OomMessage) -> tuple[int | None, int | None]:
    return message.rank, message.device


def _name(message: OomMessage) -> str | None:
    """The rank, else the GPU; None where neither is printed."""
    if message.rank is not None:
        return f"rank {message.rank}"
    return f"GPU {message.device}" if message.device is not None else None


def _names(who: list[tuple[int | None, int | None]]) -> str:
    """The GPUs and ranks; a GPU's number is that of its machine, so several ranks may have the
    same.
    """
    ranks = sorted({rank for rank, _ in who if rank is not None})
    devices = sorted({device for _, device in who if device is not None})
    by_rank = ""
    if ranks:
        by_rank = f"{agreeing(len(ranks), 'rank', 'ranks')} {_runs(ranks)}"
    if not devices:
        return by_rank
    by_device = f"GPU {_runs(devices)}"
    return f"{by_device} ({by_rank})" if by_rank else by_device


def _runs(numbers: list[int]) -> str:
    """``0 to 6``, ``0, 2 and 5``: numbers that follow each other as one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if run[-1] > run[0] + 1 else map(str, run)
    if len(words) > _MOST_RUNS:
        return f"{', '.join(words[:_MOST_RUNS])} and more, {len(numbers)} in all"
    return joined(words)


def _range(sizes: list[int]) -> str:
    smallest, largest = format_size(min(sizes)), format_size(max(sizes))
    suffix = " each" if len(sizes) > 1 else ""
    if smallest == largest:
        return f"{smallest}{suffix}"
    return f"{smallest.removesuffix(largest[largest.rindex(' ') :])} to {largest}{suffix}"


def _first(messages: list[OomMessage]) -> str:
    """Who the log's times say came first, and when; "" where they do not say."""
    times = [message.logged_at for message in messages]
    have_one_format = all(times) and len({len(time) for time in times}) == 1
    if not have_one_format or len({_who(entry) for entry in messages}) < len(messages):
        return ""
    if any(message.count > 1 for message in messages) or times.count(min(times)) > 1:
        return ""
    first = min(messages, key=lambda message: message.logged_at)
    return f"{_name(first)}, at {first.logged_at}"
