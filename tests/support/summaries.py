"""Summaries of ranks, made line by line: trainers, and the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vramlens.analyses.finding import Place
from vramlens.ranks import Comparison, RankSummary
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import GIB, MIB

STEPS, MICROBATCHES = 6, 8
MODEL = "train/model.py"


def line(
    number: int,
    category: str,
    alive: int,
    size: int,
    *,
    per_step: int = 0,
    phase: str = "forward",
    hints: Hint = Hint.NONE,
) -> LineUse:
    """A line of which so many allocations of a size are alive at the peak; ``per_step`` 0 is what
    is built once.
    """
    allocations = per_step * STEPS or alive
    return LineUse(
        place=Place(MODEL, number, f"f{number}"),
        hints=hints,
        category=category,
        phase=phase,
        peak_bytes=alive * size,
        at_peak_bytes=alive * size,
        allocations=allocations,
        total_bytes=allocations * size,
        per_step=per_step,
        sizes=1,
        static=not per_step,
    )


def rank_of(number: int, world: int, lines: Sequence[LineUse], **changes: object) -> RankSummary:
    peak = sum(line.at_peak_bytes for line in lines)
    summary = RankSummary(
        rank=number,
        source=f"rank{number}.vram",
        world_size=world,
        peak_requested_bytes=peak,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=peak,
        total_bytes=80 * GIB,
        step_peaks=(peak,) * STEPS,
        lines=tuple(lines),
    )
    return replace(summary, **changes)


def layers(count: int, waiting: int, per_step: int = MICROBATCHES) -> list[LineUse]:
    """The lines of so many layers, of which so many microbatches wait for the backward pass."""
    return [
        line(10, "parameters", count, 100 * MIB, phase="other"),
        line(11, "optimizer_state", count, 200 * MIB, phase="optimizer"),
        line(12, "activations", count * waiting, 50 * MIB, per_step=count * per_step),
        line(13, "temporaries", 1, 50 * MIB, per_step=count * per_step, phase="backward"),
    ]


def embedding() -> list[LineUse]:
    return [
        line(20, "parameters", 1, 700 * MIB, phase="other"),
        line(21, "activations", 4, 20 * MIB, per_step=MICROBATCHES),
    ]


def head() -> list[LineUse]:
    return [
        line(30, "parameters", 1, 700 * MIB, phase="other"),
        line(31, "activations", 1, 900 * MIB, per_step=MICROBATCHES, hints=Hint.LOSS),
    ]


def pipeline(stages: int = 4, counts: Sequence[int] = (2, 2, 2, 2)) -> list[RankSummary]:
    """A stage a rank, under the 1F1B schedule, without names of process groups."""
    ends = {0: embedding(), stages - 1: head()}
    return [
        rank_of(
            stage,
            stages,
            [*layers(counts[stage], stages - stage), *ends.get(stage, [])],
            recomputed_bytes=0,
        )
        for stage in range(stages)
    ]


def with_lines(rank: RankSummary, *lines: LineUse) -> RankSummary:
    return rank_of(
        rank.rank,
        rank.world_size or 0,
        [*rank.lines, *lines],
        recomputed_bytes=rank.recomputed_bytes,
    )


def named_causes(answer: Comparison) -> list[tuple[tuple[int, ...], str]]:
    return [(difference.ranks, difference.cause) for difference in answer.differences]


def trainers(world: int) -> list[RankSummary]:
    return [rank_of(rank, world, layers(2, 2), recomputed_bytes=0) for rank in range(world)]
