"""Each fault beside its healthy twin, made event by event: a program that looks alike and needs what it
keeps. The rule tells one and is silent, or unsure, on the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.attribution.named_shapes import Shape
from vramlens.analyses.findings.faults.kept.kept_in_store import _AVERAGE
from vramlens.analyses.findings.faults.requests.large_request import _all_pairs, _square
from vramlens.ground.allocator_sizes import block_size

TRANSFORMERS = "/opt/lib/python3.12/site-packages/transformers"
USER = "/home/user/train.py"
LAYER: tuple[Frame, ...] = (
    (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
    (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
    (USER, 20, "step"),
)
GRAD: tuple[Frame, ...] = (
    (f"{TORCH}/_functorch/eager_transforms.py", 1500, "grad_and_value_impl"),
    (f"{TORCH}/_functorch/vmap.py", 48, "fn"),
    (f"{TORCH}/_functorch/apis.py", 459, "wrapper"),
)
VMAP: tuple[Frame, ...] = (
    (f"{TORCH}/_functorch/vmap.py", 470, "_flat_vmap"),
    (f"{TORCH}/_functorch/vmap.py", 330, "vmap_impl"),
    (f"{TORCH}/_functorch/apis.py", 202, "wrapped"),
)
JACOBIAN: Frame = (f"{TORCH}/_functorch/eager_transforms.py", 650, "wrapper_fn")
REVERSE: Frame = (f"{TORCH}/_functorch/eager_transforms.py", 380, "_vjp_with_argnums")
FORWARD: tuple[Frame, ...] = (
    (f"{TORCH}/_functorch/eager_transforms.py", 1070, "_jvp_with_argnums"),
    (f"{TORCH}/_functorch/eager_transforms.py", 1300, "push_jvp"),
)
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
    "layer": LAYER,
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 30, "step")),
    "derivative": ((f"{TORCH}/autograd/__init__.py", 500, "grad"), (USER, 31, "step")),
    "optimizer": (
        (f"{TORCH}/optim/adamw.py", 600, "_multi_tensor_adamw"),
        (f"{TORCH}/optim/optimizer.py", 480, "step"),
    ),
    "data": ((USER, 5, "load"),),
    "keep": ((USER, 40, "keep"),),
    "attend": ((USER, 50, "attention"),),
    "compare": ((USER, 51, "pairs"),),
    "grad": (*LAYER, *GRAD),
    "vmap": (*LAYER, *VMAP),
    "vmap of grad": (*LAYER, *GRAD, *VMAP),
    "jacrev": (*LAYER, REVERSE, JACOBIAN),
    "jacfwd": (*LAYER, *FORWARD, *VMAP, JACOBIAN),
    "hessian": (*LAYER, REVERSE, JACOBIAN, *FORWARD, *VMAP, JACOBIAN),
    "cache": (
        (f"{TRANSFORMERS}/cache_utils.py", 120, "update"),
        (f"{TRANSFORMERS}/models/llama/modeling_llama.py", 240, "forward"),
        (USER, 21, "step"),
    ),
    "lbfgs": ((f"{TORCH}/optim/lbfgs.py", 300, "_gather_flat_grad"),),
    "concatenate": ((USER, 60, "norm"),),
    "metric": (("/opt/lib/python3.12/site-packages/torchmetrics/metric.py", 300, "update"),),
}


def made() -> MadeRun:
    return MadeRun(FRAMES)


# Transforms


@pytest.mark.parametrize(
    ("part", "verdict", "advice"),
    [
        ("vmap of grad", "likely", "pass chunk_size=N to vmap"),
        ("vmap", "possible", "if no backward pass follows"),
        ("jacrev", "likely", "pass chunk_size=N to jacrev"),
        (
            "jacfwd",
            "likely",
            "vmap(torch.func.jacfwd(f)) over the samples; else torch.func.jacrev(f,",
        ),
        ("hessian", "likely", "jacrev(torch.func.jacrev(f), chunk_size=N)"),
    ],
)
def test_a_transform_of_a_whole_batch_takes_chunks(
    tmp_path: Path, part: str, verdict: str, advice: str
) -> None:
    run = made()
    run.asks("weights", 200)
    for _ in range(6):
        run.asks(part, 100)
    finding = finding_of(run.fails(part, 160, tmp_path), "vectorized_transform")
    assert finding is not None
    assert finding.verdict == verdict
    assert advice in (finding.fix or "")
    assert finding.bytes == (6 * 100 + 160) << 20


def test_a_gradient_by_function_is_no_vectorized_transform(tmp_path: Path) -> None:
    run = made()
    run.asks("weights", 200)
    for _ in range(6):
        run.asks("grad", 100)
    assert finding_of(run.fails("grad", 160, tmp_path), "vectorized_transform") is None


def test_a_small_vmap_is_not_what_memory_ran_out_for(tmp_path: Path) -> None:
    run = made()
    run.asks("weights", 2000)
    run.asks("vmap of grad", 100)
    assert finding_of(run.fails("vmap of grad", 160, tmp_path), "vectorized_transform") is None


def test_what_comes_after_a_vmap_is_not_inside_of_it(tmp_path: Path) -> None:
    run = made()
    run.asks("vmap of grad", 600)
    assert finding_of(run.fails("compare", 600, tmp_path), "vectorized_transform") is None


# Graphs


def trains_in_turns(run: MadeRun, *, gives_up: bool) -> None:
    """Twelve backward passes: each of the oldest forward pass under way, which it gives back or not."""
    run.asks("weights", 200)
    waiting = [[run.asks("layer", 50) for _ in range(3)] for _ in range(4)]
    for _ in range(8):
        gradient, temporary = run.asks("backward", 20), run.asks("backward", 21)
        oldest = waiting.pop(0)
        if gives_up:
            run.frees(*oldest)
        run.frees(temporary, gradient)
        waiting.append([run.asks("layer", 50) for _ in range(3)])


def test_a_graph_that_passes_go_through_and_leave(tmp_path: Path) -> None:
    run = made()
    trains_in_turns(run, gives_up=False)
    finding = finding_of(run.fails("layer", 60, tmp_path), "retained_graph")
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 11 * 3 * 50 << 20  # not the turn after the last pass


def test_a_pipelines_micro_batches_in_flight_wait_for_passes_of_their_own(tmp_path: Path) -> None:
    run = made()
    trains_in_turns(run, gives_up=True)
    assert finding_of(run.fails("layer", 60, tmp_path), "retained_graph") is None


@pytest.mark.parametrize(
    ("kept", "module", "is_told"),
    [
        (12, "generator.a", True),
        (2, "generator.a", False),  # results that a variable keeps
        (12, "judge.a", False),  # another optimizer's step comes before its own backward pass
    ],
)
def test_the_graph_of_a_step_that_is_over(
    tmp_path: Path, kept: int, module: str, *, is_told: bool
) -> None:
    run = made()
    run.asks("weights", 20, name="generator.a.weight", kind="parameter")
    for step in range(3):
        results = [run.asks("layer", 50, module="generator.a") for _ in range(12)]
        run.frees(run.asks("backward", 20, module="generator.a"))
        run.frees(*results[kept:] if step == 2 else results)
        run.frees(run.asks("optimizer", 5))
    for _ in range(4):
        run.asks("layer", 50, module=module)
    finding = finding_of(run.fails("layer", 60, tmp_path), "retained_graph")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 12 * 50 << 20
        assert "retain_graph=True out of the last backward()" in (finding.fix or "")


# Requests


def test_pairs_of_rows_and_a_layers_bias() -> None:
    points = Shape("float32", (1 << 20, 64))
    codes = 4096
    assert _all_pairs(points, points.bytes * codes, {block_size(codes * 64 * 4)}) is not None
    coordinates, width = Shape("float32", (1 << 24, 2)), 256
    bias = {block_size(width * 4)}
    assert _all_pairs(coordinates, (1 << 24) * width * 4, bias) is None


ALL_PAIRS = "all pairs of rows of float32[40960, 64]"
SQUARE = "a square matrix: a number for each pair of 524,288 rows"


@pytest.mark.parametrize(
    ("expression", "table", "is_told"),
    [
        ("", "", True),  # nobody knows what it was
        ("a[:, None] - b", "", True),
        ("self.compare(a, b)", "float32[15625, 64] tensor", True),
        ("a[:, None] - b", "float32[1000000] tensor", False),  # no table of 64 columns
        ("torch.multinomial(rows, k, replacement=True)", "", False),
        ("x.float()", "", False),
        ("torch.randn_like(x) * SCALE", "", False),
        ("loss = (a[:, None] - b).sum(-1)", "", True),  # Python 3.10 knows the line alone
        ("scores.softmax(-1)", "", False),
    ],
)
def test_pairs_of_rows_are_of_a_table_and_of_arithmetic(
    tmp_path: Path, expression: str, table: str, *, is_told: bool
) -> None:
    run = made()
    run.asks("data", 1, name="float32[40960, 64] tensor")
    run.asks("data", 4e6 / (1 << 20), name=table or "model.sampler.weights")
    finding = finding_of(
        run.fails("compare", 156250, tmp_path, expression=expression), "request_too_large"
    )
    assert finding is not None
    assert (ALL_PAIRS in " ".join(finding.evidence)) == is_told


@pytest.mark.parametrize(
    ("name", "expression", "is_told"),
    [
        ("float32[524288, 64] tensor", "", True),
        ("float32[524288, 64] tensor", "self.kernel(x, x)", True),
        ("float32[524288, 64] tensor", "x.cumsum(0)", False),
        ("uint8[65536, 524288] tensor", "", False),  # eight bytes for each of them are as many
        ("uint8[65536, 524288] tensor", "count(geno)", False),
    ],
)
def test_a_square_matrix_is_of_a_product(
    tmp_path: Path, name: str, expression: str, *, is_told: bool
) -> None:
    run = made()
    run.asks("data", 32, name=name)
    mib = (1 << 40 if name.startswith("float") else 1 << 38) >> 20
    finding = finding_of(
        run.fails("compare", mib, tmp_path, expression=expression), "request_too_large"
    )
    assert finding is not None
    assert (SQUARE in " ".join(finding.evidence)) == is_told


@pytest.mark.parametrize(("part", "is_told"), [("compare", True), ("layer", False)])
def test_a_layers_output_is_no_one_hot_form(tmp_path: Path, part: str, is_told: bool) -> None:
    run = made()
    run.asks("data", 16, name="int64[1024, 2048] tensor")
    finding = finding_of(run.fails(part, 16 * 9001, tmp_path), "request_too_large")
    assert finding is not None
    assert ("one-hot" in " ".join(finding.evidence)) == is_told
    assert "wrong shape" in (finding.fix or "")  # what holds in any case


# Stores


def test_a_nameless_dict_is_not_another(tmp_path: Path) -> None:
    run = made()
    run.asks("weights", 200)
    for number in range(6):
        run.asks("keep", 50, name=f"dict['a{number}']")
        run.asks("data", 50, name=f"dict['b{number}']")
    assert finding_of(run.fails("layer", 60, tmp_path), "kept_in_store") is None


@pytest.mark.parametrize(("trained_before", "verdict"), [(False, "likely"), (True, "possible")])
def test_fast_weights_are_not_a_copy_that_stays(
    tmp_path: Path, trained_before: bool, verdict: str
) -> None:
    run = made()
    for number in range(8):
        run.asks("weights", 50, name=f"model.l{number}.weight", kind="parameter")
    if trained_before:
        activations = [run.asks("layer", 10) for _ in range(3)]
        run.asks("backward", 21)
        run.frees(*activations)
    for number in range(8):
        run.asks("keep", 50, name=f"Task.fast['l{number}.weight']")
    finding = finding_of(run.fails("layer", 60, tmp_path), "kept_in_store")
    assert finding is not None
    assert "copy of the weights" in finding.evidence[0]
    assert finding.verdict == verdict


def test_averages_are_known_by_whole_words() -> None:
    averages = ("EMA.shadow", "model_ema", "ema.params", "EmaHelper.rows", "Trainer.avg", "teacher")
    others = ("schema", "demands", "avgpool_out", "semantic", "Thema.rows", "image_embeddings")
    assert all(_AVERAGE.search(name) for name in averages)
    assert not any(_AVERAGE.search(name) for name in others)


def test_all_metrics_that_keep_what_they_get_are_one_finding(tmp_path: Path) -> None:
    """One edit is for all."""
    run = MadeRun(FRAMES)
    for entry in range(12):
        run.asks("metric", 50, name=f"model.auroc.preds[{entry}]")
        run.asks("metric", 40, name=f"model.ap.preds[{entry}]")
        run.asks("metric", 0.5, name=f"model.counts.total[{entry}]")
    finding = finding_of(run.fails("keep", 50, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.title.startswith(
        "36 tensors in model.auroc.preds and other metrics hold 1.06 GiB"
    )
    assert "thresholds=200" in (finding.fix or "")


@pytest.mark.parametrize(("part", "is_metric"), [("metric", True), ("keep", False)])
def test_one_row_of_a_metric_does_not_make_a_store_one(
    tmp_path: Path, part: str, is_metric: bool
) -> None:
    run = made()
    run.asks("weights", 200)
    run.asks("metric", 50, name="Run.rows[0]")
    for number in range(1, 10):
        run.asks(part, 50, name=f"Run.rows[{number}]")
    finding = finding_of(run.fails("layer", 60, tmp_path), "kept_in_store")
    assert finding is not None
    assert ("torchmetrics" in " ".join(finding.evidence)) == is_metric


# Calls


def test_calls_that_ended_and_one_call_with_many_variables(tmp_path: Path) -> None:
    kept, single, waiting = made(), made(), made()
    for run in (kept, single, waiting):
        run.asks("weights", 200)
    for number in range(8):
        call = f", call {number + 1}" if number else ""
        kept.asks("keep", 50, name=f"local of step(){call}")
        single.asks("keep", 50, name="local of step()")
        waiting.asks("keep", 50, name=f"local of coroutine step(){call}")
    finding = finding_of(kept.fails("layer", 60, tmp_path), "kept_by_calls")
    assert finding is not None
    assert finding.verdict == "likely"
    assert "8 calls of step()" in finding.title
    assert finding_of(single.fails("layer", 60, tmp_path), "kept_by_calls") is None
    assert finding_of(waiting.fails("layer", 60, tmp_path), "kept_by_calls") is None


class InBackward(MadeRun):
    """What the engine's own thread asks for has no stack of Python's."""

    def frames_of(self, part: str) -> list[dict[str, Any]]:
        return [] if part == "engine" else super().frames_of(part)


def test_calls_that_ended_before_a_backward_pass_failed(tmp_path: Path) -> None:
    """Nobody knows which call waits for it: one at most."""
    run = InBackward(FRAMES)
    run.asks("weights", 200)
    for number in range(8):
        call = f", call {number + 1}" if number else ""
        run.asks("keep", 50, name=f"local of step(){call}")
    finding = finding_of(run.fails("engine", 60, tmp_path), "kept_by_calls")
    assert finding is not None
    assert finding.verdict == "likely"


@pytest.mark.parametrize(
    ("calls", "order", "verdict"),
    [
        (4, (1, 1, 2, 2, 3, 3, 4, 4), "likely"),
        (4, (1, 2, 3, 1, 2, 3, 4, 4), "possible"),  # of other threads
        (2, (1, 1, 1, 2, 2, 2), "possible"),  # too few
    ],
)
def test_a_few_calls_one_after_the_other(
    tmp_path: Path, calls: int, order: tuple[int, ...], verdict: str
) -> None:
    run = made()
    run.asks("weights", 100)
    for number in order:
        call = f", call {number}" if number > 1 else ""
        run.asks("keep", 50, name=f"local of step(){call}")
    finding = finding_of(run.fails("keep", 60, tmp_path), "kept_by_calls")
    assert finding is not None
    assert f"{calls} calls of step()" in finding.title
    assert finding.verdict == verdict


def test_generators_are_to_be_ended(tmp_path: Path) -> None:
    run = made()
    for number in range(8):
        call = f", call {number + 1}" if number else ""
        run.asks("keep", 50, name=f"local of generator batches(){call}")
    finding = finding_of(run.fails("layer", 60, tmp_path), "kept_by_calls")
    assert finding is not None
    assert "close()" in (finding.fix or "")


# Attention


@pytest.mark.parametrize(("part", "verdict"), [("attend", "likely"), ("compare", "possible")])
def test_pairs_of_nodes_are_no_attention(tmp_path: Path, part: str, verdict: str) -> None:
    run = made()
    run.asks("weights", 100)
    run.asks("data", 16, name="float32[32, 1024, 128] tensor")
    for _ in range(4):
        run.asks(part, 128, name="float32[32, 1024, 1024] tensor")
    finding = finding_of(run.fails(part, 128, tmp_path), "attention_written_out")
    assert finding is not None
    assert finding.verdict == verdict
    assert ("if these are weights of attention" in (finding.fix or "")) == (verdict == "possible")


BIAS = {(USER, 50): "bias = alibi[:, :, :n, :n].repeat(b, 1, 1, 1)"}


@pytest.mark.parametrize(
    ("source", "expression", "part", "is_told"),
    [
        ({}, None, "attend", True),
        ({(USER, 50): "scores = q @ k.transpose(-1, -2)"}, "scores.softmax(-1)", "attend", True),
        (BIAS, None, "attend", False),
        (BIAS, "q @ k.transpose(-1, -2)", "compare", False),
    ],
)
def test_a_bias_that_is_repeated_is_no_attention_weight(
    tmp_path: Path,
    source: dict[tuple[str, int], str],
    expression: str | None,
    part: str,
    is_told: bool,
) -> None:
    run = made()
    run.asks("weights", 100)
    run.asks("data", 16, name="float32[32, 1024, 128] tensor")
    for _ in range(4):
        run.asks("attend", 128, name="float32[32, 1024, 1024] tensor")
    answer = run.fails(part, 128, tmp_path, source=source, expression=expression)
    assert (finding_of(answer, "attention_written_out") is not None) == is_told


# Caches


def caches(run: MadeRun, layers: int) -> None:
    for layer in range(layers):
        run.asks("layer", 60, module=f"model.layers.{layer}")
        run.asks("cache", 50, name="DynamicLayer.keys", module=f"model.layers.{layer}")
        run.asks("cache", 50, name="DynamicLayer.values", module=f"model.layers.{layer}")


@pytest.mark.parametrize(("calls", "is_told"), [(1, True), (2, False)])
def test_a_cache_of_earlier_calls_is_used(tmp_path: Path, calls: int, is_told: bool) -> None:
    run = made()
    run.asks("weights", 200)
    for _ in range(calls):
        run.asks("layer", 10, module="model")
        caches(run, 4)
    finding = finding_of(run.fails("layer", 60, tmp_path), "unused_cache")
    assert (finding is not None) == is_told


def test_a_graph_keeps_the_cached_values_anyway(tmp_path: Path) -> None:
    run = made()
    run.asks("weights", 200)
    run.asks("layer", 10, module="model")
    caches(run, 4)
    for layer in range(20):
        run.asks("layer", 60, module=f"model.layers.{layer % 4}.mlp")
    assert finding_of(run.fails("layer", 60, tmp_path), "unused_cache") is None


# Vectors of all


@pytest.mark.parametrize(("part", "is_told"), [("concatenate", True), ("lbfgs", False)])
def test_an_optimizer_that_works_on_one_vector_needs_it(
    tmp_path: Path, part: str, is_told: bool
) -> None:
    run = made()
    for number in range(10):
        run.asks("weights", 20, name=f"model.l{number}.weight", kind="parameter")
    for number in range(10):
        run.asks("backward", 20, name=f"grad[model.l{number}.weight]", kind="gradient")
    finding = finding_of(run.fails(part, 200, tmp_path), "concatenated_copy")
    assert (finding is not None) == is_told


# Optimizers


def probe(run: MadeRun, *, uses: tuple[str, str], order: tuple[str, str]) -> None:
    """A body and a head, and the activations of a forward pass through both."""
    for part, use in zip(("body", "head"), uses, strict=True):
        run.asks("weights", 100, name=f"model.{part}.weight", kind="parameter", use=use)
    for part in order:
        for _ in range(10):
            run.asks("layer", 40, module=f"model.{part}")


@pytest.mark.parametrize(
    ("uses", "order", "is_told"),
    [
        (("unstepped", "stepped"), ("body", "head"), True),
        (("stepped", "stepped"), ("body", "head"), False),
        (("frozen", "stepped"), ("body", "head"), False),
        (("unstepped", "stepped"), ("head", "body"), False),  # gradients go through the body
        (("unstepped", ""), ("body", "head"), False),
    ],
)
def test_what_no_optimizer_has_is_to_be_frozen(
    tmp_path: Path, uses: tuple[str, str], order: tuple[str, str], is_told: bool
) -> None:
    run = made()
    probe(run, uses=uses, order=order)
    finding = finding_of(run.fails("layer", 60, tmp_path), "unstepped_parameters")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 8 * 40 << 20
        assert "requires_grad_(False) on model.body" in (finding.fix or "")


def test_an_average_that_runs_without_a_graph_keeps_little(tmp_path: Path) -> None:
    run = made()
    for part, use in (("body", "unstepped"), ("head", "stepped")):
        run.asks("weights", 100, name=f"model.{part}.weight", kind="parameter", use=use)
    for number in range(20):
        activation = run.asks("layer", 40, module="model.body")
        if number % 5:  # what goes past some layers is alive until they are done
            run.frees(activation)
    assert finding_of(run.fails("layer", 60, tmp_path), "unstepped_parameters") is None


def test_an_optimizer_of_copies_trains_what_it_does_not_have(tmp_path: Path) -> None:
    run = made()
    run.asks("weights", 50, name="optimizer.params[0][0]", kind="parameter", use="stepped")
    probe(run, uses=("unstepped", "stepped"), order=("body", "head"))
    assert finding_of(run.fails("layer", 60, tmp_path), "unstepped_parameters") is None


# Models


def folds(run: MadeRun, *, again: int | None, trained: bool = True, cache: str = "") -> None:
    """Three models after each other; one of them may run again, in the turn of the last."""
    for fold in range(3):
        for part in ("body", "head"):
            name = f"Net_{fold}.{part}.weight"
            run.asks("weights", 50, name=name, kind="parameter", kept_by=cache)
            if trained:
                run.asks("optimizer", 50, name=f"optimizer.m[{name}]", kind="optimizer_state")
        activations = [run.asks("layer", 10, module=f"Net_{fold}.body") for _ in range(3)]
        if fold == 2 and again is not None:
            activations.append(run.asks("layer", 10, module=f"Net_{again}.body"))
        run.frees(*activations)


@pytest.mark.parametrize(
    ("again", "trained", "size_mib"), [(None, True, 400), (0, True, 200), (None, False, None)]
)
def test_models_that_run_again_are_not_finished(
    tmp_path: Path, again: int | None, trained: bool, size_mib: int | None
) -> None:
    run = made()
    folds(run, again=again, trained=trained)
    finding = finding_of(run.fails("layer", 60, tmp_path), "finished_models")
    assert (None if finding is None else finding.bytes) == (size_mib and size_mib << 20)


def test_a_cache_that_keeps_finished_models_is_named(tmp_path: Path) -> None:
    run = made()
    folds(run, again=None, cache="unlimited lru_cache of Net.bias()")
    finding = finding_of(run.fails("layer", 60, tmp_path), "finished_models")
    assert finding is not None
    assert "the unlimited lru_cache of Net.bias() has them as arguments" in finding.evidence[1]
    assert (finding.fix or "").startswith("take the cache off that function")


def test_a_smaller_model_is_no_earlier_try_of_the_same(tmp_path: Path) -> None:
    run = made()
    for name, size in (("Critic", 50), ("Actor", 60)):
        weight = f"{name}.body.weight"
        run.asks("weights", size, name=weight, kind="parameter")
        run.asks("optimizer", size, name=f"optimizer.m[{weight}]", kind="optimizer_state")
        run.frees(run.asks("layer", 10, module=f"{name}.body"))
    assert finding_of(run.fails("layer", 60, tmp_path), "finished_models") is None


@pytest.mark.parametrize(
    ("names", "parts", "line", "is_told"),
    [
        (("TwoTower", "TwoTower_2"), (4, 4), "data", True),
        (("model", "TwoTower"), (4, 4), "data", False),  # of a stage before, perhaps
        (("model", "TwoTower"), (4, 4), "weights", True),  # made by the same line
        (("model", "TwoTower"), (4, 6), "weights", True),  # a deeper one
        (("TwoTower", "TwoTower_2"), (4, 6), "data", False),
        (("model", "TwoTower"), (3, 6), "weights", False),
        (("TwoTower", "Ranker"), (4, 4), "weights", False),
        (("TwoTower", "TwoTower_2"), (3, 3), "data", False),
    ],
)
def test_models_of_trials_have_the_same_parts_in_other_sizes(
    tmp_path: Path, names: tuple[str, str], parts: tuple[int, int], line: str, *, is_told: bool
) -> None:
    run = made()
    lines = "weights", line
    for name, size, count, maker in zip(names, (20, 25), parts, lines, strict=True):
        for part in range(count):
            weight = f"{name}.tower{part}.weight"
            run.asks(maker, size, name=weight, kind="parameter")
            run.asks("optimizer", size, name=f"optimizer.m[{weight}]", kind="optimizer_state")
        run.frees(run.asks("layer", 10, module=f"{name}.tower0"))
    finding = finding_of(run.fails("layer", 60, tmp_path), "finished_models")
    assert (finding is not None) == is_told


@pytest.mark.parametrize(("is_stepped", "verdict"), [(True, "likely"), (False, "possible")])
def test_weights_of_trials_and_of_the_tasks_of_one_step(
    tmp_path: Path, is_stepped: bool, verdict: str
) -> None:
    run = made()
    for part in ("body", "head"):
        run.asks("weights", 50, name=f"model.{part}.weight", kind="parameter")
    for trial in range(6):
        if is_stepped:
            activations = [run.asks("layer", 10) for _ in range(3)]
            run.asks("backward", 21)
            run.frees(*activations)
            run.frees(run.asks("optimizer", 11))
        for part in ("body", "head"):
            run.asks("keep", 50, name=f"Sweep.trials[{trial}].weights['{part}.weight']")
    finding = finding_of(run.fails("layer", 60, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.verdict == verdict
    assert ("value.cpu()" in (finding.fix or "")) == is_stepped


def test_results_of_jobs_wait_in_futures(tmp_path: Path) -> None:
    run = made()
    for _ in range(10):
        run.asks("data", 60, name="Future._result[1]")
    finding = finding_of(run.fails("layer", 60, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.verdict == "likely"
    assert "submit only a few jobs" in (finding.fix or "")


def test_a_square_matrix_is_known_by_its_rows() -> None:
    points = Shape("float32", (28_800, 3))
    square = _square(points, 28_800**2 * 4, has_text=False)
    assert square is not None
    assert "28,800 rows" in square.reading
    assert "torch.linalg.svd" in square.fix
    with_text = _square(points, 28_800**2 * 4, has_text=True)
    assert with_text is not None
    assert "torch.linalg.svd" not in with_text.fix
    assert _square(points, 28_800**2 * 8, has_text=False) is None
    assert _square(Shape("float32", (1000, 3)), 1000**2 * 4, has_text=False) is None


# Evaluation


@pytest.mark.parametrize("is_derived", [False, True])
def test_forces_need_a_graph_in_evaluation_too(tmp_path: Path, is_derived: bool) -> None:
    run = made()
    for part in ("body", "head"):
        run.asks("weights", 20, name=f"model.{part}.weight", kind="parameter")
    activations = [run.asks("layer", 10, module="model.body") for _ in range(9)]
    run.asks("backward", 21)
    run.frees(*activations)
    for _ in range(4):
        for number in range(10):
            run.asks("layer", 20, module=f"model.{'head' if number == 9 else 'body'} [eval+grad]")
        if is_derived:
            run.asks("derivative", 21)
        run.asks("data", 1)
    answer = run.fails("layer", 60, tmp_path)
    assert (finding_of(answer, "eval_with_grad") is None) == is_derived


# Tries


@pytest.mark.parametrize(
    ("while_handling", "keeps", "is_told"),
    [(True, True, True), (False, True, False), (True, False, False)],
)
def test_another_try_inside_of_the_except_block(
    tmp_path: Path, while_handling: bool, keeps: bool, is_told: bool
) -> None:
    run = made()
    run.asks("weights", 100, name="model.body.weight", kind="parameter")
    failed = [run.asks("layer", 50, module=f"model.{part}") for part in ("body", "head")]
    run.is_refused("layer", 200)
    if not keeps:
        run.frees(*failed)
    for part in ("body", "head"):
        run.asks("layer", 25, module=f"model.{part}")
    answer = run.fails("layer", 60, tmp_path, while_handling=while_handling)
    finding = finding_of(answer, "retry_in_except")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 100 << 20
        assert "after the except block" in (finding.fix or "")
