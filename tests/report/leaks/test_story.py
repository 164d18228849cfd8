"""The words of ``vramlens leaks``: how many steps were seen, how many more it needs, and why it
is not sure.
"""

from __future__ import annotations

import pytest

from support import leak_attacks
from support.documents import headings, next_step, parts_of, sentences_of
from support.leak_programs import LEAK_LINE, LEAKS, MAIN, Run, at, made
from support.oracle import MIB
from support.recordings import DATA
from vramlens import load
from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace
from vramlens.analyses.recording_explanation import explain_trace
from vramlens.report.document import Document, Items
from vramlens.report.explain.finding_words import steps_sentence
from vramlens.report.leaks.story import leaks_document, predict_again
from vramlens.trace import Trace


def trace_of(steps: int, *, leaks: bool) -> Trace:
    run = Run(0)
    run.setup()
    for step in range(steps):
        run.step(lambda _: (leaks and run.new(MIB, MAIN, at(LEAK_LINE))) and None, step)
    return run.trace()


def answer_of(trace: Trace) -> Document:
    return leaks_document(leaks_of_trace(trace))


def headline_of(trace: Trace) -> str:
    (headline,) = headings(answer_of(trace), 1)
    return headline


def claim_of(trace: Trace) -> str:
    """The headline of the one leak."""
    (claim,) = headings(answer_of(trace), 2)
    return claim


def test_without_steps_it_says_what_would_tell_them() -> None:
    answer = answer_of(trace_of(0, leaks=True))
    assert headings(answer, 1)[0].startswith("Cannot tell: the recording shows no steps")
    marking = "To mark steps, call vramlens.step() at the end of each"
    assert any(text.startswith(marking) for text in sentences_of(answer))
    assert next_step(answer)[1].startswith("vramlens run ")


@pytest.mark.parametrize("leaks", [False, True])
@pytest.mark.parametrize(("steps", "more"), [(1, "4 more steps"), (2, "3 more steps"), (3, "2 more steps"), (4, "1 more step")])  # fmt: skip
def test_too_few_steps_say_how_many_more_are_needed(steps: int, more: str, leaks: bool) -> None:
    answer = answer_of(trace_of(steps, leaks=leaks))
    seen = f"{steps} step{'s' if steps > 1 else ''} recorded"
    wanted = f"Too few steps to tell: {seen}. {more} would show growth; about 10 in total make it certain."
    assert (headings(answer, 1), headings(answer, 2)) == ([wanted], [])
    assert next_step(answer)[1] == "vramlens run -o again.vram YOUR_SCRIPT.py"


def test_a_run_that_died_has_no_more_steps() -> None:
    answer = leaks_of_trace(load(DATA / "failures/ckpt.cap80.vram"))
    (headline,) = headings(leaks_document(answer), 1)
    assert "more step" not in headline
    assert "Run it with --leaks" in headline
    kept = leaks_of_trace(load(DATA / "failures/kept_loss.cap45.vram"))
    assert all("more step" not in text for text in headings(leaks_document(kept), 2))


@pytest.mark.parametrize(
    ("command", "again"),
    [
        (
            ("vramlens", "predict", "--cards", "24G", "tf.py", "--", "--batch", "22"),
            "vramlens predict --steps 12 --cards 24G tf.py -- --batch 22",
        ),
        (
            ("vramlens", "predict", "--steps", "3", "tf.py", "22"),
            "vramlens predict --steps 12 tf.py 22",
        ),
        (("vramlens", "predict"), "vramlens predict --steps 12 YOUR_SCRIPT.py"),
    ],
)
def test_a_prediction_is_predicted_again(command: tuple[str, ...], again: str) -> None:
    assert predict_again(command, 12) == again


