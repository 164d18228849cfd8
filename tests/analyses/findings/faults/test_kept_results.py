"""What earlier passes and a list left, beside programs that look alike: caches of keys and values, batches of a
generator, states of parameters that were replaced.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/serve.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
GENERATION: Frame = ("/opt/site-packages/transformers/generation/utils.py", 2500, "_sample")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "cache": ((USER, 12, "forward"), CALL, GENERATION, (USER, 40, "answer")),
    "own cache": ((USER, 12, "forward"), CALL, (USER, 41, "expand")),
    "batch": ((USER, 20, "encode"), (USER, 24, "batches"), (USER, 50, "scan")),
    "step": ((f"{TORCH}/optim/adam.py", 300, "step"), (USER, 60, "main")),
}
LAYERS = 4


def generated(run: MadeRun, texts: int, *, name: str = "DynamicLayer") -> None:
    """The caches of so many texts: keys and values of each layer."""
    for _ in range(texts):
        run.frees(
            run.asks("cache", 1, module="model [no grad]")
        )  # the pass of its last token begins
        for layer in range(LAYERS):
            for part in ("keys", "values"):
                run.asks(
                    "cache", 10, name=f"{name}.{part}", module=f"model.h.{layer}.attn [no grad]"
                )


@pytest.mark.parametrize(
    ("texts", "name", "is_told"),
    [
        (4, "DynamicLayer", True),
        (5, "StaticLayer", True),
        (3, "DynamicCache.layers[3]", True),
        (2, "DynamicLayer", False),  # the present one, and one that waits
        (4, "Store", False),  # no cache
    ],
)
def test_caches_of_finished_texts(tmp_path: Path, texts: int, name: str, *, is_told: bool) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.h.0.attn.weight", kind="parameter")
    generated(run, texts, name=name)
    finding = finding_of(run.fails("cache", 60, tmp_path), "kept_caches")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == (texts - 1) * LAYERS * 2 * 10 * MIB
        assert "past_key_values" in (finding.fix or "")


def versions(
    folder: Path, lengths: list[int], *, mark: str = " [no grad]", text: str = ""
) -> Finding | None:
    """What is told of caches of so many lengths that are all alive."""
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="model.h.0.attn.weight", kind="parameter")
    for length in lengths:
        for layer in range(LAYERS):
            run.asks("own cache", length, module=f"model.h.{layer}.attn{mark}")
    source = {(USER, 12): text or "k = torch.cat([past[0], k], dim=2)"}
    return finding_of(run.fails("own cache", 60, folder, source=source), "kept_caches")


def test_earlier_versions_of_a_cache(tmp_path: Path) -> None:
    finding = versions(tmp_path, [8, 9, 10, 11, 12])
    assert finding is not None
    assert finding.bytes == LAYERS * (8 + 9 + 10 + 11) * MIB
    assert "5 lengths" in finding.title


@pytest.mark.parametrize(
    ("lengths", "mark", "text"),
    [
        ([12, 12, 12, 12, 12], " [no grad]", ""),  # those of five beams
        ([11, 12], " [no grad]", ""),  # the version before goes when the next is there
        ([12, 9, 14, 8, 11], " [no grad]", ""),  # texts of other lengths
        ([8, 16, 32, 64, 128], " [no grad]", ""),  # maps of other scales
        ([8, 9, 10, 11, 12], "", ""),  # a graph keeps them
        ([8, 9, 10, 11, 12], " [no grad]", "k = self.project(x)"),
    ],
)
def test_what_is_no_earlier_version(
    tmp_path: Path, lengths: list[int], mark: str, text: str
) -> None:
    assert versions(tmp_path, lengths, mark=mark, text=text) is None


@pytest.mark.parametrize(
    ("text", "tensors", "kind", "is_told"),
    [
        ("batches = list(batches(ref, window))", 12, "generator ", True),
        ("tiles = sorted(self.batches(ref), key=len)", 12, "generator ", True),
        ("outputs = list(batches(model, batch))", 12, "", False),  # a function returns them all
        ("batches = list(batches(ref, window))", 3, "generator ", False),
        ("for batch in batches(ref, window):", 12, "generator ", False),
        ("names = list(ref.keys())", 12, "generator ", False),
    ],
)
def test_a_list_of_all_that_a_generator_makes(
    tmp_path: Path, text: str, tensors: int, kind: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="model.weight", kind="parameter")
    run.asks("batch", 1, name=f"local of {kind}batches()")
    for _ in range(tensors):
        run.asks("batch", 10)
    answer = run.fails("batch", 60, tmp_path, source={(USER, 50): text})
    finding = finding_of(answer, "listed_batches")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == (tensors * 10 + 1) * MIB
        assert finding.place is not None
        assert finding.place.line == 50


@pytest.mark.parametrize(("replaced", "is_told"), [(3, True), (0, False)])
def test_states_of_replaced_parameters(tmp_path: Path, replaced: int, *, is_told: bool) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 80, name="optimizer.params['xyz'][0]", kind="parameter", use="stepped")
    for number in range(replaced):
        run.asks("weights", 50 + number)  # a key of the state has no name
        for part in ("exp_avg", "exp_avg_sq"):
            name = f"optimizer.{part}[unknown parameter]"
            run.asks("step", 50 + number, name=name, kind="optimizer_state")
    for part in ("exp_avg", "exp_avg_sq"):
        run.asks("step", 80, name=f"optimizer.{part}[params['xyz'][0]]", kind="optimizer_state")
    finding = finding_of(run.fails("step", 60, tmp_path), "replaced_states")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 3 * (50 + 51 + 52) * MIB
        assert "optimizer.state.pop(old)" in (finding.fix or "")
