"""A pass on larger inputs beside healthy twins, made event by event: passes of one size, sizes that rise
on purpose, memory that grew for other reasons. Each is at the edge of a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from support.recordings import DATA
from vramlens import load
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.finding import Finding

USER = "/home/user/train.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
LAYER: tuple[Frame, ...] = (
    (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
    CALL,
    (USER, 20, "forward"),
    CALL,
)
BACKWARD: tuple[Frame, ...] = ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 31, "step"))
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
    "layer": (*LAYER, (USER, 30, "step")),
    "scored": (*LAYER, (USER, 60, "score")),
    "mask": ((USER, 21, "forward"), CALL, (USER, 30, "step")),
    "loss": ((USER, 32, "step"),),
    "grad": ((f"{TORCH}/autograd/__init__.py", 500, "grad"), (USER, 33, "step")),
    "backward": BACKWARD,
    "optimizer": (
        (f"{TORCH}/optim/adamw.py", 600, "_multi_tensor_adamw"),
        (f"{TORCH}/optim/optimizer.py", 480, "step"),
        (USER, 34, "step"),
    ),
}
LAYERS = 10
SORT, PIECES = "sort the samples by length", "compute this pass in"


def made(*, weights: int = 200) -> MadeRun:
    run = MadeRun(FRAMES)
    run.asks("weights", weights)
    return run


def trains(run: MadeRun, *sizes: int, part: str = "layer", others: Sequence[int] = ()) -> None:
    """Steps, each of so many MiB in every layer, with masks beside them."""
    for mib in sizes:
        kept = [run.asks(part, mib) for _ in range(LAYERS)]
        kept += [run.asks("mask", other) for other in others]
        gradient = run.asks("backward", 3)
        run.frees(*kept)
        run.frees(run.asks("optimizer", 5), gradient)


def scores(run: MadeRun, mib: int) -> None:
    """A pass without a graph: each layer's result is gone when the next is there."""
    result = run.asks("scored", mib)
    for _ in range(LAYERS - 1):
        following = run.asks("scored", mib)
        run.frees(result)
        result = following
    run.frees(result)


def fails_at(
    run: MadeRun, mib: int, folder: Path, *, part: str = "layer", layers: int = LAYERS - 1
) -> Explanation:
    """The answer where a layer of the next pass fails, after some."""
    for _ in range(layers):
        run.asks(part, mib)
    return run.fails(part, mib, folder)


def told(answer: Explanation) -> Finding | None:
    return finding_of(answer, "larger_inputs")


def surely_told(answer: Explanation) -> Finding:
    finding = told(answer)
    assert finding is not None
    assert finding.fix is not None
    return finding


# The same call


def test_a_batch_that_is_padded_to_one_long_sample(tmp_path: Path) -> None:
    run = made()
    trains(run, 20, 10)
    finding = surely_told(fails_at(run, 80, tmp_path))
    assert finding.verdict == "likely"
    assert finding.bytes == 9 * (80 - 20) << 20
    assert "4.00x those of the largest pass before it" in finding.title
    assert finding.evidence == (
        "10 of its requests are 4.00x the same requests of that pass (step 0)",
    )
    assert (finding.fix or "").startswith(SORT)
    assert finding.place is not None
    assert finding.place.line == 30


@pytest.mark.parametrize(("mib", "is_told"), [(40, True), (39, False)])
def test_twice_as_large_is_a_spike(tmp_path: Path, mib: int, is_told: bool) -> None:
    run = made()
    trains(run, 20, 10)
    assert (told(fails_at(run, mib, tmp_path)) is not None) == is_told


def test_an_earlier_pass_was_as_large(tmp_path: Path) -> None:
    run = made()
    trains(run, 80, 20, 10)
    assert told(fails_at(run, 80, tmp_path)) is None


def test_the_first_step_has_none_to_compare_with(tmp_path: Path) -> None:
    assert told(fails_at(made(), 80, tmp_path)) is None


@pytest.mark.parametrize(
    ("sizes", "verdict"),
    [
        ((20,), "likely"),
        ((20, 20), "possible"),  # the next size of a curriculum
        ((200, 202), "possible"),
        ((200, 203), "likely"),
        ((10, 20), "likely"),
        ((10, 15, 20), None),  # a curriculum
        ((10, 10, 20, 20), None),
        ((100, 100, 105), "likely"),
        ((100, 100, 106), None),
        ((10, 20, 15), "likely"),
        ((300, 299, 320), None),  # as good as equal
        ((300, 296, 320), "likely"),
    ],
)
def test_sizes_that_rise_on_purpose(
    tmp_path: Path, sizes: tuple[int, ...], verdict: str | None
) -> None:
    run = made()
    trains(run, *sizes)
    finding = told(fails_at(run, 4 * max(sizes), tmp_path))
    assert (finding and finding.verdict) == verdict
    if verdict == "possible":
        assert finding is not None
        fix = finding.fix or ""
        assert fix.startswith("if batches are padded to their longest sample, sort")
        assert "if larger inputs are intended, use a batch of 1/4 of the samples" in fix