def test_as_many_more_as_it_says_do_show_growth() -> None:
    assert claim_of(trace_of(5, leaks=True)).startswith(
        "GROWTH, maybe a leak: 1.00 MiB per step, 4.00 MiB so far in 4 steps. 96 more "
    )
    assert claim_of(trace_of(5 + 96, leaks=True)).startswith(
        "LEAK likely: 1.00 MiB per step, 100.00 MiB so far in 100 steps"
    )
    assert (
        headline_of(trace_of(5, leaks=False))
        == "Nothing grows in the 5 steps recorded. About 10 steps are needed to be certain."
    )
    assert headline_of(trace_of(12, leaks=False)).startswith(
        "No leak: nothing grows with every step (12 steps recorded)"
    )


@pytest.mark.parametrize(
    "name", ["leak_cycle", "leak_outputs", "oom_leak", "oom_train", "resnet50"]
)
def test_both_verbs_count_the_same_steps_in_the_same_words(name: str) -> None:
    trace = load(DATA / f"recordings/{name}.pickle.xz")
    said = steps_sentence(explain_trace(trace)).split(".")[0]
    note = next(note for note in sentences_of(answer_of(trace)) if "found by" in note)
    assert note.startswith(f"{said}. Checked ")
    assert note.endswith("Step 0 is the first recorded.")


def test_the_layers_of_one_pass_are_no_steps() -> None:
    run = Run(0)
    leak_attacks.LOOK_ALIKES["first pass fails"](run)
    trace = run.trace()
    answer = answer_of(trace)
    assert headings(answer, 1)[0].startswith(
        "Cannot tell: the steps are only a repeating pattern inside one module call"
    )
    assert "40 repetitions, found by requests that repeat." in sentences_of(answer)
    assert explain_trace(trace).leaks == ()


def test_streams_have_no_end_to_predict() -> None:
    run, _ = made(LEAKS["new streams"], 20, 0)
    answer = answer_of(run.trace())
    assert "32 streams" in parts_of(answer, Items)[0].texts[-1]
    assert not any("--total" in text for text in sentences_of(answer))


def test_what_ran_out_of_memory_is_not_told_to_record_more_steps() -> None:
    answer = answer_of(load(DATA / "recordings/oom_train.pickle.xz"))
    assert headings(answer, 1)[0].startswith("Too few steps to tell: 4 steps recorded")
    why, command = next_step(answer)
    assert (why, command.split()[:2]) == ("find out why memory ran out", ["vramlens", "explain"])


@pytest.mark.parametrize(
    ("name", "evidence", "doubt"),
    [
        (
            "leak_losses",
            "a list kept it all that time",
            "a list that a longer run would have emptied",
        ),
        ("leak_hook", "from the middle of a pass", "a hook that keeps only the last few"),
        (
            "leak_cycle",
            "at least a fifth of all memory in use between steps",
            "a buffer of that size",
        ),
        (
            "leak_exception",
            "a whole autograd graph is kept",
            "the steps are only a repeating pattern",
        ),
    ],
)
def test_why_it_is_likely_and_why_no_more(name: str, evidence: str, doubt: str) -> None:
    recording = load(DATA / f"recordings/{name}.pickle.xz")
    answer = leaks_document(leaks_of_trace(recording, at_least_bytes=0))
    (notes,) = (part.texts for part in parts_of(answer, Items))
    assert any(evidence in note for note in notes[:-1])
    assert notes[-1].startswith("not proven: ")
    assert doubt in notes[-1]


def test_a_failure_without_steps_is_explained_next() -> None:
    recording = load(DATA / "captured/oom_forward.vram")
    assert next_step(answer_of(recording))[1].startswith("vramlens explain ")


def test_a_leak_without_an_owner_has_the_name_that_the_failure_gave_it() -> None:
    trace = load(DATA / "faults" / "hooks_left.vram").attribution(None).trace
    (leak,) = [leak for leak in leaks_of_trace(trace).devices[0].leaks if leak.kept_in]
    assert leak.kept_in == "MidLevelFeatures.__call__.<locals>.keep.outputs"
    text = " ".join(sentences_of(answer_of(trace)))
    assert f"It was in {leak.kept_in} when the recording was written" in text
