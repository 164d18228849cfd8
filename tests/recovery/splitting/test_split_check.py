"""What the check on first use must not miss, and what it must not refuse."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from recovery.training import furthest, net, tokens
from vramlens.errors import UsageError
from vramlens.recovery import guard, inject_oom
from vramlens.recovery.comparing.strategy_kinds import NotHere, TrainingSetup, parts_of
from vramlens.recovery.comparing.strategy_run import _measured, _refuse_conflicts
from vramlens.recovery.losses.chunked_loss import in_chunks
from vramlens.recovery.memory_errors import OUT_OF_MEMORY, kind_of
from vramlens.recovery.meters import CountingMeter
from vramlens.recovery.splitting.batch_parts import BatchSamples, CannotSplit

FLOAT = torch.float64
CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 5.0], dtype=FLOAT)


def linear(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, outputs).double()


def rows(labels: list[int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(labels))
    return {
        "x": torch.randn(len(labels), 4, dtype=FLOAT, generator=generator),
        "y": torch.tensor(labels),
    }


def by_class(model: Any, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"], weight=CLASS_WEIGHTS)


def masked(model: Any, batch: Any) -> torch.Tensor:
    losses = functional.mse_loss(
        model(batch["x"]), torch.ones(len(batch["y"]), 3, dtype=FLOAT), reduction="none"
    )
    return (losses.mean(1) * batch["mask"]).sum() / batch["mask"].sum()


def trained(batches: list[Any], loss_fn: Any, **options: Any) -> Any:
    """The largest difference of a gradient from the undisturbed one, with a failure in the first
    step.
    """
    model, plain = linear(), linear()
    ours: list[dict[str, torch.Tensor]] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(
        lambda *_: ours.append({n: p.grad.clone() for n, p in model.named_parameters()})
    )
    watch = guard(model, optimizer, **options)
    differences = []
    for index, batch in enumerate(batches):
        if index:
            watch.step(batch, loss_fn)
        else:
            with inject_oom("forward"):
                watch.step(batch, loss_fn)
        plain.zero_grad()
        loss_fn(plain, batch).backward()
        differences.append(furthest(ours[index], {n: p.grad for n, p in plain.named_parameters()}))
    return watch, max(differences)


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 2, 0, 1, 2, 2, 1], [0] * 6 + [1, 2], [1] * 8],
    ids=["mixed", "sorted", "one class"],
)
def test_class_weights_are_those_of_the_labels(labels: list[int]) -> None:
    """Also where the first batch has one class only, and samples would seem to count alike."""
    watch, difference = trained([rows(labels), rows([0, 2, 1, 1, 2, 0, 0, 2])], by_class)
    assert difference < 1e-10
    assert "class weights of batch['y']" in str(watch.report())


def test_class_weights_of_labels_that_are_not_in_the_batch_are_refused() -> None:
    batch = {"x": rows([0] * 8)["x"], "y": torch.tensor([0.0, 1, 2, 0, 1, 2, 2, 1])}
    found = guard(linear()).verify(
        batch, lambda m, b: by_class(m, {"x": b["x"], "y": b["y"].long()})
    )
    assert not found.equal
    assert "weight[labels].sum()" in found.reason


def test_equal_class_weights_are_no_weights() -> None:
    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(
            model(batch["x"]), batch["y"], weight=torch.full((3,), 2.0, dtype=FLOAT)
        )

    assert guard(linear()).verify(rows([0, 1, 2, 0, 1, 2, 2, 1]), loss_fn).weights.name == "samples"


def test_any_ignored_value_is_found_also_later() -> None:
    def padded(model: Any, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch["x"]), batch["y"], ignore_index=0)

    _, difference = trained(
        [rows([1, 2, 1, 2, 1, 2, 2, 1]), rows([0, 2, 0, 0, 1, 2, 0, 0])], padded
    )
    assert difference < 1e-10


def test_a_mask_that_a_few_samples_do_not_show_is_seen_in_the_loss_of_the_whole() -> None:
    count = 64
    batch = {**rows([0] * count), "mask": torch.ones(count, dtype=FLOAT)}
    batch["mask"][[1, 3, 4, 5, 6, 7, 8]] = 0  # none of the 16 samples that are looked at
    found = guard(linear()).verify(batch, masked)
    assert found.samples == 16
    assert found.error is not None
    assert found.error < 1e-10
    assert not found.equal
    assert "the loss of the whole batch is" in found.reason


def test_a_mask_that_begins_with_the_second_batch_is_refused_before_it_counts() -> None:
    full = {**rows([0] * 8), "mask": torch.ones(8, dtype=FLOAT)}
    ragged = {**full, "mask": torch.tensor([1.0, 0, 1, 1, 1, 0, 0, 1], dtype=FLOAT)}
    watch, difference = trained([full, ragged], masked)
    assert difference < 1e-10  # it was run whole
    assert "does not split" in str(watch.report())
    assert not any(event.changes_numbers for event in watch.report().events)


def test_no_batch_is_split_on_trust() -> None:
    """A mask that shows only with the fourth batch: what its parts were divided by tells before
    it counts.
    """
    full = {**rows([0] * 8), "mask": torch.ones(8, dtype=FLOAT)}
    ragged = {**full, "mask": torch.tensor([1.0, 0, 1, 1, 1, 0, 0, 1], dtype=FLOAT)}
    watch, difference = trained([full, full, full, ragged, ragged], masked)
    assert difference < 1e-10
    assert "gradients equal those of whole batches" in watch.report().headline
    assert "does not split" in str(watch.report())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scaled", [False, True])
def test_sixteen_bits_are_rounding_and_not_a_reason_to_refuse(
    dtype: torch.dtype, scaled: bool
) -> None:
    def half(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", dtype):
            logits = model(batch["ids"])
        return functional.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())

    model = net(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
    watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.0), scaler)
    with inject_oom("backward"):
        watch.step(tokens(8), half)
    assert watch.micro_batch == 4


def test_a_contrastive_loss_in_sixteen_bits_is_refused() -> None:
    def contrastive(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            vectors = functional.normalize(model(batch["ids"]).mean(1).float(), dim=-1)
        return functional.cross_entropy(vectors @ vectors.T / 0.1, torch.arange(len(vectors)))

    assert not guard(net(torch.float32)).verify(tokens(8), contrastive).equal


def test_a_scale_that_overflows_is_left_out() -> None:
    def half(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return model(batch["x"]).float().square().mean() * 1e3

    model = nn.Linear(4, 3)
    watch = guard(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        torch.amp.GradScaler("cpu", init_scale=2.0**24),
    )
    assert watch.verify({"x": torch.randn(8, 4)}, half).equal


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(4, 6, 2, batch_first=True, dropout=0.3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.cells(packed)[1][-1])


def test_packed_sequences_which_must_be_sorted() -> None:
    """They cannot be turned around; and their functions have one more argument before the
    dropout.
    """
    torch.manual_seed(0)
    batch = {"x": torch.randn(8, 6, 4, dtype=FLOAT), "n": torch.tensor([6, 6, 5, 4, 3, 3, 2, 1])}
    found = guard(Packed().double()).verify(batch, lambda m, b: m(b["x"], b["n"]).square().mean())
    assert found.equal, found.reason
    model = Packed().double()
    watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.0))
    with inject_oom(
        "backward"
    ) as drill:  # only the second of the cells' two outputs has a gradient
        watch.step(batch, lambda m, b: m(b["x"], b["n"]).square().mean())
    assert drill.raised == 1


def test_state_that_does_not_fit_a_few_samples_is_a_refusal_with_its_leaf() -> None:
    """Not the program's own error: it would not have come up without the guard."""
    cells = nn.LSTM(4, 6, batch_first=True).double()
    batch = {"x": torch.randn(8, 5, 4, dtype=FLOAT), "state": (torch.zeros(1, 8, 6).double(),) * 2}
    watch = guard(cells, order=("split",))
    with (
        inject_oom("forward"),
        pytest.raises(torch.OutOfMemoryError, match=r"loss_fn fails on .*batch\['state'\]\[0\]"),
    ):
        watch.step(batch, lambda m, b: m(b["x"], b["state"])[0].square().mean())


