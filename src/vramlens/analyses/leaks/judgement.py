"""Judgement: the rules over what a group of cohorts shows, and the leak that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.attribution.names import store_name, stores_of_results
from vramlens.analyses.attribution.training import Training
from vramlens.analyses.leaks.certainty import (
    COPY,
    GRAPH,
    PATTERN,
    RESULT,
    SIGN,
    most_by_pattern,
    one_size_a_step,
    steps_until_large,
    verdict_of_steps,
)
from vramlens.analyses.leaks.evidence import LATEST_FIRST, OLDEST_FIRST, made_of_results
from vramlens.analyses.leaks.group_evidence import GroupEvidence
from vramlens.analyses.leaks.groups import place_of
from vramlens.analyses.leaks.recorded_fix import BESIDE_PASS, OF_PASS, wide_scalar, with_fix
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, no_problem
from vramlens.analyses.leaks.rhythm import EVERY, IRREGULAR, PERIODIC
from vramlens.ground.verdict import Verdict
from vramlens.leak.claim import with_article
from vramlens.trace import NO_STACK, TensorKind
from vramlens.trace.stacks import is_user_file
from vramlens.units import counted, format_size

_REPLACED = 0.5
_ALL_BUT_FEW = 0.9


# Rules


def _has_one_size_a_step(evidence: GroupEvidence) -> bool:
    needs_size = not evidence.keeps_graph and not evidence.filled_memory
    return needs_size and one_size_a_step(evidence.sizes, evidence.born)


def _went_oldest_first(evidence: GroupEvidence) -> bool:
    return evidence.kept == RESULT and evidence.fate == OLDEST_FIRST


_OF_MODELS = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
_ON_PURPOSE = "snapshots or an ensemble that the program needs on the GPU look the same"
_UNTIL_THEN = "a buffer that is not full yet, or a list that is emptied later, looks the same"


def _is_stored_data(evidence: GroupEvidence) -> bool:
    """Whether it is what no module computed (frames, batches), and only much of it makes it a leak.

    Copies of models, what is as large as modules' results, and what a graph made are not data.
    """
    modules = evidence.view.modules
    if evidence.kept != SIGN or not modules.marked.any() or _scalar_loss(evidence):
        return False
    is_outside = ~modules.marked[evidence.rows] | (modules.module[evidence.rows] == OUTSIDE)
    is_outside &= ~np.isin(evidence.view.categories.category[evidence.rows], _OF_MODELS)
    is_outside &= ~made_of_results(evidence.view, evidence.rows)
    is_outside &= ~evidence.view.names.in_graph[evidence.rows]
    is_much_only = all(sign.is_of_size for sign in evidence.signs)
    return is_much_only and 2 * int(evidence.sizes[is_outside].sum()) > evidence.total_bytes


_DOUBTS: tuple[tuple[Callable[[GroupEvidence], bool], str], ...] = (
    (
        lambda evidence: not evidence.rhythm.steady,
        "later steps left less behind than earlier steps, so it may be filling up",
    ),
    (
        _has_one_size_a_step,
        "no two steps left blocks of the same size: a cache with one entry per shape looks the "
        "same",
    ),
    (
        _went_oldest_first,
        "it was freed with the model at the very end, oldest first, as in a deque or a dict: one "
        "that is limited and not full yet looks the same",
    ),
    (
        _is_stored_data,
        "no module computed it: a replay buffer or a cache of batches looks the same until it is"
        " full",
    ),
    (
        lambda evidence: evidence.pooled,
        "it comes from many places in one statement, and none of them grows by itself",
    ),
)
"""What makes a leak no more than possible, whatever the steps say."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """How certain it is that a group leaks.

    Attributes:
        verdict: proven, likely or possible.
        needs_steps: how many more steps would make it likely; None where steps would not.
        doubts: why it is not more certain.
    """

    verdict: Verdict
    needs_steps: int | None
    doubts: tuple[str, ...] = ()


def judgement_of(evidence: GroupEvidence) -> Judgement | None:
    """How certain the rules make a group; None below all of them."""
    judgement = _by_steps(evidence)
    if judgement is None:
        return None
    for rule in (_doubted, _limited_by_pattern, _confirmed_by_owner, _with_usual_doubt):
        judgement = rule(evidence, judgement)
    return judgement


def _by_steps(evidence: GroupEvidence) -> Judgement | None:
    """The verdict that so many steps of one rhythm allow."""
    rhythm = evidence.rhythm_so_far
    verdict, needs_steps = verdict_of_steps(rhythm, evidence.kept)
    if verdict is None:
        return None
    if verdict == Verdict.LIKELY and evidence.filled_memory and evidence.keeps_graph:
        verdict = Verdict.PROVEN
    is_step = evidence.view.steps.source != PATTERN
    if verdict == Verdict.POSSIBLE and is_step and evidence.is_held_by_graph:
        return Judgement(Verdict.LIKELY, None)
    if needs_steps is not None and evidence.kept == RESULT:
        alive = int(evidence.view.device.requested_curve[evidence.cohorts.event])
        steps = steps_until_large(rhythm, evidence.rate.bytes, evidence.total_bytes, alive)
        needs_steps = min(needs_steps, steps or needs_steps)
    return Judgement(verdict, needs_steps)


def _doubted(evidence: GroupEvidence, judgement: Judgement) -> Judgement:
    doubts = tuple(doubt for holds, doubt in _DOUBTS if holds(evidence))
    return Judgement(Verdict.POSSIBLE, None, doubts) if doubts else judgement


def _limited_by_pattern(evidence: GroupEvidence, judgement: Judgement) -> Judgement:
    """No more certain than what tells the steps apart allows."""
    ceiling, doubt = most_by_pattern(
        evidence.view,
        evidence.fate,
        graph=evidence.keeps_graph,
        filled=evidence.filled_memory,
    )
    if ceiling != Verdict.POSSIBLE and ceiling.rank <= judgement.verdict.rank:
        return judgement
    return Judgement(ceiling, None, (*judgement.doubts, doubt))


def _confirmed_by_owner(evidence: GroupEvidence, judgement: Judgement) -> Judgement:
    """At least as certain as the process itself was of what keeps it."""
    owner = evidence.owner
    if owner is None or owner.verdict is None or not owner.verdict.is_sure:
        return judgement
    return Judgement(min(judgement.verdict, owner.verdict, key=lambda word: word.rank), None)


def _with_usual_doubt(evidence: GroupEvidence, judgement: Judgement) -> Judgement:
    """With the doubt that is always there, where no other is said."""
    if judgement.doubts:
        return judgement
    doubt = ""
    if evidence.kept == COPY:
        doubt = _ON_PURPOSE
    elif judgement.verdict == Verdict.POSSIBLE:
        doubt = "too few steps to tell" if evidence.keeps_graph else _UNTIL_THEN
    elif judgement.verdict == Verdict.LIKELY and evidence.kept != GRAPH and evidence.owner is None:
        doubt = evidence.signs[0].doubt if evidence.signs else _UNTIL_THEN
    return replace(judgement, doubts=(doubt,)) if doubt else judgement


def _is_replacement(evidence: GroupEvidence) -> bool:
    """Whether steps gave back about as much of what is older than the recording: a ring that was
    full before it.
    """
    rhythm, cohorts = evidence.rhythm, evidence.cohorts
    returned = cohorts.returned[rhythm.first : cohorts.last]
    has_volume = returned.sum() >= _REPLACED * evidence.total_bytes
    is_usual = (returned > 0).sum() >= _REPLACED * max(rhythm.steps - 1, 1)
    return bool(has_volume and is_usual)


def _builds_the_model(evidence: GroupEvidence) -> bool:
    """Whether what repeats made layers: most of it is parameters by name."""
    view, rows = evidence.view, evidence.rows
    is_parameter = np.isin(rows, view.names.of_kind(TensorKind.PARAMETER, TensorKind.BUFFER))
    named_bytes = int(evidence.sizes[is_parameter].sum())
    return view.steps.source == PATTERN and 2 * named_bytes >= evidence.total_bytes


# The leak


def judged_leak(evidence: GroupEvidence) -> RecordedLeak | None:
    """The leak that a group is, or why it is not one; None where it shows too little."""
    judgement = judgement_of(evidence)
    if judgement is None:
        return None
    view, loop, cohorts = evidence.view, evidence.loop, evidence.group.cohorts
    if _is_replacement(evidence):
        reason = "the same amount from before the recording was freed in the meantime"
        return no_problem(view, loop, cohorts, reason)
    if _builds_the_model(evidence):
        reason = "these are parameters of the model, which was built layer by layer"
        return no_problem(view, loop, cohorts, reason)
    owner = evidence.owner
    if owner is not None and owner.verdict == Verdict.NOT_A_PROBLEM:
        reason = f"{owner.name}, {with_article(owner.kind)}, keeps it and has a size limit"
        return no_problem(view, loop, cohorts, reason, owner)
    return with_fix(
        _leak_of(evidence, judgement),
        graph=_graph_of(evidence),
        in_list=evidence.fate == LATEST_FIRST,
        result_bytes=int(evidence.sizes.max()) if evidence.keeps_graph else 0,
        scalar_loss=_scalar_loss(evidence),
        copies_model=evidence.kept == COPY,
        without_backward=_is_without_backward(evidence),
    )


def _graph_of(evidence: GroupEvidence) -> str:
    """The kind of graph that is kept; "" without one."""
    if evidence.keeps_graph:
        return OF_PASS
    return BESIDE_PASS if evidence.is_held_by_graph else ""


def _is_without_backward(evidence: GroupEvidence) -> bool:
    """Whether most of it was made by modules with gradients enabled, where no backward pass has run."""
    modules, rows = evidence.view.modules, evidence.rows
    if evidence.view.training == Training.SEEN:
        return False
    keeps_graph = modules.marked[rows] & ~modules.without_grad[rows]
    return bool(2 * evidence.sizes[keeps_graph].sum() > evidence.total_bytes)


def _scalar_loss(evidence: GroupEvidence) -> str:
    """The loss whose scalar keeps all errors, where that asked for what is left behind."""
    stacks = evidence.view.trace.stacks
    kept_stacks = {cohort.stack for cohort in evidence.group.cohorts}
    losses = (wide_scalar(stacks.of(stack)) for stack in sorted(kept_stacks))
    return next(filter(None, losses), "")


def _leak_of(evidence: GroupEvidence, judgement: Judgement) -> RecordedLeak:
    view, rate, owner = evidence.view, evidence.rate, evidence.owner
    kind = "pinned" if view.device.device < 0 else None
    is_open = judgement.verdict == Verdict.POSSIBLE
    leak = RecordedLeak(
        verdict=judgement.verdict,
        kind=kind,
        place=place_of(view, evidence.loop, evidence.group.cohorts),
        bytes_per_step=round(evidence.usual_bytes / evidence.every_steps),
        bytes=evidence.total_bytes,
        every_steps=evidence.every_steps,
        steps=evidence.times,
        low=round(rate.low),
        high=round(rate.high),
        taken_per_step=round(evidence.taken_rate.bytes),
        allocations_per_step=evidence.blocks_each_time / evidence.every_steps,
        storages=len(evidence.rows),
        stacks=evidence.stacks,
        is_stored_data=_is_stored_data(evidence),
        device=view.device.device,
        reason="; ".join(judgement.doubts),
        evidence=tuple(_sentences(evidence)),
        needs_steps=judgement.needs_steps if is_open else None,
        rows=evidence.rows,
        kept_in=_store_of(evidence),
    )
    if owner is None:
        return leak
    return replace(
        leak,
        owner=owner,
        kind=owner.leak_class,
        fix=owner.fix or None,
        fix_share=owner.fix_share,
        is_freed=owner.is_freed,
    )


def _store_of(evidence: GroupEvidence) -> str:
    """The name of what keeps it; of a graph, of what keeps a result with it; "" where no name is known."""
    view = evidence.view
    store = store_name(view.names, evidence.rows, evidence.sizes)
    if store or not evidence.is_held_by_graph:
        return store
    alive = view.device.allocations.alive_after(evidence.cohorts.event)
    stores = stores_of_results(view.names, alive)
    return next(iter(stores), "")


_LEFT = {EVERY: "in a row left", IRREGULAR: "at irregular intervals left"}


def _how_often(evidence: GroupEvidence) -> str:
    """When something was left behind; with its size where that is every few steps: a leak of each
    epoch or trial.
    """
    rhythm = evidence.rhythm
    if rhythm.kind != PERIODIC:
        steps = counted(rhythm.steps, "step")
        return f"{steps} {_LEFT[rhythm.kind]} memory behind that was never freed"
    left_each_time = format_size(int(evidence.usual_bytes))
    apart = counted(rhythm.apart, "step")
    return f"every {apart} about {left_each_time} was never freed, {evidence.times:,} times"


def _sentences(evidence: GroupEvidence) -> list[str]:
    """What the verdict rests on, one sentence each."""
    sentences = [_how_often(evidence)]
    if evidence.keeps_graph:
        how_often = "per step" if evidence.rhythm.kind == EVERY else "each time"
        sentences.append(
            f"{evidence.blocks_each_time:,.0f} blocks {how_often}, from {evidence.stacks:,} places"
            " of one forward pass: a whole autograd graph is kept"
        )
    if evidence.longest:
        longest = counted(evidence.longest, "step")
        sentences.append(f"everything else from those lines was freed after at most {longest}")
    if evidence.kept == COPY:
        sentences.append("each time it is a copy of all parameters of the model, which never runs")
    sentences += [sign.evidence for sign in evidence.signs]
    return sentences + _asked_by(evidence)


def _asked_by(evidence: GroupEvidence) -> list[str]:
    """The module that memory was made in, and the library that the user's line called for it."""
    view, sentences = evidence.view, []
    modules, counts = np.unique(view.modules.module[evidence.rows], return_counts=True)
    module = int(modules[counts.argmax()])
    if module != OUTSIDE and counts.max() >= _ALL_BUT_FEW * len(evidence.rows):
        sentences.append(f"made in the module {view.modules.paths[module]}")
    stack = evidence.group.cohorts[0].stack
    if not evidence.keeps_graph and stack != NO_STACK:
        frames = view.trace.stacks.of(stack)
        if frames and not is_user_file(frames[0].file):
            sentences.append(f"requested inside of {frames[0]}")
    return sentences
