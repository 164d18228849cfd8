"""Objects that wait with a tensor each, models of threads, views that are written out, last segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of

USER = "/home/user/serve.py"
THREAD: Frame = ("/usr/lib/python3.12/threading.py", 1010, "run")
CHECKPOINT = f"{TORCH}/utils/checkpoint.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "decode": ((USER, 50, "decode"),),
    "build": ((USER, 28, "__init__"), (USER, 80, "translator"), THREAD),
    "build_once": ((USER, 28, "__init__"), (USER, 80, "main")),
    "standardize": ((USER, 41, "__init__"),),
    "last": (
        (USER, 49, "forward"),
        (CHECKPOINT, 500, "forward"),
        (CHECKPOINT, 560, "checkpoint_sequential"),
        (USER, 68, "forward"),
    ),
    "segment": (
        (USER, 49, "forward"),
        (CHECKPOINT, 500, "forward"),
        (CHECKPOINT, 490, "checkpoint"),
        (CHECKPOINT, 555, "checkpoint_sequential"),
        (USER, 68, "forward"),
    ),
}
MOVES = "return torch.from_numpy(photo).to(device).float()"


@pytest.mark.parametrize(
    ("text", "count", "links", "is_told"),
    [
        (MOVES, 12, "", True),
        (MOVES, 7, "", False),
        (MOVES, 12, ".parent", False),  # a tree (linked_objects)
        ("state = self.cell(state)", 12, "", False),
        ("return x.to(torch.float32)", 12, "", False),
        ("self.state = self.cell(s).to(self.dtype)", 12, "", False),
    ],
)
def test_requests_that_wait_on_the_gpu(
    tmp_path: Path, text: str, count: int, links: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    for _ in range(count):
        run.asks("decode", 50, name="Request.photo", kept_by=links)
    answer = run.fails("decode", 50, tmp_path, source={(USER, 50): text})
    finding = finding_of(answer, "waiting_objects")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding == answer.findings[0]
        assert "12 tensors in .photo of Request objects" in finding.title


def test_requests_that_wait_in_a_queue(tmp_path: Path) -> None:
    """Their names lead through it where the search has come so far."""
    run = MadeRun(FRAMES)
    for number in range(12):
        run.asks("decode", 50, name=f"Queue._queue[{number}].photo")
    answer = run.fails("decode", 50, tmp_path, source={(USER, 50): MOVES})
    first = answer.findings[0]
    assert first.id == "waiting_objects"
    assert "12 tensors in .photo of the objects in Queue._queue" in first.title
    assert finding_of(answer, "kept_in_store") is None


@pytest.mark.parametrize(
    ("part", "models", "layer", "is_trained", "is_told"),
    [
        ("build", 4, "layers.{}.up.weight", False, True),
        ("build", 2, "layers.{}.up.weight", False, False),
        ("build", 4, "layers.{}.up.weight", True, False),
        ("build_once", 4, "layers.{}.up.weight", False, False),  # an ensemble
        ("build", 4, "up.weight", False, False),  # layers of one model that is being built
    ],
)
def test_models_that_threads_built_for_themselves(
    tmp_path: Path, part: str, models: int, layer: str, *, is_trained: bool, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    for model in range(models):
        for number in range(4):
            name = f"Translator_{model + 1}.{layer.format(number)}"
            run.asks(part, 40, name=name, kind="parameter")
    if is_trained:
        run.asks(part, 1, name="grad[Translator_1.head.weight]", kind="gradient")
    finding = finding_of(run.fails(part, 40, tmp_path), "model_of_each_thread")
    assert (finding is not None) == is_told
    if finding is not None:
        assert "4 models of one kind" in finding.title
        assert "480.00 MiB less" in (finding.fix or "")


@pytest.mark.parametrize(
    ("above", "expression", "is_told"),
    [
        ("windows = load[a:b].unfold(0, 200, 1)", "(windows - mean[:, None]) / std", True),
        ("pairs = x.expand_as(y)", "pairs * y", False),
        ("windows = load.unfold(0, 200, 1).contiguous()", "(windows - mean) / std", False),
        ("windows = load.unfold(0, 200, 1)", "torch.matmul(windows, kernel)", False),
        (
            "windows = F.pad(x, (n - 1, 0)).unfold(1, n, 1)",
            'torch.einsum("btk,bk->bt", windows, w)',
            True,
        ),
        ("windows = F.unfold(x, 3)", 'torch.einsum("btk,bk->bt", windows, w)', False),
        (
            "windows = x.unfold(2, 16, 16).unfold(3, 16, 16)",
            'torch.einsum("btk,bk->bt", windows, w)',
            False,
        ),
        ("windows = x.unfold(1, n, n)", 'torch.einsum("btk,bk->bt", windows, w)', False),
        ("windows = x.unfold(1, n, 1)", 'torch.einsum("btk,kd->btd", windows, w)', False),
        ("others = load.unfold(0, 200, 1)", "(windows - mean) / std", False),
    ],
)
def test_views_that_arithmetic_writes_out(
    tmp_path: Path, above: str, expression: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("decode", 10, name="load")
    source = {(USER, 39): above, (USER, 41): f"self.windows = {expression}"}
    answer = run.fails("standardize", 600, tmp_path, expression=expression, source=source)
    finding = finding_of(answer, "written_out_view")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding == answer.findings[0]


@pytest.mark.parametrize(("part", "is_told"), [("last", True), ("segment", False)])
def test_the_last_segment_of_a_sequence_has_no_checkpoint(
    tmp_path: Path, part: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("decode", 20)
    for _ in range(10):
        run.asks(part, 20, name="float32[8, 64] tensor")
    finding = finding_of(run.fails(part, 20, tmp_path), "one_checkpoint")
    assert (finding is not None) == is_told