def test_batches_as_detectors_collate_them() -> None:
    images = tuple(torch.rand(3, 4, 4) for _ in range(4))
    targets = tuple({"boxes": torch.rand(k + 1, 4), "labels": torch.ones(k + 1)} for k in range(4))
    samples = BatchSamples((images, targets))
    assert samples.count == 4
    first, second = samples.part(1, 3)
    assert first[0] is images[1]
    assert second == targets[1:3]
    assert samples.chosen([3, 0])[1] == (targets[3], targets[0])
    two = BatchSamples([list(images[:2]), list(targets[:2])])  # as long as the list that holds both
    assert two.part(0, 1) == [[images[0]], [targets[0]]]


def test_two_dictionaries_are_no_two_samples() -> None:
    one, other = {"ids": torch.arange(6)}, {"labels": torch.arange(6)}
    for batch in ([one, other], (one, other), (one, dict(one))):
        samples = BatchSamples(batch)
        assert samples.count == 6
        assert [len(leaf) for part in samples.part(0, 2) for leaf in part.values()] == [2, 2]
    with pytest.raises(CannotSplit):
        BatchSamples((one, {"labels": torch.arange(5)}))


@pytest.mark.parametrize(
    "text",
    ["Triton Error [CUDA]: out of memory",
     'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":838'],
)  # fmt: skip
def test_more_ways_to_say_that_memory_ran_out(text: str) -> None:
    assert kind_of(RuntimeError(text)) == OUT_OF_MEMORY


