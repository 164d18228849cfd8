"""Growing memory: the leaks that events show, what an evaluation gathers, and growth in samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.remedies_in_use import uses_checkpoints
from vramlens.analyses.extent import Extent
from vramlens.analyses.failure.step_evidence import leaks_of_steps, may_be_inside_step
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.leaks.rate import TimeToFull, time_to_full_text
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, rows_of
from vramlens.analyses.leaks.sampled_growth import sampled_growth
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.leak.claim import growth_words, notes_of, owner_words
from vramlens.trace import NO_STACK
from vramlens.units import counted, format_size

_GATHERS = re.compile(
    r"transformers[/\\]trainer_pt_utils\.py:(?:torch_pad_and_concatenate|nested_concat|add)$"
)
"""transformers: EvalLoopContainer.add, which evaluation_loop calls with each batch's logits."""
_LEAST_SHARE = 0.05
"""Of the memory in use."""


def leaks(scene: Scene) -> Iterator[Finding]:
    """Each leak that is large enough to matter, with when the memory will be full.

    What each turn of a loop inside a training step keeps is one finding: its lines go together.
    """
    growing = [leak for leak in scene.growth if not leak.is_small]
    # A failed step may be the first, of which inner steps and views are a part.
    step_leaks = leaks_of_steps(scene.view, growing) if scene.is_ended_by_failure else growing
    if may_be_inside_step(scene.view, step_leaks):
        turns = [leak for leak in growing if leak.rows is not None and leak.kind is None]
        if turns:
            yield _kept_by_turns(scene, turns)
        growing = [leak for leak in growing if leak not in turns]
    for leak in growing:
        yield _leak(leak, scene.prediction, _extent(scene, leak))


def _leak(leak: RecordedLeak, prediction: TimeToFull | None, extent: Extent | None) -> Finding:
    """A leak, in the words of every report."""
    if leak.kind == "context":
        title = f"this process has {format_size(leak.bytes)} on a device that it does not use"
    else:
        title = growth_words(leak) + (f", at {leak.place}" if leak.place else "")
    if prediction is not None and leak.sure:
        title += f"; {time_to_full_text(prediction)}"
    owner = () if leak.owner is None else (owner_words(leak, leak.owner),)
    return Finding(
        id="leak",
        verdict=leak.verdict,
        title=title,
        bytes=leak.bytes,
        place=leak.place,
        evidence=(*owner, *notes_of(leak)),
        fix=leak.advice,
        extent=extent,
    )


def _kept_by_turns(scene: Scene, turns: Sequence[RecordedLeak]) -> Finding:
    """What turns keep that may belong to one training step: its backward pass would free it."""
    largest = max(turns, key=lambda leak: leak.bytes)
    total_bytes = sum(leak.bytes for leak in turns)
    a_turn = format_size(sum(leak.bytes_per_step for leak in turns))
    more_lines = f" and {counted(len(turns) - 1, 'more line')}" if len(turns) > 1 else ""
    at = f", at {largest.place}{more_lines}" if largest.place else ""
    line = f"{largest.file}:{largest.line}{more_lines}" if largest.place else "these lines"
    is_in_use = uses_checkpoints(scene.view)
    around_each = ", or use torch.utils.checkpoint around each"
    if is_in_use:
        around_each = ", or put several into one checkpoint, about the square root of their number"
    return Finding(
        id="leak",
        verdict=Verdict.POSSIBLE,
        title=f"about {a_turn} per repetition, {format_size(total_bytes)} so far{at}",
        bytes=total_bytes,
        place=largest.place,
        evidence=(
            f"the same requests came {counted(largest.steps, 'time')}, and each time kept memory",
            *(note for note in largest.evidence if note.startswith("made in the module")),
            "not certain: repetitions inside one training step (time steps, solver steps, tokens) "
            "keep their memory until its backward pass",
        ),
        fix="if a backward pass follows these repetitions, it frees them: run fewer of them per "
        f"step{around_each}. If none follows (a rollout, sampling, evaluation), run them in"
        f" torch.no_grad(), or keep `.detach().cpu()` of what {line} allocated",
        extent=_extent(scene, replace(largest, rows=rows_of(turns))),
    )


def _extent(scene: Scene, leak: RecordedLeak) -> Extent | None:
    """What the leak held when it was judged; None for memory outside of PyTorch."""
    if leak.rows is None or not len(leak.rows):
        return None
    fullest_event, _ = scene.device.allocations.fullest(leak.rows)
    event = scene.ending_event
    return Extent(fullest_event if event is None else event, leak.rows)


def gathered_outputs(scene: Scene) -> Iterator[Finding]:
    """What a Trainer has gathered of an evaluation's outputs, and asked for to add the next batch."""
    view = scene.view
    stacks, allocations = view.trace.stacks, view.device.allocations
    gathers = stacks.any_frame(stacks.mark_frames(_GATHERS))
    if not gathers.any():
        return
    rows = scene.advice_rows
    rows = rows[allocations.stack[rows] != NO_STACK]
    rows = rows[gathers[allocations.stack[rows]]]
    size_bytes = scene.bytes_of(rows)
    asked_bytes = 0
    if scene.failure is not None:
        request = scene.failure.request
        is_own = request.stack < len(stacks) and bool(gathers[request.stack])
        asked_bytes = request.size_bytes if is_own else 0
    if size_bytes + asked_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    asks = f", and it requests {format_size(asked_bytes)} to add a batch" if asked_bytes else ""
    saved = format_size(size_bytes + asked_bytes)
    yield Finding(
        id="gathered_outputs",
        verdict=Verdict.LIKELY,
        title="the Trainer gathers the outputs of all evaluation batches on the GPU:"
        f" {format_size(size_bytes)} so far{asks}",
        bytes=size_bytes + asked_bytes,
        place=_place_of_most(view, rows),
        evidence=("it keeps them until the evaluation ends, for compute_metrics",),
        fix="give the Trainer a preprocess_logits_for_metrics that returns only what"
        " compute_metrics needs: of several outputs the logits, of logits perhaps the argmax; or"
        " set TrainingArguments(eval_accumulation_steps=1), which moves them to the CPU after each"
        f" batch, and takes longer: about {saved} less",
        extent=scene.extent(rows),
    )


def _place_of_most(view: Attribution, rows: NDArray[np.int64]) -> Place | None:
    """The user's line at which the largest of some blocks was requested."""
    if not len(rows):
        return None
    largest = view.device.allocations.largest_of(rows)
    return view.place_of_block(largest)


def growth_in_samples(scene: Scene) -> Iterator[Finding]:
    """The growth that samples of the whole run show and events cannot."""
    yield from sampled_growth(
        scene.view, scene.growth, scene.outside, failed=scene.is_ended_by_failure
    )
