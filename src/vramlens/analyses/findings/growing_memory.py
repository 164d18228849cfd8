"""Growing memory: the leaks that events show, and the growth that only samples show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vramlens.analyses.extent import Extent
from vramlens.analyses.failure.step_evidence import may_be_inside_step
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.rate import TimeToFull, time_to_full_text
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, rows_of
from vramlens.analyses.leaks.sampled_growth import sampled_growth
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.leak.claim import growth_words, notes_of, owner_words
from vramlens.units import counted, format_size


def leaks(scene: Scene) -> Iterator[Finding]:
    """Each leak that is large enough to matter, with when the memory will be full.

    What each turn of a loop inside a training step keeps is one finding: its lines go together.
    """
    growing = [leak for leak in scene.growth if not leak.is_small]
    if may_be_inside_step(scene.view, growing):
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
    others = f" and {counted(len(turns) - 1, 'more line')}" if len(turns) > 1 else ""
    at = f", at {largest.place}{others}" if largest.place else ""
    line = f"{largest.file}:{largest.line}{others}" if largest.place else "these lines"
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
        "step, or use torch.utils.checkpoint around each. If none follows, release what "
        f"{line} allocated each time, or keep `.detach().cpu()` of it",
        extent=_extent(scene, replace(largest, rows=rows_of(turns))),
    )


def _extent(scene: Scene, leak: RecordedLeak) -> Extent | None:
    """What the leak held when it was judged; None for memory outside of PyTorch."""
    if leak.rows is None or not len(leak.rows):
        return None
    fullest_event, _ = scene.device.allocations.fullest(leak.rows)
    event = scene.ending_event
    return Extent(fullest_event if event is None else event, leak.rows)


def growth_in_samples(scene: Scene) -> Iterator[Finding]:
    """The growth that samples of the whole run show and events cannot."""
    yield from sampled_growth(
        scene.view, scene.growth, scene.outside, failed=scene.is_ended_by_failure
    )