def test_what_is_no_optimizer_is_refused_and_a_foreign_one_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="several optimizers, use guard\\(model, None\\)"):
        guard(model, [optimizer, optimizer])  # type: ignore[arg-type]
    watch = guard(linear(), optimizer)
    assert "none of the model's parameters" in capsys.readouterr().err
    assert "none of the model's parameters" in str(watch.report())


def test_an_optimizer_that_unscales_by_itself_is_refused() -> None:
    """As accelerate's and Lightning's do in float16: gradients would be divided by a scale that
    they never had.
    """
    model = linear()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(UsageError, match="its own scaler"):
        guard(model, optimizer)
    optimizer.scaler = torch.amp.GradScaler("cpu", enabled=False)
    guard(model, optimizer)


def test_a_drill_that_did_not_strike_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with inject_oom("forward", at=9):
        linear()(torch.ones(2, 4, dtype=FLOAT))
    assert "nothing failed: 1 forward began" in capsys.readouterr().err


def test_a_guard_that_split_beforehand_does_not_say_that_it_changed_nothing() -> None:
    watch = guard(linear(), micro_batch=2)
    watch.step(rows([0, 1, 2, 1]), lambda m, b: m(b["x"]).square().mean())
    assert watch.report().headline.startswith(
        "Memory did not run out in 1 step, thanks to earlier changes"
    )


def test_cross_entropy_is_taken_in_chunks_however_it_is_called() -> None:
    torch.manual_seed(0)
    logits = torch.randn(300, 3, dtype=FLOAT, requires_grad=True)
    labels = torch.randint(0, 3, (300,))
    labels[::5] = -100
    calls = {
        "as a module": lambda: nn.CrossEntropyLoss()(logits, labels),
        "as Hugging Face does": lambda: functional.cross_entropy(
            logits, labels, ignore_index=-100, reduction="sum"
        ),
        "with class weights": lambda: functional.cross_entropy(
            logits, labels, weight=CLASS_WEIGHTS
        ),
        "smoothed": lambda: functional.cross_entropy(logits, labels, label_smoothing=0.1),
    }
    seen: dict[str, list[str]] = {name: [] for name in calls}
    for name, call in calls.items():
        gradients = []
        for context in (contextlib.nullcontext(), in_chunks(seen[name])):
            with context:
                call().backward()  # type: ignore[no-untyped-call]
            gradients.append(logits.grad)
            logits.grad = None
        assert torch.allclose(gradients[0], gradients[1], atol=1e-12), name
    assert seen == {
        "as a module": ["mean"],
        "as Hugging Face does": ["sum"],
        "with class weights": [],
        "smoothed": [],
    }


def test_a_strategy_that_does_nothing_says_so() -> None:
    training = TrainingSetup(linear(), lambda p: torch.optim.SGD(p, lr=0.1), torch.device("cpu"))
    parts_of("chunked_loss")[0].prepare(training)
    batch = rows([0, 1])["x"]
    training.optimizer = training.optimizer_fn(training.model.parameters())
    with CountingMeter() as meter, pytest.raises(NotHere, match="no cross entropy"):
        _measured(training, meter, lambda size: batch, lambda m, b: m(b).square().mean(), 2, 1)


def test_strategies_that_would_train_something_else_together_are_refused() -> None:
    for training in (
        TrainingSetup(None, None, None, parts=4),
        TrainingSetup(None, None, None, scaler=object()),
    ):
        _refuse_conflicts(training)
        training.steps_in_backward = True
        with pytest.raises(NotHere):
            _refuse_conflicts(training)
