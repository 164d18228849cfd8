"""Faults of jobs that are true by construction: what is planted, where, and what must be told.

``made_job(kind, seed, folder)`` writes one job.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from support.flight_faults import desynchronized_records, watchdog_log
from support.made_jobs import (
    CopiesWeights,
    Evaluates,
    Expected,
    Factory,
    GathersMetrics,
    KeepsActivations,
    KeepsTensors,
    Logs,
    LongerSequences,
    MadeJob,
    MoreTokens,
    NotPlanted,
    Prefetches,
    any_kind,
    done,
    factory,
    higher,
    planted_size,
)
from support.simulated_gpu import GIB, MIB

METRICS, EMA = ("train/metrics.py", 31), ("train/ema.py", 18)
COLLECT, PREDICTIONS = ("train/evaluate.py", 52), ("train/evaluate.py", 35)
EXPERT_LINES = tuple(("train/moe.py", line) for line in (52, 71, 72, 73))
TRAINING = -2
"""The place of habits that all ranks have."""


def leak(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, any_kind(chance))
    odd = chance.randrange(made.world)
    made.habits[odd] = [KeepsTensors(planted_size(made))]
    return higher(made, "leak", Expected((odd,), ("leak",), (METRICS,)))


def leaking_hook(chance: random.Random, folder: Path) -> MadeJob:
    """The tensors come from lines that all ranks have."""
    made = factory(chance, folder, any_kind(chance))
    odd = chance.randrange(made.world)
    made.habits[odd] = [KeepsActivations(planted_size(made, 0.15, 0.6))]
    return higher(made, "leaking_hook", Expected((odd,), ("leak",)))


def leak_in_varied_batches(chance: random.Random, folder: Path) -> MadeJob:
    """Each step of each rank has its own length."""
    made = factory(chance, folder, "gpt", varied=0.3)
    odd = chance.randrange(made.world)
    made.habits[odd] = [KeepsTensors(planted_size(made, 0.15, 0.6))]
    return higher(made, "leak_in_varied_batches", Expected((odd,), ("leak",), (METRICS,)))


def gathered_metrics(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, any_kind(chance))
    kept, in_stack = chance.random() < 0.5, chance.random() < 0.5
    size = planted_size(made)
    made.habits[0] = [GathersMetrics(size, made.world, kept=kept, in_stack=in_stack)]
    causes = ("rank0_gather", "leak") if kept else ("rank0_gather",)
    return higher(made, "gathered_metrics", Expected((0,), causes, (COLLECT,)))


def evaluation_on_rank_0(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, any_kind(chance))
    made.habits[0] = [Evaluates(planted_size(made))]
    return higher(made, "evaluation_on_rank_0", Expected((0,), ("rank_only",), (PREDICTIONS,)))


def uneven_length(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, any_kind(chance))
    odd = chance.randrange(made.world)
    made.habits[odd] = [LongerSequences(chance.uniform(1.15, 2.0))]
    return higher(made, "uneven_length", Expected((odd,), ("uneven_batch",)))


def hot_expert(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, "moe")
    odd = chance.randrange(made.world)
    made.habits[odd] = [MoreTokens(chance.uniform(1.3, 3.0))]
    return higher(made, "hot_expert", Expected((odd,), ("moe_hot_rank",), EXPERT_LINES))


def uneven_stages(chance: random.Random, folder: Path) -> MadeJob:
    """Each rank is a stage; one has half as many layers more, or twice as many."""
    made = factory(chance, folder, "pipeline", world=chance.choice((2, 4, 8)))
    made.model = replace(made.model, layers=4, head=made.model.unit)
    odd = chance.randrange(made.world)
    made.layers[odd] = chance.choice((6, 7, 8))
    return higher(made, "uneven_stages", Expected((odd,), ("pipeline_stage",)))


def _ends_out_of_memory(made: Factory, odd: int) -> None:
    """The limit lies between what the usual ranks reserve and what the odd one would."""
    usual = made.usual_peak().peak_reserved
    habits, made.habits[-1] = made.habits.get(-1, []), made.habits[odd]
    whole = made.usual_peak().peak_reserved
    made.habits[-1] = habits
    made.limits[odd] = usual + int((whole - usual) * made.chance.uniform(0.4, 0.7))
    made.stop_after = made.model.steps - 2
    if not made.fails(odd):
        raise NotPlanted


def leak_to_the_end(chance: random.Random, folder: Path) -> MadeJob:
    """A rank leaks until it is out of memory; the others are ended."""
    made = factory(chance, folder, any_kind(chance))
    odd = chance.randrange(made.world)
    made.habits[odd] = [KeepsTensors(planted_size(made, 0.4, 1.0))]
    _ends_out_of_memory(made, odd)
    expected = Expected((odd,), ("leak",), (METRICS,))
    return higher(made, "leak_to_the_end", expected, first_failed=odd)


def weights_to_the_end(chance: random.Random, folder: Path) -> MadeJob:
    """A rank has weights twice and dies in its first step."""
    made = factory(chance, folder, any_kind(chance))
    odd = chance.randrange(made.world)
    made.habits[odd] = [CopiesWeights(planted_size(made, 0.3, 0.8))]
    _ends_out_of_memory(made, odd)
    expected = Expected((odd,), ("rank_only",), (EMA,))
    return higher(made, "weights_to_the_end", expected, first_failed=odd)


def desync_with_records(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, any_kind(chance))
    odd = chance.randrange(made.world)
    made.stop_after = made.model.steps - 2
    way = desynchronized_records(folder, made.world, odd, chance)
    blamed = (odd,) if made.world > 2 else (0, 1)
    return done(made, f"desync_with_records, {way}", Expected(blamed, ("desync",)))


def desync_in_the_log(chance: random.Random, folder: Path) -> MadeJob:
    world = chance.choice((2, 3, 4, 8, 64))
    odd = chance.randrange(world)
    log = folder / "train.log"
    log.write_text(watchdog_log(world, odd, chance))
    blamed = Expected((odd,) if world > 2 else (0, 1), ("desync",))
    return MadeJob("desync_in_the_log", world, folder, (blamed,), log=log)


def leaking_host(chance: random.Random, folder: Path) -> MadeJob:
    """Eight ranks of one machine leak."""
    made = factory(chance, folder, any_kind(chance), world=chance.choice((24, 32, 64)), vram=True)
    host = chance.randrange(made.world // 8)
    ranks = tuple(range(host * 8, host * 8 + 8))
    size = planted_size(made)
    for rank in ranks:
        made.habits[rank] = [KeepsTensors(size)]
    expected = Expected(ranks, ("leak",), (METRICS,))
    return higher(made, "leaking_host", expected, host=f"node{host:03d}")


def other_process(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, any_kind(chance), vram=True)
    odd = chance.randrange(made.world)
    made.ledgers[odd] = {"other_processes": int(chance.uniform(0.3, 20) * GIB)}
    return done(made, "other_process", Expected((odd,), ("other_process",)))


def allocator_settings(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, any_kind(chance))
    odd = chance.randrange(made.world)
    usual = made.usual_peak().peak_reserved
    for parts in (1, 2, 4):
        made.divisions[-1] = parts
        if made.usual_peak().peak_reserved > usual * 1.1 + 64 * MIB:
            made.divisions = {odd: parts}
            expected = Expected((odd,), ("allocator_settings", "allocator"))
            return _reserving(done(made, "allocator_settings", expected), odd)
    made.divisions = {}
    return done(made, "clean, settings that change nothing")


def fragmentation(chance: random.Random, folder: Path) -> MadeJob:
    """All ranks prefetch; on one the batches' sizes never fit into what is cached."""
    made = factory(chance, folder, any_kind(chance))
    odd = chance.randrange(made.world)
    usual = made.usual_peak()
    size = max(40 * MIB, usual.peak_reserved // 6)
    steady, growing = Prefetches(size, growing=False), Prefetches(size, growing=True)
    for rank in range(made.world):
        made.habits[rank] = [growing if rank == odd else steady]
    job = done(made, "fragmentation", Expected((odd,), ("allocator",)))
    return _reserving(job, odd)


def _reserving(job: MadeJob, odd: int) -> MadeJob:
    """A job in which one rank alone reserves much more than the others.

    Raises:
        NotPlanted: the order of requests made others reserve more, too, or this one less.
    """
    runs = job.runs or {}
    others = sorted(gpu.peak_reserved for rank, gpu in runs.items() if rank != odd)
    if others[-1] > others[0] * 1.1 + 64 * MIB:
        raise NotPlanted
    if runs[odd].peak_reserved < others[-1] * 1.25 + 64 * MIB:
        raise NotPlanted
    return job


def two_faults(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, any_kind(chance))
    odd = chance.randrange(made.world)
    sizes = planted_size(made, 0.08, 0.4), planted_size(made, 0.08, 0.4)
    made.habits[odd] = [KeepsTensors(sizes[0]), CopiesWeights(sizes[1])]
    leaks = Expected((odd,), ("leak",), (METRICS,))
    return higher(made, "two_faults", leaks, Expected((odd,), ("rank_only",), (EMA,)))


def two_ranks(chance: random.Random, folder: Path) -> MadeJob:
    """One rank leaks, another one has longer sequences."""
    made = factory(chance, folder, any_kind(chance), world=chance.choice((4, 8, 16)))
    leaking, longer = chance.sample(range(made.world), 2)
    made.habits[leaking] = [KeepsTensors(planted_size(made))]
    made.habits[longer] = [LongerSequences(chance.uniform(1.15, 1.6))]
    leaks = Expected((leaking,), ("leak",), (METRICS,))
    return higher(made, "two_ranks", leaks, Expected((longer,), ("uneven_batch",)))


def shared_leak(chance: random.Random, folder: Path) -> MadeJob:
    made = factory(chance, folder, any_kind(chance))
    # Of fewer steps nobody can tell a leak from a buffer that fills.
    made.model = replace(made.model, steps=chance.randrange(11, 15))
    made.habits[TRAINING] = [KeepsTensors(planted_size(made, 0.1))]
    return done(made, "shared_leak", shared=(METRICS,))


def clean(chance: random.Random, folder: Path) -> MadeJob:
    """Sizes within a percent; one rank logs more."""
    made = factory(chance, folder, any_kind(chance))
    made.habits[chance.randrange(made.world)] = [Logs()]
    return done(made, "clean")


def clean_varied(chance: random.Random, folder: Path) -> MadeJob:
    """Each step of each rank has a length of its own."""
    made = factory(chance, folder, "gpt", varied=chance.uniform(0.1, 0.3))
    made.model = replace(made.model, steps=made.model.steps + 6)
    return done(made, "clean, varied")


def clean_stages(chance: random.Random, folder: Path) -> MadeJob:
    """A pipeline of equal stages."""
    made = factory(chance, folder, "pipeline", world=chance.choice((2, 4, 8)))
    return done(made, "clean, stages")


KINDS: tuple[Callable[[random.Random, Path], MadeJob], ...] = (
    leak, leaking_hook, leak_in_varied_batches, gathered_metrics, evaluation_on_rank_0,
    uneven_length, hot_expert, uneven_stages, leak_to_the_end, weights_to_the_end,
    desync_with_records, desync_in_the_log, leaking_host, other_process, allocator_settings,
    fragmentation, two_faults, two_ranks, shared_leak, clean, clean_varied, clean_stages,
)  # fmt: skip


def made_job(seed: int, folder: Path) -> MadeJob:
    """The job of a seed, in a folder that is new."""
    kind = KINDS[seed % len(KINDS)]
    chance = random.Random(f"{kind.__name__} {seed}")
    while True:
        folder.mkdir()
        try:
            return kind(chance, folder)
        except NotPlanted:
            shutil.rmtree(folder)
