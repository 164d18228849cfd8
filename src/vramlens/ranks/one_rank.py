"""One rank beside what is usual among its peers: why it holds more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.causes import STAY, WORDS, Position, cause_of, fix_of
from vramlens.ranks.difference import LEAST_BYTES, LEAST_SHARE, STAGE_SHARE, Difference
from vramlens.ranks.steps import StepPeaks
from vramlens.ranks.summary import Growth, LineUse, RankSummary, Stray
from vramlens.ranks.usual import Usual
from vramlens.units import MIB, format_size

_SPREADS = 5.0 * 1.4826
"""And so many times its peers' median distance from the usual: five standard deviations, were
they normal.
"""
_ENOUGH_PEERS, _LEAST_SPREAD = 8, 0.003
"""Of so many peers a line's own spread is known; and no spread is smaller than this share."""
_STAGES = ("pipeline_stage", "first_last_stage")
_BY_STEP = (
    "uneven_batch",
    "moe_hot_rank",
    "pipeline_stage",
    "uneven_shard",
    "embedding_shard",
    "unknown",
)
_BUILT_ONCE = ("parameters", "optimizer_state")
_SURE = ("map_location", "object_collective", "data_parallel", "full_state_dict", "rank0_gather")


class OneRank:
    """One rank beside what is usual among its peers."""

    def __init__(
        self, own: RankSummary, usual: Usual, position: Position, strays: Sequence[Stray]
    ) -> None:
        self.own, self.usual, self.position, self.strays = own, usual, position, strays
        self.is_among = len(usual.ranks) > 1  # of two, what is usual is the other one alone
        self.more = own.peak_requested_bytes - usual.peak_bytes
        self.least = max(LEAST_SHARE * usual.peak_bytes, LEAST_BYTES)
        self.differs = self.more >= max(self.least, _SPREADS * usual.spread_bytes)
        self.least_sure = max(LEAST_SHARE / 2 * usual.peak_bytes, LEAST_BYTES / 2)
        peers_died = all(_died(one) for one in usual.ranks)
        self.died_first = _died(own) and not peers_died
        self.outlived = peers_died and not _died(own)

    def differences(self) -> list[Difference]:
        """Why this rank holds more than is usual; [] where it does not."""
        found = []
        leak = self._leak()
        if leak is not None:
            found.append(leak)
        found += self._by_lines(leak)
        # What is reserved on top of what is held follows from it; alone it is a cause of its own.
        return [*found, *(() if found else self._allocator()), *self._outside()]

    def _leak(self) -> Difference | None:
        """A leak that most of its peers do not have."""
        for leak in self.own.leaks:
            # That no peer grows there tells it from a buffer that fills, also where few steps were
            # recorded.
            sure = leak.verdict in (Verdict.PROVEN, Verdict.LIKELY)
            least = (
                LEAST_BYTES / 4
                if sure
                else max(LEAST_BYTES, self.usual.peak_bytes * LEAST_SHARE / 2)
            )
            if leak.verdict == Verdict.NOT_A_PROBLEM or leak.bytes < least:
                continue
            others, same = len(self.usual.ranks), self.usual.leaking[leak.place]
            if self.is_among:
                others, same = others - 1, same - 1
            if same * 2 >= others and same:
                continue
            cause = self._cause_at(leak)
            return self._difference(
                cause,
                leak.verdict if sure else Verdict.LIKELY,
                leak.bytes,
                leak.place,
                [
                    f"{format_size(leak.bytes_per_step)} more after each of {leak.steps:,} steps; no peer grows there",
                ],
                leak.fix if cause == "leak" else None,
            )
        return None

    def _cause_at(self, leak: Growth) -> str:
        """What grows may be what was gathered."""
        for line in self.own.lines:
            if (
                line.place == leak.place
                and cause_of(line, self.usual.line(line), self.position) == "rank0_gather"
            ):
                return "rank0_gather"
        return "leak"

    def _by_lines(self, leak: Difference | None) -> list[Difference]:
        excess: dict[str, list[tuple[int, LineUse]]] = defaultdict(list)
        certain = alone = 0
        for line in self.own.lines:
            usual = self.usual.line(line)
            more = line.peak_bytes - (usual.peak_bytes if usual else 0)
            if more <= 0 or (leak is not None and line.place == leak.place):
                continue
            cause = self._cause(line, usual)
            if cause is None:
                continue
            excess[cause].append((more, line))
            certain += more if self._is_certain(line, usual, more) else 0
            alone += line.at_peak_bytes if usual is None and line.place is not None else 0
        # The peak of a rank is the sum of many lines' noise; single lines may stand out of their
        # own.
        if self.more < self.least_sure and alone < self.least:
            return []
        differs = self.differs or certain >= self.least
        total = max(self.more, alone)
        sums = {cause: sum(more for more, _ in lines) for cause, lines in excess.items()}
        found = [
            self._from_lines(cause, min(sums[cause], total), excess[cause])
            for cause in _SURE
            if sums.get(cause, 0) >= self.least_sure
        ]
        told = sum(one.bytes for one in found) + (leak.bytes if leak else 0)
        rest = total - told
        if not differs or rest < max(self.least if found else LEAST_BYTES, 0.3 * total):
            return found
        left = {
            cause: each
            for cause, each in sums.items()
            if cause not in _SURE and not self._is_echo(excess[cause])
        }
        if not left:
            return found
        cause = self._main_cause(left, excess)
        if not self._is_worth_it(cause, excess[cause]):
            return found
        return [*found, *self._bounded(cause, rest, excess)]

    def _bounded(
        self, cause: str, bytes_: int, excess: Mapping[str, list[tuple[int, LineUse]]]
    ) -> list[Difference]:
        """The main cause with no more bytes than its lines hold more at the peak; what they do
        not hold overlaps.
        """
        # More layers or a larger batch show on many lines, each with what looks like a cause of its
        # own.
        shown_on = excess if cause in _BY_STEP else (cause,)
        lines = [line for other in shown_on if other not in _SURE for _, line in excess[other]]
        alone = [line for line in lines if self.usual.line(line) is None and line.place is not None]
        apart = self._more_at_peak(alone) if cause != "rank_only" else 0
        explained = min(bytes_, self._more_at_peak(lines))
        differences = []
        if cause in _BY_STEP and min(apart, explained) >= self.least and apart < explained:
            only_here = [(more, line) for more, line in excess["rank_only"] if line in alone]
            if only_here:
                differences.append(self._from_lines("rank_only", apart, only_here))
                bytes_, explained = bytes_ - apart, explained - apart
        if explained >= self.least or 2 * explained >= bytes_:
            differences.insert(0, self._from_lines(cause, explained, excess[cause]))
            bytes_ -= explained
        if bytes_ >= max(self.least, 0.3 * self.more):
            differences += self._overlap(bytes_)
        return differences

    def _more_at_peak(self, lines: Iterable[LineUse]) -> int:
        """What some lines hold at this rank's peak beyond what they hold at a typical rank's."""
        return sum(max(0, self._line_more_at_peak(line)) for line in lines)

    def _line_more_at_peak(self, line: LineUse) -> int:
        return line.at_peak_bytes - self.usual.line_at_peak_bytes(line)

    def _overlap(self, bytes_: int) -> list[Difference]:
        """Memory that its peers hold as well, but never at one moment."""
        ranked = sorted(self.own.lines, key=self._line_more_at_peak, reverse=True)
        evidence = [
            f"+{format_size(more)} at {line.place or 'no recorded line'} at the peak; at most"
            f" {format_size(line.peak_bytes)} at once on this rank, {format_size(self.usual.line_bytes(line))} usual"
            for line in ranked[:3]
            if (more := self._line_more_at_peak(line)) > 0
        ]
        place = next(
            (line.place for line in ranked[:1] if 2 * self._line_more_at_peak(line) >= bytes_), None
        )
        return [self._difference("overlap", Verdict.LIKELY, bytes_, place, evidence, None)]

    def _cause(self, line: LineUse, usual: LineUse | None) -> str | None:
        """Why a line holds more; None where it does because one rank died and the other went on.

        Of a rank that ran out of memory what came after is not there: it has fewer allocations, and
        lines that it never came to. How large an allocation is can be compared all the same.
        """
        if self.outlived and (usual is None or line.mean_bytes <= usual.mean_bytes):
            return None
        if self.died_first and usual is not None and line.allocations < usual.allocations:
            return "uneven_batch" if line.mean_bytes > usual.mean_bytes else None
        return cause_of(line, usual, self.position)

    def _is_certain(self, line: LineUse, usual: LineUse | None, more: int) -> bool:
        """Whether a line holds more than chance makes it: chance does nothing to what is built
        once, or by one rank.
        """
        if usual is None or not usual.peak_bytes:
            return line.place is not None
        if line.category in STAY or line.static:
            return more > max(
                _SPREADS * self.usual.line_spread(line), LEAST_SHARE / 4 * usual.peak_bytes
            )
        return len(self.usual.ranks) >= _ENOUGH_PEERS and more > _SPREADS * max(
            self.usual.line_spread(line), _LEAST_SPREAD * usual.peak_bytes
        )

    def _is_worth_it(self, cause: str, lines: Sequence[tuple[int, LineUse]]) -> bool:
        """Whether to act on a difference: not where sizes vary and this rank had the largest by
        chance, nor where stages of a pipeline differ as they do by nature.
        """
        if self.position.sends and (
            cause in _STAGES or (cause in _BY_STEP and self.position.unlike)
        ):
            return self.more >= STAGE_SHARE * self.usual.peak_bytes
        _, largest = max(lines, key=lambda pair: pair[0])
        if cause in _BY_STEP and not (largest.static and largest.category in _BUILT_ONCE):
            steps = self.usual.steps if self.is_among else StepPeaks([self.own, *self.usual.ranks])
            return not steps.is_chance(self.own, self.least)
        return True

    def _main_cause(
        self, left: Mapping[str, int], excess: Mapping[str, list[tuple[int, LineUse]]]
    ) -> str:
        """Of the causes that show on many lines, the one that explains the others."""
        stages = sum(
            more for more, line in excess.get("pipeline_stage", []) if line.category in STAY
        )
        if stages > max(0.1 * self.more, 0):
            return "pipeline_stage"  # more layers have more activations, too
        return max(left, key=lambda cause: (left[cause], cause != "unknown"))

    def _is_echo(self, lines: list[tuple[int, LineUse]]) -> bool:
        """Whether this is what a peer put on this rank's device, seen from the one whose device
        it is.
        """
        more = sum(each for each, _ in lines)
        strays = [stray for stray in self.strays if stray.device == self.own.device]
        places = {line.place for _, line in lines}
        return any(
            abs(more - stray.reserved_bytes) <= 2 * MIB + stray.reserved_bytes // 100
            and stray.place in places
            for stray in strays
        )

    def _from_lines(self, cause: str, bytes_: int, lines: list[tuple[int, LineUse]]) -> Difference:
        ranked = sorted(
            lines, key=lambda pair: (self._line_more_at_peak(pair[1]), pair[0]), reverse=True
        )
        place = next((line.place for _, line in ranked if line.place is not None), None)
        evidence = [
            f"+{format_size(more)} at {line.place or 'no recorded line'} ({_how(line, self.usual.line(line))})"
            for more, line in ranked[:3]
        ]
        if cause == "uneven_batch":
            evidence += self._leveled(lines)
        sure = (
            cause in _SURE
            or cause == "rank_only"
            or (cause == "uneven_batch" and bytes_ * 2 >= self.more)
        )
        verdict = (
            Verdict.PROVEN if sure else Verdict.POSSIBLE if cause == "unknown" else Verdict.LIKELY
        )
        return self._difference(cause, verdict, bytes_, place, evidence, None)

    def _leveled(self, lines: list[tuple[int, LineUse]]) -> list[str]:
        """What the batches of all would be, and the highest peak, if the ranks shared the work
        evenly.
        """
        pairs = [(line, usual) for _, line in lines if (usual := self.usual.line(line)) is not None]
        own = sum(line.total_bytes for line, _ in pairs)
        usual_bytes = sum(usual.total_bytes for _, usual in pairs)
        if own <= usual_bytes or not usual_bytes:
            return []
        ratio, world = own / usual_bytes, max(2, len(self.usual.ranks))
        even = (world - 1 + ratio) / world
        peak = self.usual.peak_bytes + self.more // world
        return [
            f"leveled (estimated): {even / ratio:.0%} of the batch it has now for rank {self.own.rank} and {even:.0%}"
            f" for the others, as many samples in all; the highest peak falls to about {format_size(peak)}"
        ]

    def _allocator(self) -> list[Difference]:
        """Memory that is reserved beyond what peers with the same allocations reserve."""

        usual, spread = self.usual.gap
        reserved = self.usual.reserved_bytes
        gap = self.own.peak_reserved_bytes - self.own.peak_allocated_bytes
        more = gap - usual
        # A rank that holds less than its peers has a wider gap under the same reserved memory.
        wider = self.own.peak_reserved_bytes - reserved
        if (
            min(more, 2 * wider) < max(0.1 * reserved, 64 * MIB, _SPREADS * spread)
            or more < self.more
        ):
            return []
        evidence = [f"reserved beyond allocated: {format_size(gap)}, usual {format_size(usual)}"]
        return [self._difference("allocator", Verdict.PROVEN, more, None, evidence, None)]

    def _outside(self) -> list[Difference]:
        """Memory outside of PyTorch's allocator, where the driver was asked."""
        found = []
        own, usual_ledger = dict(self.own.ledger), self.usual.ledger
        if not own or not usual_ledger:
            return []
        strays = any(stray.device == self.own.device for stray in self.strays)
        for kind, cause, verdict in (
            ("nccl", "nccl", Verdict.PROVEN),
            ("this_process_other", "nccl", Verdict.POSSIBLE),
            ("other_processes", "other_process", Verdict.PROVEN),
        ):
            usual = usual_ledger.get(kind, 0)
            more = own.get(kind, 0) - usual
            if more < max(0.1 * usual, 64 * MIB) or (kind == "other_processes" and strays):
                continue
            evidence = [f"{kind}: {format_size(own.get(kind, 0))}, usual {format_size(usual)}"]
            if kind == "this_process_other":
                evidence.append(
                    "CUDA context, loaded kernels, NCCL and other libraries cannot be told apart here"
                )
            found.append(self._difference(cause, verdict, more, None, evidence, None))
        return found

    def _difference(
        self,
        cause: str,
        verdict: Verdict,
        bytes_: int,
        place: Place | None,
        evidence: list[str],
        fix: str | None,
    ) -> Difference:
        title = f"{WORDS[cause]}: {format_size(bytes_)} more than its peers"
        about = f"peak {format_size(self.own.peak_requested_bytes)}, usual {format_size(self.usual.peak_bytes)}"
        return Difference(
            ranks=(self.own.rank,),
            cause=cause,
            verdict=verdict,
            bytes=bytes_,
            place=place,
            title=title,
            evidence=(*evidence, about),
            fix=fix or fix_of(cause, place, bytes_),
        )


def _died(one: RankSummary) -> bool:
    return one.failure is not None and one.failure.died


def _how(line: LineUse, usual: LineUse | None) -> str:
    """In what way a line differs from the usual."""
    if usual is None or not usual.peak_bytes:
        return "no peer has it"
    if abs(line.allocations - usual.allocations) > 0.02 * usual.allocations:
        return f"{line.allocations:,} allocations, usual {usual.allocations:,}"
    if abs(line.mean_bytes - usual.mean_bytes) > 0.02 * usual.mean_bytes:
        return f"as many allocations, {line.mean_bytes / max(1.0, usual.mean_bytes):.2f} times as large"
    return "as many and as large, but more of them alive at once"
