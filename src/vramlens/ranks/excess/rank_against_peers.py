"""One rank beside what is usual among its peers: why it holds more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from itertools import chain

from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.batches import are_of_larger_part
from vramlens.ranks.excess.cause_evidence import (
    explained_by,
    is_divided,
    may_be_kept,
    recomputes_less,
    told_of_lines,
    with_evidence,
)
from vramlens.ranks.excess.causes import (
    BY_STEP,
    CERTAIN_CAUSES,
    LARGER_PART,
    NOT_FROZEN,
    OF_ALL_LINES,
    POSSIBLE,
    SAME_SHARE,
    WORDS,
    Position,
    are_owned_experts,
    cause_of,
    fix_of,
    is_built_once,
    outlives_steps,
)
from vramlens.ranks.excess.line_excess import (
    LineExcess,
    bytes_of,
    echoes_stray,
    faults_of,
    is_kept_for_longer,
    lone_lines,
    more_at_peak,
    place_to_blame,
    without_told,
    without_training,
    words_of_lines,
)
from vramlens.ranks.excess.lone_frames import lone_frame, lone_places_of_leaks
from vramlens.ranks.excess.main_cause import OF_BATCHES, main_cause, sure_causes
from vramlens.ranks.excess.own_work import (
    difference_of_own_work,
    differences_of_other_work,
    lines_of_own_work,
)
from vramlens.ranks.excess.reasons.larger_part import words_of_larger
from vramlens.ranks.peers.steps_against_peers import PeerStepPeaks
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_difference import LEAST_BYTES, LEAST_SHARE, STAGE_SHARE, RankDifference
from vramlens.ranks.rank_summary import LineUse, RankSummary, Stray
from vramlens.units import format_size

SPREADS = 5.0 * 1.4826
"""And so many times its peers' median distance from the usual: five standard deviations, were
they normal.
"""
ENOUGH_PEERS, _LEAST_SPREAD = 8, 0.003
"""Of so many peers a line's own spread is known; and no spread is smaller than this share."""
OF_SIZE = ("uneven_batch", "larger_part", "larger_tensors", "embedding_shard", "uneven_shard")
"""Causes that are a larger size of the same."""
_STAGES = ("pipeline_stage", "first_last_stage")
_BUILT_ONCE = ("parameters", "optimizer_state")
_OF_LONE_LINES = ("leak", "rank_only")
_LEAST_PART = 0.3
"""What is left of a difference is told where it is more than this share of all of it."""
_OTHER_REQUESTS = 2
"""Times the steps of its peers: ranks that take turns with each other take as many."""
_Excesses = Mapping[str, Sequence[LineExcess]]
"""Lines that hold more, by the cause of it."""