@pytest.mark.parametrize(("layers", "verdict"), [(7, "likely"), (6, "possible")])
def test_few_requests_may_be_large_by_chance(tmp_path: Path, layers: int, verdict: str) -> None:
    run = made(weights=1)
    trains(run, 20, 10)
    assert surely_told(fails_at(run, 80, tmp_path, layers=layers)).verdict == verdict


@pytest.mark.parametrize(
    ("rows", "longest", "total", "verdict"),
    [(67, 148, 921, "likely"), (67, 148, 8000, "possible"), (66, 148, 921, "possible")],
)
def test_a_few_requests_are_enough_where_the_rows_of_the_batch_are_uneven(
    tmp_path: Path, rows: int, longest: int, total: int, verdict: str
) -> None:
    run = made(weights=1)
    trains(run, 20, 10)
    run.asks("weights", 1, name="tuple[0]", shape="float32[67, 3912]")
    lengths = {"rows": rows, "longest": longest, "total": total}
    for _ in range(6):
        run.asks("layer", 80)
    finding = surely_told(run.fails("layer", 80, tmp_path, row_lengths=[lengths]))
    assert finding.verdict == verdict
    assert ("the largest 148, 13 on average" in str(finding.evidence)) == (verdict == "likely")


# What else makes a pass larger


@pytest.mark.parametrize(("new", "is_told"), [(342, True), (344, False)])
def test_most_of_the_pass_was_there_before(tmp_path: Path, new: int, is_told: bool) -> None:
    """800 MiB of the layers are 70% with 342 MiB of a line that no earlier pass has."""
    run = made()
    trains(run, 20, 10)
    run.asks("loss", new)
    assert (told(fails_at(run, 80, tmp_path)) is not None) == is_told


@pytest.mark.parametrize(("same", "is_told"), [(266, True), (268, False)])
def test_most_of_the_pass_is_as_many_times_as_large(
    tmp_path: Path, same: int, is_told: bool
) -> None:
    """800 MiB of the layers are 75% with 266 MiB of masks that are as large as before."""
    run = made()
    trains(run, 20, 10, others=[same])
    run.asks("mask", same)
    assert (told(fails_at(run, 80, tmp_path)) is not None) == is_told


@pytest.mark.parametrize(("mib", "count"), [(840, 10), (845, 9)])
def test_a_little_more_is_padding(tmp_path: Path, mib: int, count: int) -> None:
    """Within 5%, by their logarithms, of four times as large."""
    run = made()
    trains(run, 200, 100)
    run.asks("layer", mib)
    finding = surely_told(fails_at(run, 800, tmp_path, layers=8))
    assert finding.evidence[0].startswith(f"{count} of its requests are 4.00x")
    assert finding.bytes == (8 * 800 + (mib if count == 10 else 0)) * 3 // 4 << 20


