"""What grows on one rank and not on its peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.causes import cause_of
from vramlens.ranks.excess.line_excess import LineExcess, bytes_of, more_at_peak
from vramlens.ranks.excess.lone_frames import is_of_lone_lines
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.rank_difference import LEAST_BYTES, LEAST_SHARE, RankDifference
from vramlens.ranks.rank_summary import LineUse, RankGrowth
from vramlens.units import format_size

_MOST_TOLD, _LARGE_PART = 3, 0.05
"""Lines of one leak, that are told; and what each holds of it."""
_MANY_STEPS = 100
"""That left something behind: what fills is full by then."""
_FEWEST_STEPS, _LARGE_LEAK = 5, 0.15
"""Of fewer, the steps of all and a part of the peak from which on a loop keeps what a model computed."""


def leak_differences(beside: RankAgainstPeers, *, only_sure: bool = False) -> list[RankDifference]:
    """The leaks that most of a rank's peers do not have: the first, and those that are sure.

    Args:
        beside: the rank beside its peers.
        only_sure: whether nobody does the same work, so that a leak that is only possible may be
            what fills.
    """
    differences: dict[Place | None, RankDifference] = {}
    for leak in beside.rank.leaks:
        is_sure = leak.verdict.is_sure or (only_sure and _goes_on(beside, leak))
        may_be_told = is_sure or not (differences or only_sure)
        is_new = leak.place not in differences and may_be_told
        if is_new and _is_worth_telling(beside, leak) and not _is_common(beside, leak):
            verdict = _verdict(leak, only_sure=only_sure)
            differences[leak.place] = _difference(beside, leak, verdict)
    return list(differences.values())


def _verdict(leak: RankGrowth, *, only_sure: bool) -> Verdict:
    """How sure it is beside the peers: that none grows there tells; where there are none, many steps do."""
    if leak.verdict.is_sure:
        return leak.verdict
    return Verdict.POSSIBLE if only_sure and leak.steps < _MANY_STEPS else Verdict.LIKELY


def _goes_on(beside: RankAgainstPeers, leak: RankGrowth) -> bool:
    """True if what is only possible is no buffer that fills: it grew for long, or each step of all kept
    much of what modules computed.
    """
    if leak.steps >= _MANY_STEPS:
        return True
    is_of_all_steps = _FEWEST_STEPS <= leak.steps >= len(beside.rank.step_peaks) - 2
    is_much = leak.bytes >= _LARGE_LEAK * beside.rank.peak_requested_bytes
    return is_of_all_steps and is_much and not leak.is_stored_data


def _is_worth_telling(beside: RankAgainstPeers, leak: RankGrowth) -> bool:
    is_problem = leak.verdict != Verdict.NOT_A_PROBLEM
    if not is_problem or is_of_lone_lines(leak, beside.rank, beside.usual):
        return False
    if leak.verdict != Verdict.PROVEN and _is_filling(beside, leak):
        return False
    # That no peer grows there tells it from a buffer that fills, also where few steps were
    # recorded.
    if leak.verdict.is_sure:
        return leak.bytes >= LEAST_BYTES / 4
    return leak.bytes >= max(LEAST_BYTES, beside.usual.peak_bytes * LEAST_SHARE / 2)


def _is_filling(beside: RankAgainstPeers, leak: RankGrowth) -> bool:
    """True if what grows holds no more than a rank's peers hold at the same line. Of one that is told at a
    caller, that line may hold next to nothing, and says nothing then.
    """
    lines = _lines_of(beside, leak)
    usual_bytes = sum(map(beside.usual.line_bytes, lines))
    held_bytes = sum(line.peak_bytes for line in lines)
    is_elsewhere = not leak.lines and 2 * held_bytes < leak.bytes
    return 0 < held_bytes <= usual_bytes and not is_elsewhere


def _is_common(beside: RankAgainstPeers, leak: RankGrowth) -> bool:
    """True if half of the other ranks grow there, too."""
    peers, leaking_peers = len(beside.usual.ranks), beside.usual.leaking[leak.place]
    if beside.is_among:
        peers, leaking_peers = peers - 1, leaking_peers - 1
    return leaking_peers * 2 >= peers and leaking_peers != 0


def _difference(beside: RankAgainstPeers, leak: RankGrowth, verdict: Verdict) -> RankDifference:
    cause = "rank0_gather" if _is_gathered(beside, leak) else "leak"
    excesses = [beside.excess(line) for line in beside.rank.lines if line.place in leak.places]
    leaked_bytes = leak.leaked_bytes(
        more_at_peak(excesses), bytes_of(excesses), len(beside.rank.step_peaks)
    )
    return beside.difference(
        cause,
        verdict,
        leaked_bytes,
        place=leak.place,
        evidence=[
            f"{leak.words(len(beside.rank.step_peaks))}; no peer grows there",
            *_words_of_lines(excesses, leaked_bytes),
            beside.part_of_peak(leaked_bytes),
        ],
        fix=leak.fix if cause == "leak" else None,
    )


def _words_of_lines(excesses: Sequence[LineExcess], leaked_bytes: int) -> list[str]:
    """The lines of which a leak is, the largest first, where it is of several; one phrase a line."""
    line_bytes = Counter[Place | None]()
    for excess in excesses:
        line_bytes[excess.line.place] += excess.at_peak_bytes
    large = [
        f"+{format_size(size)} at {place}"
        for place, size in line_bytes.most_common(_MOST_TOLD)
        if size >= _LARGE_PART * leaked_bytes
    ]
    return large if len(large) > 1 else []


def _is_gathered(beside: RankAgainstPeers, leak: RankGrowth) -> bool:
    """True if what grows is what was gathered."""
    causes = (
        cause_of(line, beside.usual.line(line), beside.position) for line in _lines_of(beside, leak)
    )
    return "rank0_gather" in causes


def _lines_of(beside: RankAgainstPeers, leak: RankGrowth) -> list[LineUse]:
    return [line for line in beside.rank.lines if line.place == leak.place]