class RankAgainstPeers:
    """One rank beside what is usual among its peers."""

    def __init__(
        self, rank: RankSummary, usual: Usual, position: Position, strays: Sequence[Stray]
    ) -> None:
        self.rank, self.usual, self.position = rank, usual, position
        self.is_among = len(usual.ranks) > 1  # of two, what is usual is the other one alone
        self.more = rank.peak_requested_bytes - usual.peak_bytes
        self.least = max(LEAST_SHARE * usual.peak_bytes, LEAST_BYTES)
        self.differs = self.more >= max(self.least, SPREADS * usual.spread_bytes)
        self.least_sure = max(LEAST_SHARE / 2 * usual.peak_bytes, LEAST_BYTES / 2)
        self.strays = strays  # of others, on this rank's device
        peers_died = all(peer.died for peer in usual.ranks)
        self.died_first = rank.died and not peers_died
        self.outlived = peers_died and not rank.died
        self.recomputes_less = rank.trains and recomputes_less(rank, usual)

    def line_differences(self, leaks: Sequence[RankDifference]) -> list[RankDifference]:
        """The differences of single lines beside those that leak, or are of what it trains: each
        sure cause, then the main one of those that show on many lines.
        """
        by_cause = self._excesses_by_cause({leak.place for leak in leaks})
        if any(leak.cause == NOT_FROZEN for leak in leaks):
            by_cause = without_training(by_cause)
        excesses = list(chain.from_iterable(by_cause.values()))
        own_work = lines_of_own_work(by_cause, self.rank)
        if own_work:
            return self._beside_own_work(own_work, by_cause)
        alone_bytes = self._bytes_alone(excesses)
        # The peak of a rank is the sum of many lines' noise; single lines may stand out of their
        # own.
        if self.more < self.least_sure and alone_bytes < self.least:
            return []
        total = max(self.more, alone_bytes)
        sure = self._sure_differences(by_cause, total, sure_causes(by_cause))
        told_causes = {difference.cause for difference in sure}
        by_cause = {cause: held for cause, held in by_cause.items() if cause not in told_causes}
        unexplained = total - sum(difference.bytes for difference in (*sure, *leaks))
        alone = self._lone_differences(unexplained, by_cause, leaks)
        unexplained -= sum(difference.bytes for difference in alone)
        told = [*sure, *alone]
        threshold = max(self.least if told else LEAST_BYTES, _LEAST_PART * total)
        left = [excess for excess in excesses if not (told and excess.is_alone)]
        if unexplained < threshold or not self._differs_surely(unexplained, left):
            return told
        calls = self._lone_calls(unexplained, excesses)
        causes = {difference.cause for difference in alone}
        return [*told, *(calls or self._by_main_cause(unexplained, by_cause, causes))]

    def _beside_own_work(
        self, own_work: Sequence[LineExcess], by_cause: _Excesses
    ) -> list[RankDifference]:
        """The work that this rank alone does, and what single calls hold beside it."""
        other = {
            cause: [excess for excess in excesses if excess not in own_work]
            for cause, excesses in by_cause.items()
        }
        work = difference_of_own_work(self.rank, own_work)
        return [work, *self._sure_differences(other, self.more)]

    def _lone_calls(
        self, excess_bytes: int, excesses: Iterable[LineExcess]
    ) -> list[RankDifference]:
        """What makes the peak higher though lines of all ranks hold it: they were called from where
        only this rank comes.
        """
        alone_bytes = more_at_peak(lone_lines(excesses))
        if self.position.sends or self.recomputes_less or 2 * alone_bytes >= excess_bytes:
            return []  # ranks may do other work, or lines of this rank alone explain it
        frame = lone_frame(
            self.rank, self.usual, lambda frame: frame.at_peak_bytes - alone_bytes, excess_bytes
        )
        if frame is None:
            return []
        size, place = format_size(frame.at_peak_bytes), frame.place
        evidence = [
            f"{size} of the peak are from calls at {place}, which no peer makes",
            self.part_of_peak(excess_bytes),
        ]
        verdict = Verdict.PROVEN
        return [self.difference("rank_only", verdict, excess_bytes, place=place, evidence=evidence)]

    def _bytes_alone(self, excesses: Iterable[LineExcess]) -> int:
        """What lines of this rank alone make its peak higher by: all that stays; what passes does
        so at a moment when other memory may be gone, so no more than its peak is higher.
        """
        alone = lone_lines(excesses)
        if self.more >= self.least_sure:
            alone = [excess for excess in alone if excess.stays]
        return more_at_peak(alone)

    def differences_of_calls(
        self, leaks: Sequence[RankDifference], is_of_work: Callable[[LineUse], bool]
    ) -> list[RankDifference]:
        """The differences of calls that give a cause away, and of lines of this rank alone that are
        no part of its work.
        """
        by_cause = self._excesses_by_cause({leak.place for leak in leaks})
        differences = self._sure_differences(by_cause, self.rank.peak_requested_bytes)
        alone = lone_lines(by_cause.get("rank_only", ()))
        beside_work = [excess for excess in alone if not is_of_work(excess.line)]
        excess_bytes = more_at_peak(beside_work)
        if excess_bytes >= self.least:
            differences.append(self.from_lines("rank_only", excess_bytes, beside_work))
        return differences

    def lone_leaks(self, leaks: Sequence[RankDifference]) -> list[RankDifference]:
        """The lines that no peer has and that only grow, where too few steps are there to judge."""
        by_cause = self._excesses_by_cause({leak.place for leak in leaks})
        return [
            self.from_lines("leak", excess.at_peak_bytes, [excess])
            for excess in lone_lines(by_cause.get("leak", ()))
            if excess.at_peak_bytes >= self.least
        ]

    def more_activations(self, leaving_out: Collection[Place | None]) -> int:
        """What lines that peers have, too, hold more at the peak, beside what is built once."""
        excesses = (
            self.excess(line)
            for line in self.rank.lines
            if not is_built_once(line) and line.place not in leaving_out
        )
        return more_at_peak(excess for excess in excesses if excess.usual is not None)

    @property
    def wider_bytes(self) -> int:
        """What numbers of twice the width hold more at the peak."""
        return more_at_peak(self._excesses_by_cause(set()).get("wider_numbers", ()))

    def _by_main_cause(
        self, excess_bytes: int, by_cause: _Excesses, told: Set[str]
    ) -> list[RankDifference]:
        """The main cause with no more bytes than its lines hold more at the peak; what they do
        not hold overlaps.
        """
        left = without_told(by_cause, told)
        own = {
            cause: excesses
            for cause, excesses in left.items()
            if not echoes_stray(excesses, self.strays)
        }
        cause = main_cause(own, self.more)
        other_work = differences_of_other_work(cause, own, self.rank, self.usual)
        if other_work:
            return other_work
        is_worth_it = not left if cause is None else self._is_worth_it(cause, left[cause])
        if not is_worth_it:
            return []
        explaining = () if cause is None else explained_by(cause, left)
        if cause == "unknown":  # so is what other lines hold for longer
            explaining = [*explaining, *self._longer_held(by_cause)]
        explained = min(excess_bytes, more_at_peak(explaining))
        differences = []
        if cause is not None and (explained >= self.least or 2 * explained >= excess_bytes):
            lines = explaining if cause == "unknown" else left[cause]
            differences.append(self.from_lines(cause, explained, lines))
            excess_bytes -= explained
        # Where batches vary, chance decides what falls together; a step that the peers died in is cut.
        is_told = not self.outlived and not self.steps().vary
        if is_told and excess_bytes >= max(self.least, _LEAST_PART * self.more):
            differences.append(self._overlap(excess_bytes))
        return differences

    def _longer_held(self, by_cause: _Excesses) -> list[LineExcess]:
        """The lines that hold no more than their peers' at most, but more at the peak."""
        higher = {excess.line for excess in chain.from_iterable(by_cause.values())}
        others = [self.excess(line) for line in self.rank.lines if line not in higher]
        return [excess for excess in others if excess.bytes <= 0 < excess.at_peak_bytes]

    def _sure_differences(
        self, by_cause: _Excesses, total: int, causes: Sequence[str] = CERTAIN_CAUSES
    ) -> list[RankDifference]:
        # What peers give back at once is never at their peak: all of what stays is more.
        sums = {
            cause: max(bytes_of(each for each in excesses if each.stays), more_at_peak(excesses))
            for cause, excesses in by_cause.items()
            if cause in causes
        }
        return [
            self.from_lines(cause, min(size, total), by_cause[cause])
            for cause, size in sums.items()
            if size >= self.least_sure
        ]

    def _differs_surely(self, excess_bytes: int, excesses: Sequence[LineExcess]) -> bool:
        """True if some bytes, or lines that chance does not move, would be a difference alone."""
        if self.differs and excess_bytes >= SPREADS * self.usual.spread_bytes:
            return True
        certain = list(filter(self._is_certain, excesses))
        shared_bytes = bytes_of(excess for excess in certain if not excess.is_alone)
        return shared_bytes + more_at_peak(lone_lines(certain)) >= self.least

    def _excesses_by_cause(self, leaking: Set[Place | None]) -> _Excesses:
        by_cause: dict[str, list[LineExcess]] = defaultdict(list)
        told = lone_places_of_leaks(leaking, self.rank, self.usual)
        for excess in map(self.excess, self.rank.lines):
            is_leak = excess.line.place in told
            cause = None if excess.bytes <= 0 or is_leak else self._cause(excess)
            if cause is not None:
                by_cause[cause].append(excess)
        evident = with_evidence(by_cause, self.rank, self.usual, self.position)
        return {
            cause: left
            for cause, excesses in evident.items()
            if (left := self._without_own_sizes(cause, excesses))
        }

    def _without_own_sizes(self, cause: str, excesses: list[LineExcess]) -> list[LineExcess]:
        """The lines but those that build what has another size on each rank."""
        if cause not in OF_SIZE:
            return excesses
        return [
            excess
            for excess in excesses
            if not (excess.line.static and self.usual.has_several_sizes(excess.line))
        ]

    def excess(self, line: LineUse) -> LineExcess:
        """What a line holds more on this rank."""
        usual = self.usual.line(line)
        return LineExcess(
            line=line,
            usual=usual,
            bytes=line.peak_bytes - (usual.peak_bytes if usual else 0),
            at_peak_bytes=line.at_peak_bytes - self.usual.line_at_peak_bytes(line),
        )

    def _cause(self, excess: LineExcess) -> str | None:
        """The reason why a line holds more; None where it does because one rank died and the other
        went on.

        Of a rank that ran out of memory what came after is not there: it has fewer allocations, and
        lines that it never came to. How large an allocation is can still be compared.
        """
        line, usual = excess.line, excess.usual
        if usual is None:
            # Which line is the first to need a library's workspace is chance.
            is_chance = self.outlived or line.category == "workspace"
            return None if is_chance else cause_of(line, None, self.position)
        is_larger = line.mean_bytes > (1 + SAME_SHARE) * usual.mean_bytes
        if self.outlived and not is_larger:
            return None
        if self.died_first and line.allocations < usual.allocations:
            return "uneven_batch" if is_larger else None
        cause = cause_of(line, usual, self.position)
        is_kept = self.recomputes_less and may_be_kept(cause, line, usual)
        return "not_checkpointed" if is_kept else cause

    def _is_certain(self, excess: LineExcess) -> bool:
        """True if a line holds more than chance makes it: chance does nothing to what is built
        once, or by one rank.
        """
        line, usual = excess.line, excess.usual
        if usual is None or not usual.peak_bytes:
            return line.place is not None
        spread = self.usual.line_spread(line)
        if is_built_once(line):
            return excess.bytes > max(SPREADS * spread, LEAST_SHARE / 4 * usual.peak_bytes)
        least_spread = _LEAST_SPREAD * usual.peak_bytes
        has_spread = len(self.usual.ranks) >= ENOUGH_PEERS
        return has_spread and excess.bytes > SPREADS * max(spread, least_spread)

    def _is_worth_it(self, cause: str, excesses: Sequence[LineExcess]) -> bool:
        """Whether a difference is worth acting on: not where sizes vary and this rank had the
        largest by chance, nor where stages of a pipeline differ as they do by nature.
        """
        shows_by_step = cause in BY_STEP
        is_stage = cause in _STAGES or (shows_by_step and self.position.unlike)
        largest = max(excesses, key=lambda excess: excess.bytes).line
        may_be_of_size = cause in OF_SIZE or (cause == "pipeline_stage" and largest.static)
        if may_be_of_size and self._has_size_of_its_own(largest):
            return False
        if self.position.sends and is_stage:
            is_chance = cause in OF_BATCHES and self.steps().is_chance(self.rank, self.least)
            return self.more >= STAGE_SHARE * self.usual.peak_bytes and not is_chance
        if cause == "uneven_shard" and is_divided(largest, self.usual):
            return self.more >= STAGE_SHARE * self.usual.peak_bytes  # so it is by nature
        if self._is_of_part(cause, excesses, largest, is_stage=is_stage):
            return False
        stays = largest.static and largest.category in _BUILT_ONCE
        if not shows_by_step or stays or is_kept_for_longer(self.excess(largest), self.more):
            return True
        is_why_it_died = self.died_first and self.steps().has_step_above_all(self.rank, self.least)
        return is_why_it_died or not self.steps().is_chance(self.rank, self.least)

    def _is_of_part(
        self, cause: str, excesses: Sequence[LineExcess], largest: LineUse, *, is_stage: bool
    ) -> bool:
        """True if this rank has another part of the work: requests, experts, or more of what is divided."""
        if self._serves_others() and not largest.static:
            return True
        if is_stage and are_owned_experts(largest) and not self.rank.is_short:
            return True
        is_larger = cause in (*OF_BATCHES, LARGER_PART)
        return is_larger and are_of_larger_part(excesses, self.rank, self.usual)

    def _has_size_of_its_own(self, line: LineUse) -> bool:
        """True if a line has another size on each rank, or on most: parts of what is not equal, or
        requests of each rank's own. Batches that vary from step to step have other sizes as well.
        """
        is_lasting = line.static or (outlives_steps(line) and not self.rank.trains)
        return (is_lasting or not self.steps().vary) and self.usual.has_several_sizes(line)

    def _serves_others(self) -> bool:
        """True if it trains nothing, and took far more or fewer steps than its only peer: each serves
        requests of its own.
        """
        own, usual = len(self.rank.step_peaks), self.usual.steps_count
        are_apart = max(own, usual) >= _OTHER_REQUESTS * max(1, min(own, usual))
        return are_apart and not (self.is_among or self.rank.trains or self.rank.died)

    def steps(self) -> PeerStepPeaks:
        if self.is_among:
            return self.usual.steps
        return PeerStepPeaks([self.rank, *self.usual.ranks])

    def _lone_differences(
        self, most_bytes: int, by_cause: _Excesses, leaks: Sequence[RankDifference]
    ) -> list[RankDifference]:
        """What lines of this rank alone hold: each a fault of its own, beside what leaks."""
        differences = []
        for cause in _OF_LONE_LINES:
            for alone in faults_of(lone_lines(by_cause.get(cause, ()))):
                excess_bytes = self._lone_bytes(alone, most_bytes)
                if leaks:  # a graph that is kept is of many lines, and leaks at one
                    excess_bytes = min(excess_bytes, most_bytes)
                if excess_bytes >= self.least and not echoes_stray(alone, self.strays):
                    differences.append(self.from_lines(cause, excess_bytes, alone))
                    most_bytes -= excess_bytes
        return differences

    def _lone_bytes(self, alone: Sequence[LineExcess], most_bytes: int) -> int:
        """What lines of this rank alone hold at the peak: all that stays; of what passes, no more
        than is left of what the peak is higher by.
        """
        staying_bytes = more_at_peak(excess for excess in alone if excess.stays)
        return max(staying_bytes, min(more_at_peak(alone), most_bytes))

    def _overlap(self, excess_bytes: int) -> RankDifference:
        """Memory that its peers hold as well, but never at one moment."""
        excesses = sorted(
            map(self.excess, self.rank.lines),
            key=lambda excess: excess.at_peak_bytes,
            reverse=True,
        )
        evidence = [
            f"+{format_size(excess.at_peak_bytes)} at {excess.place} at the peak; at most"
            f" {format_size(excess.line.peak_bytes)} at once on this rank,"
            f" {format_size(self.usual.line_bytes(excess.line))} on its peers"
            for excess in excesses[:3]
            if excess.at_peak_bytes > 0
        ]
        evidence.append(self.part_of_peak(excess_bytes))
        has_main_line = bool(excesses) and 2 * excesses[0].at_peak_bytes >= excess_bytes
        place = excesses[0].line.place if has_main_line else None
        return self.difference(
            "overlap", Verdict.LIKELY, excess_bytes, place=place, evidence=evidence
        )

    def from_lines(
        self, cause: str, excess_bytes: int, excesses: Sequence[LineExcess]
    ) -> RankDifference:
        if cause == "unknown" and self.steps().rises(self.rank):
            cause = "leak"
        ranked = sorted(
            excesses, key=lambda excess: (excess.at_peak_bytes, excess.bytes), reverse=True
        )
        evidence = words_of_lines(ranked)
        is_sure = cause in CERTAIN_CAUSES or cause == "rank_only"
        verdict = Verdict.POSSIBLE if cause in POSSIBLE else Verdict.LIKELY
        if cause == "uneven_batch":
            is_sure = excess_bytes * 2 >= self.more
        evidence += words_of_larger(cause, excesses, self.rank, self.usual)
        evidence.append(self.part_of_peak(excess_bytes))
        difference = self.difference(
            cause,
            Verdict.PROVEN if is_sure else verdict,
            excess_bytes,
            place=None if cause in OF_ALL_LINES else place_to_blame(ranked, excess_bytes),
            evidence=evidence,
        )
        is_recorded = cause == "unknown" and ranked[0].line.place is not None
        return told_of_lines(difference) if is_recorded else difference

    def difference(
        self,
        cause: str,
        verdict: Verdict,
        excess_bytes: int,
        *,
        evidence: list[str],
        place: Place | None = None,
        fix: str | None = None,
    ) -> RankDifference:
        return RankDifference(
            ranks=(self.rank.rank,),
            cause=cause,
            verdict=verdict,
            bytes=excess_bytes,
            place=place,
            title=f"{WORDS[cause]}: {format_size(excess_bytes)} more than its peers",
            evidence=tuple(evidence),
            fix=fix or fix_of(cause, place, excess_bytes),
        )

    @property
    def peaks(self) -> str:
        """Both peaks of requested memory, in words."""
        own, usual = self.rank.peak_requested_bytes, self.usual.peak_bytes
        return f"peak {format_size(own)}; its peers: {format_size(usual)} (median)"

    def part_of_peak(self, cause_bytes: int) -> str:
        """Both peaks; where they are apart by more than this cause, that is said."""
        if cause_bytes >= self.more or format_size(self.more) == format_size(cause_bytes):
            return self.peaks
        total, part = format_size(self.more), format_size(cause_bytes)
        return f"{self.peaks}; this explains {part} of the {total} more"
