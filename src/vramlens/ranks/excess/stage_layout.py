"""The layout of a pipeline: what a stage holds more than others by nature, and no fault of it.

The first stage has the embedding, the last one the head and its logits; and in 1F1B, the schedule
that most use, a stage has as many microbatches in flight as there are stages to come, and its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from vramlens.analyses.finding import Place
from vramlens.ranks.excess.causes import (
    BESIDE_TRAINING,
    SAME_SHARE,
    STAY,
    is_built_once,
    only_grows,
    outlives_steps,
)
from vramlens.ranks.peers.usual import LineKey, Usual, key_of, lower_median
from vramlens.ranks.rank_summary import LineUse, RankSummary

_TRAINING = ("forward", "backward", "optimizer")
_SLACK = 1.1
"""Microbatches in flight that differ by less are as many."""


@dataclass(frozen=True, slots=True)
class LayoutBytes:
    """What a stage holds more than the usual one by the layout.

    Attributes:
        in_flight: of microbatches that wait for their backward pass.
        at_end: of what only the first or the last stages have: embedding, head, logits.
    """

    in_flight: int
    at_end: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.in_flight + self.at_end


class StageLayout:
    """The stages of a pipeline, beside each other.

    Args:
        stages: a typical rank of each, the first one first.
        usual: what is usual among them.
    """

    def __init__(self, stages: Sequence[RankSummary], usual: Usual) -> None:
        self._stages, self.usual = stages, usual
        self._index = {summary.rank: index for index, summary in enumerate(stages)}

    def bytes_of(self, stage: RankSummary, leaving_out: Collection[Place | None]) -> LayoutBytes:
        """What a stage holds more by the layout, at its peak, beside some lines."""
        lines = [line for line in stage.lines if line.place not in leaving_out]
        in_flight = self._bytes_in_flight(stage, lines) if self._has_usual_flight(stage) else 0
        at_end = self._bytes_at_end(stage, lines) - self._usual_bytes_at_end(stage)
        return LayoutBytes(max(0, in_flight), max(0, at_end))

    def _usual_bytes_at_end(self, stage: RankSummary) -> int:
        """What the usual stage, with which one is compared, holds as an end itself: of two stages,
        or of an encoder and a decoder, all are at an end. 0 where some are in the middle.
        """
        if not all(any(map(self.is_of_end, other.lines)) for other in self._stages):
            return 0
        usual_bytes = self.usual.beside(stage).peak_bytes
        other_stages = [summary for summary in self._stages if summary is not stage]
        usual = min(
            other_stages,
            key=lambda other: abs(other.peak_requested_bytes - usual_bytes),
            default=stage,
        )
        return self._bytes_at_end(usual, usual.lines)

    def layers_of(self, stage: RankSummary) -> float:
        """How many times as many layers a stage has as the usual one: a step comes to the lines
        that all have as often; 1 where none are the same size on all.
        """
        usual = lower_median(self._work_of_layers)
        return self._work_of_layers[self._index[stage.rank]] / usual if usual else 1.0

    def bytes_of_layers(self, stage: RankSummary, leaving_out: Collection[Place | None]) -> int:
        """What a stage holds at its peak because it has more layers than the usual one."""
        more = self.layers_of(stage) - 1
        if more <= 0:
            return 0
        lines = [
            line for line in stage.lines if self._is_of_all(line) and line.place not in leaving_out
        ]
        passing = sum(line.at_peak_bytes for line in lines if not is_built_once(line))
        staying = sum(self._bytes_of_usual_layers(line) for line in lines if is_built_once(line))
        return int(passing * more / (1 + more) + staying * more)

    def _bytes_of_usual_layers(self, line: LineUse) -> float:
        """What as many layers as the usual stage's hold of a line that makes what stays; the least
        of all, for one line may also make what is of the first or the last stage.
        """
        uses = zip(self._stages, self._lines_of_owners[key_of(line)], strict=True)
        return min(use.at_peak_bytes / max(1.0, self.layers_of(stage)) for stage, use in uses)

    @cached_property
    def _work_of_layers(self) -> list[float]:
        """By stage, the bytes that a step requests at lines that all stages have, in one size."""
        return [
            sum(
                line.per_step * line.mean_bytes
                for line in summary.lines
                if not is_built_once(line) and self._is_of_layers(line)
            )
            for summary in self._stages
        ]

    def _is_of_layers(self, line: LineUse) -> bool:
        return key_of(line) in self._keys_of_layers

    @cached_property
    def _keys_of_layers(self) -> set[LineKey]:
        """The lines that all stages have, in one size."""
        return {
            key
            for key, lines in self._lines_of_owners.items()
            if self._is_of_all(lines[0]) and _is_one_size([line.mean_bytes for line in lines])
        }

    def _is_of_all(self, line: LineUse) -> bool:
        return len(self._owners[key_of(line)]) == len(self._stages)

    def _bytes_in_flight(self, stage: RankSummary, lines: Sequence[LineUse]) -> int:
        """What as many layers as the usual stage's hold more in microbatches that wait."""
        repeated = self._repeated(lines)
        waiting = sum(line.at_peak_bytes for line in repeated) / max(1.0, self.layers_of(stage))
        return int(waiting) - sum(map(self.usual.line_at_peak_bytes, repeated))

    def _bytes_at_end(self, stage: RankSummary, lines: Sequence[LineUse]) -> int:
        """What only the first or the last stages have; 0 where there is none of it."""
        of_end = [line for line in lines if self.is_of_end(line)]
        if not of_end:
            return 0
        # One line may make all parameters: those of the layers, and of an embedding.
        layers = max(1.0, self.layers_of(stage))
        staying = (line for line in lines if is_built_once(line) and not self.is_of_end(line))
        more = int(sum(self._more_than_layers(line, layers) for line in staying))
        return int(sum(self._bytes_of_end(line) for line in of_end)) + more

    def _bytes_of_end(self, line: LineUse) -> float:
        """What a line of the first or the last stages holds; of several such stages, as an encoder
        has, what as many layers as the others of them have hold.
        """
        counts = [
            _times(other_line)
            for other_line in self._lines_of_owners[key_of(line)]
            if other_line is not line
        ]
        usual = lower_median(counts) if counts else _times(line)
        return line.at_peak_bytes * min(1.0, usual / max(1, _times(line)))

    def is_of_work(self, line: LineUse) -> bool:
        """True if a line may be part of the work of a stage: others have other layers."""
        if _is_beside_training(line):
            return False
        is_of_step = line.phase in _TRAINING and not line.static and not outlives_steps(line)
        return line.category in STAY or is_of_step or self.is_of_end(line)

    def is_of_end(self, line: LineUse) -> bool:
        """True if only the first or the last stages have a line, as part of training."""
        if _is_beside_training(line) or _is_buffer(line):
            return False
        owners, stages = self._owners[key_of(line)], len(self._stages)
        # The others are in the middle: the first and the last stage may share their embedding.
        middle_stages = sorted(set(range(stages)) - set(owners))
        is_one_block = (
            bool(middle_stages) and middle_stages[-1] - middle_stages[0] == len(middle_stages) - 1
        )
        is_at_end = owners[0] == 0 or owners[-1] == stages - 1
        return is_at_end and is_one_block and 2 * len(owners) <= stages

    @cached_property
    def _lines_of_owners(self) -> dict[LineKey, list[LineUse]]:
        """By line, how each stage that has it uses it."""
        lines: dict[LineKey, list[LineUse]] = {}
        for line in chain.from_iterable(summary.lines for summary in self._stages):
            lines.setdefault(key_of(line), []).append(line)
        return lines

    @cached_property
    def _owners(self) -> dict[LineKey, list[int]]:
        """By line, the stages that have it, ascending."""
        owners: dict[LineKey, list[int]] = {}
        for index, summary in enumerate(self._stages):
            for line in summary.lines:
                owners.setdefault(key_of(line), []).append(index)
        return owners

    def _repeated(self, lines: Iterable[LineUse]) -> list[LineUse]:
        """Lines of the layers that the usual stage has, too, in the same size."""
        return [line for line in lines if self._is_repeated(line)]

    def _is_repeated(self, line: LineUse) -> bool:
        usual = self.usual.line(line)
        if usual is None or is_built_once(line) or not usual.per_step or not line.per_step:
            return False
        return abs(line.mean_bytes - usual.mean_bytes) <= SAME_SHARE * usual.mean_bytes

    def _more_than_layers(self, line: LineUse, layers: float) -> float:
        return max(0.0, line.at_peak_bytes - layers * self.usual.line_at_peak_bytes(line))

    def _has_usual_flight(self, stage: RankSummary) -> bool:
        """True if a stage has no more microbatches in flight than one before it, nor than 1F1B
        gives it.
        """
        index = self._index[stage.rank]
        in_flight = self._in_flight
        most_in_flight = (len(self._stages) - index) * in_flight[-1]
        before = max(in_flight[:index], default=most_in_flight)
        return in_flight[index] <= _SLACK * min(most_in_flight, before)

    @cached_property
    def _in_flight(self) -> list[float]:
        """By stage, the share of a step's activations that wait at once."""
        return [self._share_in_flight(summary) for summary in self._stages]

    def _share_in_flight(self, summary: RankSummary) -> float:
        lines = [
            line for line in summary.lines if not is_built_once(line) and self._is_of_all(line)
        ]
        of_step = sum(line.per_step * line.mean_bytes for line in lines)
        return sum(line.peak_bytes for line in lines) / max(1.0, of_step)


def _is_one_size(sizes: Sequence[float]) -> bool:
    return max(sizes) <= (1 + SAME_SHARE) * min(sizes)


def _times(line: LineUse) -> int:
    """How often a line allocates: in a step, or in all where it makes what stays."""
    return line.allocations if is_built_once(line) else line.per_step


def _is_buffer(line: LineUse) -> bool:
    """True if a line makes what stays and is no part of a model: embeddings and heads have
    parameters.
    """
    return line.static and line.category == "other"


def _is_beside_training(line: LineUse) -> bool:
    is_marked = bool(line.hints & BESIDE_TRAINING) or line.phase == "evaluation"
    return is_marked or only_grows(line)
