"""Cohorts beside each other: stages of a pipeline, or coordinates of experts and tensors, that
hold far more than the usual one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.causes import STAY, WORDS, Position, fix_of, only_grows
from vramlens.ranks.excess.leak_differences import leak_differences
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.excess.rank_differences import differences_beside_work
from vramlens.ranks.excess.stage_layout import LayoutBytes, StageLayout
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.rank_cohorts import GROUPS, RankCohorts
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_difference import LEAST_BYTES, STAGE_SHARE, RankDifference
from vramlens.ranks.rank_summary import LineUse, RankSummary
from vramlens.ranks.rank_words import named
from vramlens.units import agreeing, format_size

_Kind = tuple[bool, bool]
"""Whether a cohort trains, and whether it keeps nothing for a backward pass."""
_NO_LAYOUT = LayoutBytes(0, 0)


@dataclass(frozen=True, eq=False)
class CohortComparison:
    """Cohorts beside each other, by a typical rank of each.

    Attributes:
        ranks: all ranks, by number.
        cohorts: who does the same work.
        positions: of each rank.
    """

    ranks: Mapping[int, RankSummary]
    cohorts: RankCohorts
    positions: Mapping[int, Position]

    def differences(self) -> Iterator[RankDifference]:
        """Yields what a cohort holds more, for another reason than the layout of a pipeline; where
        memory is short, for this one, too.
        """
        for cohort in self._compared:
            yield from cohort.leaks
            yield from cohort.beside_work
            is_meant = cohort.members in self._late_keepers
            kept_bytes = cohort.beside.more_activations(cohort.places) if is_meant else 0
            if cohort.is_not_checkpointed and not is_meant:
                yield self._difference_of_checkpoints(cohort)
            elif cohort.has_more_layers:
                yield self._difference_of_layers(cohort)
            elif cohort.unexplained - kept_bytes >= cohort.least:
                yield self._difference_beside_layout(cohort)
            elif cohort.more >= cohort.least and self._is_short(cohort.members):
                yield self._difference_of_layout(cohort)

    def notes(self) -> list[str]:
        """Sentences on the stages that keep what earlier ones compute again, and on the stage that holds
        most by the layout, where that is not a difference.
        """
        return [*self._note_of_late_keepers(), *self._note_of_layout()]

    def _note_of_late_keepers(self) -> list[str]:
        if not self._late_keepers:
            return []
        ranks = sorted(chain.from_iterable(self._late_keepers))
        return [
            f"{named(ranks)} keep activations that earlier stages compute again: fewer"
            " microbatches are in flight there, so it may be meant"
        ]

    def _note_of_layout(self) -> list[str]:
        by_layout = [
            cohort
            for cohort in self._compared
            if cohort.members not in self._late_keepers
            and cohort.more >= cohort.least > cohort.unexplained
            and not cohort.has_more_layers
            and not self._is_short(cohort.members)
        ]
        if not by_layout:
            return []
        highest = max(by_layout, key=lambda cohort: cohort.more)
        verb = agreeing(len(highest.members), "holds", "hold")
        return [
            f"{named(highest.members)} {verb} {format_size(highest.more)} more than a typical stage"
            f" by the layout of the pipeline ({_parts(highest.layout)})"
        ]

    @cached_property
    def _typical(self) -> dict[tuple[int, ...], RankSummary]:
        """The rank with the median peak, by cohort."""
        typical = {}
        for members in self.cohorts.members:
            summaries = [self.ranks[rank] for rank in members]
            ordered = sorted(summaries, key=lambda summary: summary.peak_requested_bytes)
            typical[members] = ordered[(len(ordered) - 1) // 2]
        return typical

    @cached_property
    def _late_keepers(self) -> list[tuple[int, ...]]:
        """The last stages of a pipeline, two of them and more, if they compute nothing again and all
        earlier ones do; [] elsewhere. One alone may have been forgotten.
        """
        shares = [summary.recomputed_share for summary in self._typical.values()]
        has_other_parts = self.cohorts.source == GROUPS  # several cohorts may be of one stage
        if not self.cohorts.staged or has_other_parts or None in shares:
            return []
        keepers = [not share for share in shares]
        first = keepers.index(True) if any(keepers) else len(keepers)
        is_by_stage = first > 0 and all(keepers[first:]) and len(keepers) - first > 1
        late = list(self._typical)[first:] if is_by_stage else []
        return [members for members in late if not self._is_short(members)]

    @cached_property
    def _usual(self) -> Usual:
        return Usual(list(self._typical.values()))

    @cached_property
    def _layout(self) -> StageLayout:
        return StageLayout(list(self._typical.values()), self._usual)

    @cached_property
    def _compared(self) -> list[_Cohort]:
        return [self._cohort(members, summary) for members, summary in self._typical.items()]

    @cached_property
    def _alike(self) -> dict[_Kind, StageLayout]:
        """The cohorts that train, and those that do not or are frozen: these keep less. What keeps
        activations that others compute again is not usual.
        """
        return {
            kind: StageLayout(stages, Usual(self._checkpointed(stages) or stages))
            for kind, stages in self._kinds.items()
        }

    @cached_property
    def _kinds(self) -> dict[_Kind, list[RankSummary]]:
        kinds: dict[_Kind, list[RankSummary]] = defaultdict(list)
        for summary in self._typical.values():
            kinds[_kind_of(summary)].append(summary)
        return kinds

    def _checkpointed(self, stages: Sequence[RankSummary]) -> list[RankSummary]:
        """The stages but those that compute less again than others with the same layers."""
        return [
            stage
            for stage in stages
            if not self._beside_same_layers(stage, self.positions[stage.rank]).recomputes_less
        ]

    def _beside_same_layers(self, summary: RankSummary, position: Position) -> RankAgainstPeers:
        """A stage beside those of its kind with the same layers: an encoder's has others than a
        decoder's.
        """
        usual = self._by_layers[summary.rank].usual
        return RankAgainstPeers(summary, usual.beside(summary), position, ())

    @cached_property
    def _by_layers(self) -> dict[int, StageLayout]:
        """By rank, the stages of its kind that have most lines of one stage's layers; in one pass,
        as there may be thousands of cohorts.
        """
        layouts: dict[int, StageLayout] = {}
        for of_kind in self._kinds.values():
            alike: list[list[RankSummary]] = []
            for summary in of_kind:
                own_layers = self._layers[summary.rank]
                for stages in alike:
                    if 2 * len(own_layers & self._layers[stages[0].rank]) >= len(own_layers):
                        stages.append(summary)
                        break
                else:
                    alike.append([summary])
            for stages in alike:
                layout = StageLayout(stages, Usual(stages))
                layouts.update((stage.rank, layout) for stage in stages)
        return layouts

    @cached_property
    def _layers(self) -> dict[int, frozenset[Place | None]]:
        """By rank, the lines of its layers."""
        return {
            summary.rank: frozenset(
                line.place for line in summary.lines if line.phase == "forward" and not line.static
            )
            for summary in self._typical.values()
        }

    def _cohort(self, members: tuple[int, ...], summary: RankSummary) -> _Cohort:
        position = replace(self.positions[summary.rank], is_stage=self.cohorts.staged)
        beside = RankAgainstPeers(summary, self._usual.beside(summary), position, ())
        layout = self._alike[_kind_of(summary)]
        grown = leak_differences(beside, only_sure=len(members) == 1)
        leaks = [
            replace(leak, ranks=self._leaking(members, leak.place))
            for leak in (*grown, *beside.lone_leaks(grown))
        ]
        # A rank without peers is looked at nowhere else.
        is_of_work = self._layout.is_of_work if self.cohorts.staged else _is_none_of_work
        beside_work = (
            differences_beside_work(beside, leaks, is_of_work) if len(members) == 1 else []
        )
        of_lines = [difference for difference in (*leaks, *beside_work) if difference.place]
        places = {difference.place for difference in of_lines}
        alike = RankAgainstPeers(summary, layout.usual.beside(summary), position, ())
        more = alike.more - sum(difference.bytes for difference in of_lines)
        is_staged = self.cohorts.staged
        by_layout = layout.bytes_of(summary, places) if is_staged else _NO_LAYOUT
        same_layers = self._by_layers[summary.rank]
        layers = same_layers.layers_of(summary) if is_staged else 1.0
        of_layers = same_layers.bytes_of_layers(summary, places) if is_staged else 0
        beside_same = self._beside_same_layers(summary, position)
        return _Cohort(
            members=members,
            beside=alike,
            leaks=leaks,
            beside_work=beside_work,
            places=places,
            more=more,
            layout=by_layout,
            layers=layers,
            layer_bytes=of_layers,
            beside_same=beside_same,
        )

    def _leaking(self, members: Sequence[int], place: Place | None) -> tuple[int, ...]:
        """Those of some ranks that have something that grows at a line."""
        return tuple(rank for rank in members if _leaks_at(self.ranks[rank], place))

    def _is_short(self, members: Sequence[int]) -> bool:
        """True if one of some ranks ran out of memory, or nearly."""
        return any(self.ranks[rank].is_short for rank in members)

    def _difference_beside_layout(self, cohort: _Cohort) -> RankDifference:
        """What a cohort holds more beside its leaks, and not by the layout."""
        line = cohort.largest_line
        cause = "pipeline_stage" if self.cohorts.staged else "unknown"
        if line is not None and _is_of_experts(line):
            cause = "moe_hot_rank"
        more = cohort.unexplained
        if 2 * cohort.beside.wider_bytes >= more:
            cause = "wider_numbers"
        holds_half = line is not None and 2 * cohort.excess_of(line) >= more
        place = line.place if line is not None and holds_half else None
        return self._difference_from(cohort, cause, more, place)

    def _difference_of_checkpoints(self, cohort: _Cohort) -> RankDifference:
        """What a cohort keeps that others with the same layers compute again."""
        kept = cohort.kept_bytes
        difference = self._difference_from(cohort, "not_checkpointed", kept, None)
        peer = "a stage" if self.cohorts.staged else "ranks"
        beside = cohort.beside_same
        own_peak_bytes, usual_peak_bytes = beside.rank.peak_requested_bytes, beside.usual.peak_bytes
        return replace(
            difference,
            title=f"{WORDS[difference.cause]}: {format_size(kept)} more than {peer} with the same"
            " layers",
            evidence=(
                f"peak {format_size(own_peak_bytes)}; of those with the same layers"
                f" {format_size(usual_peak_bytes)} (median)",
            ),
        )

    def _difference_of_layers(self, cohort: _Cohort) -> RankDifference:
        """What a stage holds more because it has more layers."""
        difference = self._difference_from(cohort, "pipeline_stage", cohort.layer_bytes, None)
        size = format_size(cohort.layer_bytes)
        evidence = f"{cohort.layers:.2f} times as many layers as the usual stage"
        return replace(
            difference,
            title=f"holds more layers of the pipeline than the usual stage: {size}",
            evidence=(evidence, *difference.evidence),
        )

    def _difference_of_layout(self, cohort: _Cohort) -> RankDifference:
        """What a stage holds more by the layout, on devices that have no room for it."""
        layout = cohort.layout
        cause = "first_last_stage" if layout.at_end > layout.in_flight else "pipeline_stage"
        difference = self._difference_from(cohort, cause, cohort.more, None)
        evidence = f"by the layout of the pipeline: {_parts(layout)}"
        return replace(difference, evidence=(evidence, *difference.evidence))

    def _difference_from(
        self, cohort: _Cohort, cause: str, excess_bytes: int, place: Place | None
    ) -> RankDifference:
        """What a cohort holds more than a typical one, for a cause."""
        peer = "stage" if self.cohorts.staged else "ranks with other coordinates"
        own_peak_bytes, usual_peak_bytes = (
            cohort.beside.rank.peak_requested_bytes,
            cohort.beside.usual.peak_bytes,
        )
        return RankDifference(
            ranks=cohort.members,
            cause=cause,
            verdict=Verdict.POSSIBLE if cause == "unknown" else Verdict.LIKELY,
            bytes=excess_bytes,
            place=place,
            title=f"{WORDS[cause]}: {format_size(excess_bytes)} more than a typical {peer}",
            evidence=(
                f"peak {format_size(own_peak_bytes)}, typical {format_size(usual_peak_bytes)}",
            ),
            fix=fix_of(cause, None, excess_bytes),
        )


@dataclass(frozen=True, eq=False)
class _Cohort:
    """A cohort beside the usual one.

    Attributes:
        members: its ranks.
        beside: a typical one of them, beside those that train as it does, or are frozen as it is.
        leaks, beside_work: differences of single lines.
        places: these lines.
        more: how much more its peak is, beside these lines.
        layout: what of that is by the layout of a pipeline.
        layers: how many times as many layers it has as the usual stage.
        layer_bytes: what it holds because of those it has more.
        beside_same: the typical one beside those with the same layers.
    """

    members: tuple[int, ...]
    beside: RankAgainstPeers
    leaks: Sequence[RankDifference]
    beside_work: Sequence[RankDifference]
    places: Collection[Place | None]
    more: int
    layout: LayoutBytes
    layers: float
    layer_bytes: int
    beside_same: RankAgainstPeers

    @property
    def kept_bytes(self) -> int:
        """What its activations hold more because it does not compute them again, as others with
        the same layers do.
        """
        if not self.beside_same.recomputes_less:
            return 0
        return self.beside_same.more_activations(self.places)

    @property
    def least(self) -> float:
        """From how many more bytes on it is worth moving layers."""
        return max(STAGE_SHARE * self.beside.usual.peak_bytes, LEAST_BYTES)

    @property
    def unexplained(self) -> int:
        """What is neither of single lines, nor by the layout."""
        return self.more - min(max(0, self.more), self.layout.total)

    @property
    def has_more_layers(self) -> bool:
        """True if it has so many more layers that moving some of them is worth it; one that waits
        for fewer microbatches may hold more layers in as much memory.
        """
        return self.more >= self.beside.least and self.layer_bytes >= self.least

    @property
    def is_not_checkpointed(self) -> bool:
        """True if so much is worth telling."""
        return self.kept_bytes >= self.beside_same.least

    @property
    def largest_line(self) -> LineUse | None:
        """The line that holds most more than usual, of those without a difference of their own."""
        lines = (line for line in self.beside.rank.lines if line.place not in self.places)
        return max(lines, key=self.excess_of, default=None)

    def excess_of(self, line: LineUse) -> int:
        """How much more a line holds than usual."""
        return line.peak_bytes - self.beside.usual.line_bytes(line)


def _kind_of(summary: RankSummary) -> _Kind:
    return summary.trains, summary.is_frozen


def _is_none_of_work(_line: LineUse) -> bool:
    return False


def _leaks_at(summary: RankSummary, place: Place | None) -> bool:
    grown = any(leak.place == place for leak in summary.leaks)
    return grown or any(line.place == place and only_grows(line) for line in summary.lines)


def _parts(layout: LayoutBytes) -> str:
    parts = {
        "more microbatches in flight": layout.in_flight,
        "what only the first or the last stages do": layout.at_end,
    }
    return ", ".join(f"{name}: {format_size(size)}" for name, size in parts.items() if size)


def _is_of_experts(line: LineUse) -> bool:
    return bool(line.hints & Hint.EXPERTS) and line.category not in STAY