@pytest.mark.parametrize(("request_mib", "is_told"), [(540, True), (541, False)])
def test_memory_that_other_things_fill(tmp_path: Path, request_mib: int, is_told: bool) -> None:
    """The 540 MiB that the inputs add must be enough for the request."""
    run = made(weights=2000)
    trains(run, 20, 10, others=[request_mib // 4])
    for _ in range(9):
        run.asks("layer", 80)
    assert (told(run.fails("mask", request_mib, tmp_path)) is not None) == is_told


def test_gradients_are_as_large_as_weights(tmp_path: Path) -> None:
    run = made()
    trains(run, 20, 10)
    run.asks("layer", 80, name="grad[model.head.weight]", kind="gradient")
    finding = surely_told(fails_at(run, 80, tmp_path, layers=8))
    assert finding.bytes == 8 * (80 - 20) << 20


def test_a_line_is_compared_with_itself(tmp_path: Path) -> None:
    """Masks of 80 MiB are no longer ones of 20 MiB: those were the layers'."""
    run = made()
    trains(run, 20, 10, others=[3])
    run.asks("mask", 80)
    assert surely_told(fails_at(run, 80, tmp_path)).bytes == 9 * (80 - 20) << 20


def test_micro_batches_before_the_first_step(tmp_path: Path) -> None:
    run = made()
    for size in (20, 10):
        kept = [run.asks("layer", size) for _ in range(LAYERS)]
        run.asks("backward", 3)
        run.frees(*kept)
    assert surely_told(fails_at(run, 80, tmp_path)).verdict == "likely"


@pytest.mark.parametrize(("sizes", "is_told"), [((20, 10), True), ((80, 20), False)])
def test_a_server_of_texts_that_vary(tmp_path: Path, sizes: tuple[int, ...], is_told: bool) -> None:
    """The marks of its modules say where a pass begins."""
    run = made()
    run.asks("weights", 200, name="model.l0.weight", kind="parameter")
    for size in sizes:
        run.frees(*(run.asks("layer", size, module=f"model.l{n}") for n in range(LAYERS)))
    for number in range(LAYERS - 1):
        run.asks("layer", 80, module=f"model.l{number}")
    finding = told(run.fails("layer", 80, tmp_path))
    assert (finding is not None) == is_told
    assert finding is None or (finding.fix or "").startswith(SORT)


# Another call


def test_a_pool_that_is_scored_in_one_piece(tmp_path: Path) -> None:
    run = made()
    trains(run, 20, 20)
    finding = surely_told(fails_at(run, 800, tmp_path, part="scored"))
    assert finding.verdict == "likely"
    assert (finding.fix or "").startswith(f"{PIECES} 40 or more pieces")
    assert finding.bytes == 9 * (800 - 20) << 20
    assert finding.place is not None
    assert finding.place.line == 60


@pytest.mark.parametrize(("mib", "is_told"), [(800, True), (200, False)])
def test_a_pass_that_is_far_larger_may_be_a_mistake(
    tmp_path: Path, mib: int, *, is_told: bool
) -> None:
    """Of units, a cutoff or a mask."""
    run = made()
    trains(run, 16, 20)
    finding = finding_of(fails_at(run, mib, tmp_path), "larger_inputs")
    assert finding is not None
    assert ("look for what makes them: units" in (finding.fix or "")) == is_told


@pytest.mark.parametrize(("mib", "pieces"), [(800, 4), (808, 4), (900, 5)])
def test_pieces_are_no_larger_than_a_batch(tmp_path: Path, mib: int, pieces: int) -> None:
    run = made()
    trains(run, 200, 200)
    finding = surely_told(fails_at(run, mib, tmp_path, part="scored"))
    assert f"{PIECES} {pieces} or more pieces" in (finding.fix or "")


def test_training_is_larger_than_the_passes_that_collect_its_data(tmp_path: Path) -> None:
    """As a rollout's, without a graph: nothing is wrong with that."""
    run = made()
    trains(run, 20, 20, part="mask")
    for _ in range(4):
        scores(run, 10)
    run.frees(run.asks("optimizer", 5))
    assert told(fails_at(run, 80, tmp_path)) is None


@pytest.mark.parametrize(("used", "is_told"), [(3, True), (2, False)])
def test_a_pass_that_trains_keeps_a_graph(tmp_path: Path, used: int, is_told: bool) -> None:
    """A quarter of its requests or more are there when the backward pass runs."""
    run = made()
    for _ in range(2):
        rows = [run.asks("layer", 20) for _ in range(LAYERS)]
        run.frees(*rows[used:])
        gradient = run.asks("backward", 3)
        run.frees(*rows[:used])
        run.frees(run.asks("optimizer", 5), gradient)
    finding = told(fails_at(run, 800, tmp_path, part="scored"))
    assert (finding is not None) == is_told


def test_a_larger_pass_of_the_first_step_may_be_usual(tmp_path: Path) -> None:
    """As a query set after its support set: each step has both."""
    run = made()
    kept = [run.asks("layer", 20) for _ in range(LAYERS)]
    run.asks("backward", 3)
    run.frees(*kept)
    assert told(fails_at(run, 800, tmp_path, part="scored")) is None


def test_an_evaluation_whose_first_batch_was_as_large(tmp_path: Path) -> None:
    """What it keeps of each batch is another fault."""
    run = made()
    trains(run, 20, 20)
    scores(run, 80)
    run.asks("loss", 700)
    run.frees(run.asks("optimizer", 5))
    assert told(fails_at(run, 80, tmp_path, part="scored")) is None


def test_a_graph_of_evaluation_is_another_fault() -> None:
    """Full graphs are 42 times as large as the batches of training; without autograd they fit."""
    explained = load(DATA / "faults/scored_graph.vram").explain()
    assert told(explained) is None


# Derivatives inside of a step


@pytest.mark.parametrize(("mib", "is_told"), [(80, True), (20, False)])
def test_a_derivative_ends_no_pass(tmp_path: Path, mib: int, is_told: bool) -> None:
    run = made()
    for size in (20, 10):
        kept = [run.asks("layer", size) for _ in range(LAYERS)]
        kept += [run.asks("grad", size), run.asks("loss", 1)]
        run.asks("backward", 3)
        run.frees(*kept)
        run.frees(run.asks("optimizer", 5))
    for _ in range(LAYERS):
        run.asks("layer", mib)
    run.asks("grad", mib)
    run.asks("loss", 1)
    finding = told(run.fails("mask", 5, tmp_path))
    assert (finding is not None) == is_told
    assert finding is None or finding.bytes == 11 * (80 - 20) << 20


# One sample


def named_shape(mib: int, batch: int) -> str:
    return f"float32[{batch}, {mib << 8}, {1024 // batch}] tensor"


@pytest.mark.parametrize(("batch", "advice"), [(1, "cut or split what is too long"), (4, SORT)])
def test_of_one_sample_no_batch_is_smaller(tmp_path: Path, batch: int, advice: str) -> None:
    run = made()
    trains(run, 20, 10)
    for _ in range(9):
        run.asks("layer", 80, name=named_shape(80, batch))
    finding = surely_told(run.fails("layer", 80, tmp_path))
    assert (finding.fix or "").startswith(advice)
