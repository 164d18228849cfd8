"""What a guard refuses, and what it must never do silently: the bad input of users' programs."""

from __future__ import annotations

import gc
import weakref
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from recovery.training import count, furthest, mean_loss, net, tokens
from vramlens.errors import UsageError
from vramlens.recovery import guard, inject_oom
from vramlens.recovery.memory_errors import OTHER, OUT_OF_MEMORY, STICKY, kind_of
from vramlens.recovery.meters import CountingMeter
from vramlens.recovery.splitting.batch_parts import BatchSamples, CannotSplit, ranges


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.head = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.up(x))))


def pairs(size: int = 12) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "x": torch.randn(size, 5, dtype=torch.float64, generator=generator),
        "y": torch.randn(size, 2, dtype=torch.float64, generator=generator),
    }


def squared(model: Any, batch: Any) -> torch.Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean()


def contrastive(model: Any, batch: Any) -> torch.Tensor:
    vectors = functional.normalize(model(batch["x"]), dim=-1)
    return functional.cross_entropy(vectors @ vectors.T, torch.arange(len(vectors)))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def norm() -> Norm:
    torch.manual_seed(0)
    return Norm().double()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_batch_norm_is_not_split_silently() -> None:
    model, batch = norm(), pairs()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    watch = guard(model, sgd(model))
    with inject_oom("forward"), pytest.raises(torch.OutOfMemoryError) as stopped:
        watch.step(batch, squared)
    assert "BatchNorm1d norm normalises over the batch" in str(stopped.value)
    assert "no remedy left" in str(stopped.value)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    assert [finding.id for finding in watch.report().findings] == ["guard_refused"]
    with pytest.raises(UsageError, match="has stopped"):
        watch.step(batch, squared)


def test_batch_norm_is_split_when_asked_for_and_the_report_says_what_changes() -> None:
    model, batch, plain = norm(), pairs(), norm()
    squared(plain, batch).backward()
    watch = guard(model, sgd(model), strict=False)
    with inject_oom("backward", at=1):
        watch.step(batch, squared)
    assert watch.micro_batch == 6
    assert int(model.norm.num_batches_tracked) == 1  # not three times, as plain retries count
    assert torch.allclose(model.norm.running_mean, plain.norm.running_mean, rtol=0.2)
    finding = watch.report().findings[0]
    assert finding.id == "guard_changes_numbers"
    assert "training differs from training without the guard" in str(watch.report())


def test_frozen_batch_norm_is_no_obstacle() -> None:
    model = norm()
    model.norm.eval()
    watch = guard(model, sgd(model))
    with inject_oom("forward"):
        watch.step(pairs(), squared)
    assert watch.micro_batch == 6


def test_a_contrastive_loss_is_refused() -> None:
    model = mlp()
    watch = guard(model, sgd(model), order=("split",))
    with (
        inject_oom("forward"),
        pytest.raises(torch.OutOfMemoryError, match="the loss of one sample depends on the others"),
    ):
        watch.step(pairs(), contrastive)


def test_a_refusal_to_split_leads_to_recomputation_with_the_same_gradients() -> None:
    model, plain, batch = net(), net(), tokens(8)

    def coupled(model: Any, batch: Any) -> torch.Tensor:
        logits = model(batch["ids"]).mean(1)
        return torch.logsumexp(logits @ logits.T, (0, 1))

    coupled(plain, batch).backward()
    optimizer = sgd(model)
    taken = {}
    optimizer.register_step_pre_hook(
        lambda *_: taken.update({n: p.grad.clone() for n, p in model.named_parameters()})
    )
    watch = guard(model, optimizer)
    with inject_oom("forward"):
        watch.step(batch, coupled)
    assert watch.micro_batch is None
    assert watch.state_dict()["checkpointed"] == ["blocks.0"]
    assert furthest(taken, {name: p.grad for name, p in plain.named_parameters()}) < 1e-10
    with inject_oom("forward"):
        watch.step(batch, coupled)
    assert watch.state_dict()["checkpointed"] == ["blocks.0", "blocks.1"]
    with (
        inject_oom("forward"),
        pytest.raises(torch.OutOfMemoryError, match="2 modules already recomputed"),
    ):
        watch.step(batch, coupled)


def test_weights_by_samples_are_refused_where_they_are_wrong() -> None:
    model = net()
    watch = guard(model, sgd(model), order=("split",))

    def padded(model: Any, batch: Any) -> torch.Tensor:  # masked by hand: cannot be found by itself
        labels = batch["labels"].flatten()
        losses = functional.cross_entropy(
            model(batch["ids"]).flatten(0, 1), labels, reduction="none"
        )
        return (losses * (labels != 0)).sum() / (labels != 0).sum()

    batch = tokens(8)
    batch["labels"] = batch["labels"].masked_fill(batch["labels"] == -100, 0)
    with (
        inject_oom("forward"),
        pytest.raises(torch.OutOfMemoryError, match=r"return \(sum, count\) or pass count_fn"),
    ):
        watch.step(batch, padded)
    watch = guard(
        model, sgd(model), order=("split",), count_fn=lambda batch: (batch["labels"] != 0).sum()
    )
    with inject_oom("forward"):
        watch.step(batch, padded)
    assert watch.micro_batch == 4


def test_labels_that_are_ignored_only_later_are_weighted_right() -> None:
    """The first check sees no ignored label: the first batch that has some is checked again."""
    batches = [tokens(8, seed=1, ignored=False), tokens(8, seed=2)]
    model, plain = net(), net()
    mean_loss(plain, batches[1]).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = guard(model, optimizer)
    with inject_oom("forward"):
        watch.step(batches[0], mean_loss)
    taken: dict[str, torch.Tensor] = {}
    optimizer.register_step_pre_hook(
        lambda *_: taken.update({n: p.grad.clone() for n, p in model.named_parameters()})
    )
    watch.step(batches[1], mean_loss)
    assert furthest(taken, {name: p.grad for name, p in plain.named_parameters()}) < 1e-10


def test_random_numbers_beyond_dropout_cannot_be_checked() -> None:
    model = mlp()

    def noisy(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, {"x": batch["x"] + torch.randn_like(batch["x"]), "y": batch["y"]})

    found = guard(model, sgd(model)).verify(pairs(), noisy)
    assert not found.equal
    assert "uses its own random numbers" in found.reason


def test_a_loss_that_is_not_finite_is_no_proof() -> None:
    model = mlp()
    watch = guard(model, sgd(model), order=("split",))
    with (
        inject_oom("forward"),
        pytest.raises(torch.OutOfMemoryError, match="the loss is nan, so nothing can be compared"),
    ):
        watch.step(pairs(), lambda model, batch: squared(model, batch) * float("nan"))
    model = mlp()  # without a failure, it is the program's own affair
    assert guard(model, sgd(model)).step(pairs(), lambda m, b: squared(m, b) * float("inf")).isinf()


def test_a_batch_that_cannot_be_split_says_which_leaf() -> None:
    for batch, leaf in [
        (
            {"x": torch.zeros(4, 5), "y": [torch.zeros(3, 2)]},
            r"batch\['y'\]\[0\] has 3 .* where batch\['x'\] has 4",
        ),
        ({"x": torch.zeros(4, 5).to_sparse()}, r"batch\['x'\] is a sparse tensor"),
        ([torch.tensor(1.0), "text"], "no tensor with samples"),
    ]:
        with pytest.raises(CannotSplit, match=leaf):
            BatchSamples(batch)
    model = mlp()
    watch = guard(model, sgd(model), order=("split",))
    wrong = pairs() | {"extra": torch.zeros(3)}
    with (
        inject_oom("forward"),
        pytest.raises(torch.OutOfMemoryError, match=r"batch\['extra'\] has 3"),
    ):
        watch.step(wrong, squared)
    watch = guard(
        model,
        sgd(model),
        split=lambda batch, a, b: {k: v[a:b] for k, v in batch.items() if k != "extra"},
    )
    with inject_oom("forward"):
        watch.step(wrong, squared)
    assert watch.micro_batch == 6


def test_one_sample_that_does_not_fit_is_the_end() -> None:
    model = mlp()
    watch = guard(model, sgd(model), order=("split",))
    with (
        inject_oom("forward"),
        pytest.raises(torch.OutOfMemoryError, match="even a single sample does not fit"),
    ):
        watch.step(pairs(1), squared)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_are_never_retried(error: BaseException) -> None:
    model, calls = mlp(), []

    def fails(model: Any, batch: Any) -> torch.Tensor:
        calls.append(1)
        raise error

    with pytest.raises(type(error)) as caught:
        guard(model, sgd(model)).step(pairs(), fails)
    assert caught.value is error
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB.", OUT_OF_MEMORY),
        (
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
            OUT_OF_MEMORY,
        ),
        (
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            OUT_OF_MEMORY,
        ),
        ("HIP out of memory. Tried to allocate 2.00 GiB", OUT_OF_MEMORY),
        ("MPS backend out of memory (MPS allocated: 8.00 GB", OUT_OF_MEMORY),
        (
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried",
            OUT_OF_MEMORY,
        ),
        ("CUDA error: an illegal memory access was encountered", STICKY),
        ("CUDA error: device-side assert triggered", STICKY),
        ("CUDA error: unspecified launch failure", STICKY),
        ("the dataloader ran out of memory cards", OTHER),
    ],
)
def test_errors_are_told_apart(text: str, kind: str) -> None:
    assert kind_of(RuntimeError(text)) == kind


def test_a_model_in_eval_mode_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    model = mlp().eval()
    watch = guard(model, sgd(model))
    assert "eval mode" in capsys.readouterr().err
    assert "eval mode" in str(watch.report())


def test_hooks_that_count_calls_see_each_part_and_the_report_says_how_many() -> None:
    model, calls = mlp(), []
    watch = guard(model, sgd(model), verify=False)
    model.register_forward_hook(lambda *_: calls.append(1))
    with inject_oom("forward", at=1):
        watch.step(pairs(), squared)
    assert len(calls) == 2  # the failed attempt did not reach the hook, two parts did
    assert "loss_fn was called 3 times for 1 batch" in str(watch.report())


def test_a_hook_that_steps_the_optimizer_by_itself_is_refused() -> None:
    model = mlp()
    next(model.parameters()).register_post_accumulate_grad_hook(lambda parameter: None)
    watch = guard(model, order=("split",))
    with (
        inject_oom("forward"),
        pytest.raises(torch.OutOfMemoryError, match=r"a hook uses the gradient of 0\.weight"),
    ):
        watch.step(pairs(), squared)


def test_a_program_that_keeps_the_exception_keeps_no_activations() -> None:
    model, kept, seen = mlp(), [], []

    def keeping(model: Any, batch: Any) -> torch.Tensor:
        try:
            return squared(model, batch)
        except torch.OutOfMemoryError as error:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory. Told by the program") from error
            except torch.OutOfMemoryError as second:
                kept.append(second)
                raise

    model[0].register_forward_hook(lambda *a: seen.append(weakref.ref(a[2])))
    watch = guard(model, sgd(model), verify=False)
    with inject_oom("forward", at=1):
        watch.step(pairs(), keeping)
    assert len(kept) == 1
    assert seen[0]() is None
    assert "keeping" in kept[0].__vramlens_traceback__


def test_bytes_that_do_not_come_back_are_said() -> None:
    model, kept = nn.Linear(4096, 64), []
    with CountingMeter() as meter:

        def keeping(model: Any, batch: Any) -> torch.Tensor:
            kept.append(model(batch["x"]) @ torch.ones(64, 4096))
            return model(batch["x"]).square().mean()

        watch = guard(model, sgd(model), verify=False, meter=meter)
        with inject_oom("forward", at=2):
            watch.step({"x": torch.randn(256, 4096)}, keeping)
    held = [finding for finding in watch.report().findings if finding.id == "guard_bytes_held"]
    assert held
    assert held[0].bytes is not None
    assert held[0].bytes >= 4 * 256 * 4096


def test_real_failures_of_a_small_device_leave_no_byte() -> None:
    """Operators fail where the simulated device is full, not where a drill says."""
    for capacity in range(1_100_000, 2_200_000, 200_000):
        torch.manual_seed(0)
        plain = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)), nn.Linear(64, 1)).double()
        x = torch.randn(512, 64, dtype=torch.float64)
        (plain(x) ** 2).mean().backward()
        torch.manual_seed(0)
        with CountingMeter(capacity) as meter:
            model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)), nn.Linear(64, 1)).double()
            batch = torch.randn(512, 64, dtype=torch.float64)
            watch = guard(model, meter=meter, threshold=1.0, verify=False)
            gc.collect()
            before = meter.allocated_bytes()
            watch.step(batch, lambda m, b: (m(b) ** 2).mean(), commit=False)
            gradients = {name: p.grad for name, p in model.named_parameters()}
            size = sum(p.numel() * p.element_size() for p in model.parameters())
            assert meter.allocated_bytes() - before <= size + 512 * len(gradients)
        assert watch.report().failures > 0
        assert furthest(gradients, {name: p.grad for name, p in plain.named_parameters()}) < 1e-10


def test_a_step_that_fails_half_way_is_undone_or_fatal() -> None:
    batch, model, plain = tokens(6), net(), net()
    optimizer, plain_optimizer = (torch.optim.AdamW(m.parameters(), lr=0.1) for m in (model, plain))
    for one in (1, 2):
        mean_loss(plain, batch).backward()
        plain_optimizer.step()
        plain_optimizer.zero_grad()
        with inject_oom("step", at=1 if one == 2 else 9):
            guard(model, optimizer, step_backup=True).step(batch, mean_loss)
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}
    assert all(
        torch.allclose(a, b, rtol=1e-12)
        for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )
    watch = guard(model, optimizer)
    with inject_oom("step"), pytest.raises(torch.OutOfMemoryError, match="partly updated"):
        watch.step(batch, mean_loss)


def test_a_step_that_fails_before_it_changed_anything_is_repeated() -> None:
    batch, model = tokens(6), net(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    watch = guard(model, optimizer)
    watch.step(batch, mean_loss)
    plain = torch.optim.AdamW(model.parameters())
    del plain
    real, failures = optimizer.step, []

    def failing(*args: Any) -> Any:
        if not failures:
            failures.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return real(*args)

    optimizer.step = failing
    watch.step(batch, mean_loss)
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}
    assert "nothing had changed yet" in str(watch.report())


@pytest.mark.parametrize(
    "result", [torch.ones(3), 1.0, None, (torch.tensor(1.0), "two"), (torch.tensor(1.0), True)]
)
def test_a_loss_of_another_kind_is_refused(result: Any) -> None:
    model = mlp()
    with pytest.raises(UsageError, match="loss_fn returned"):
        guard(model).step(pairs(), lambda model, batch: result)


@pytest.mark.parametrize(
    "options", [{"order": ("shrink",)}, {"threshold": 0.0}, {"threshold": 1.5}, {"micro_batch": 0}]
)
def test_wrong_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="guard: order="):
        guard(mlp(), **options)


def test_nothing_to_train() -> None:
    model = mlp().requires_grad_(False)
    with pytest.raises(UsageError, match="nothing to train"):
        guard(model)


def test_nested_batches() -> None:
    class Named(UserDict):  # type: ignore[type-arg]
        pass

    batch = Named(
        {"a": torch.arange(6), "b": [torch.arange(12).view(6, 2), (torch.arange(6), 5)], "n": None}
    )
    samples = BatchSamples(batch)
    assert samples.count == 6
    part = samples.part(2, 4)
    assert type(part) is Named
    assert part["a"].tolist() == [2, 3]
    assert part["b"][0].tolist() == [[4, 5], [6, 7]]
    assert part["b"][1][0].tolist() == [2, 3]
    assert part["b"][1][1] == 5
    images = [torch.zeros(3, 8, 8), torch.zeros(3, 9, 7), torch.zeros(3, 8, 8)]
    targets = [{"boxes": torch.zeros(k, 4), "labels": [0] * k} for k in (1, 2, 3)]
    samples = BatchSamples((images, targets))
    assert samples.count == 3
    assert [len(part) for part in samples.part(1, 3)] == [2, 2]
    positions = BatchSamples(
        {"x": torch.zeros(4, 7), "positions": torch.zeros(1, 7), "names": list("abcd")}
    )
    assert positions.part(0, 3)["positions"].shape == (1, 7)
    assert positions.part(0, 3)["names"] == ["a", "b", "c"]
    assert ranges(10, 4) == [(0, 4), (4, 7), (7, 10)]


def test_detector_batches_are_trained_in_parts() -> None:
    model = nn.Conv2d(3, 2, 3).double()
    images = [torch.randn(3, 8 + k, 8, dtype=torch.float64) for k in range(6)]
    batch = (images, [{"size": torch.tensor(float(k))} for k in range(6)])

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return torch.stack(
            [(model(i).mean() - t["size"]) ** 2 for i, t in zip(*batch, strict=True)]
        ).mean()

    loss_fn(model, batch).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    watch = guard(model, verify=True)
    with inject_oom("forward", at=3):
        watch.step(batch, loss_fn)
    assert watch.micro_batch == 3
    assert furthest({name: p.grad for name, p in model.named_parameters()}, gradients) < 1e-10


def test_the_predicted_peak_splits_before_it_fails() -> None:
    with CountingMeter(60_000_000) as meter:
        model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
        watch = guard(
            model, torch.optim.SGD(model.parameters(), lr=0.01), meter=meter, threshold=0.9
        )

        def loss_fn(model: Any, batch: Any) -> torch.Tensor:
            return (model(batch) ** 2).mean()

        for size in (1000, 4000, 11000, 16000):
            watch.step(torch.randn(size, 256), loss_fn)
    assert meter.failures == 0
    assert meter.peak_bytes() < 60_000_000
    assert watch.micro_batch is not None
    assert any(
        "the predicted peak exceeds the threshold" in event.text for event in watch.report().events
    )


def test_count_fn_may_give_numbers() -> None:
    model = net()
    watch = guard(model, sgd(model), count_fn=lambda batch: int(count(batch)))
    with inject_oom("forward"):
        watch.step(tokens(7), mean_loss)
    assert watch.micro_batch == 4


def test_recomputed_batch_norm_has_the_same_gradients_and_counts_once() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(3)]
        return nn.ModuleDict({"blocks": nn.ModuleList(blocks), "head": nn.Linear(4, 2)}).double()

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        x = batch
        for block in model["blocks"]:
            x = block(x)
        return model["head"](x.mean((2, 3))).square().mean()

    batch = torch.randn(6, 4, 9, 9, dtype=torch.float64)
    plain, model = build(), build()
    loss_fn(plain, batch).backward()
    watch = guard(model)
    with inject_oom("forward"):
        watch.step(batch, loss_fn)
    assert watch.state_dict()["checkpointed"] == ["blocks.0"]
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-10, atol=1e-14), name
    for (name, ours), theirs in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("known", [True, False])
def test_the_peak_of_what_was_before_splits_only_once(known: bool) -> None:
    """The counter's peak stays where a failure, or a larger part, left it; it must not split
    again and again.
    """

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return model(batch).square().mean()

    with CountingMeter() as meter:
        model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.randn(2048, 64)
        watch = guard(model, optimizer, meter=meter, verify=False)
        watch.step(batch, loss_fn)
        meter.capacity_bytes = int(0.8 * meter.peak_bytes())
        if not known:
            watch = guard(model, optimizer, meter=meter, verify=False)
        sizes = []
        for _ in range(5):
            watch.step(batch, loss_fn)
            sizes.append(watch.micro_batch)
    assert watch.report().failures == (0 if known else 1)
    assert sizes == [sizes[0]] * 5
    assert sizes[0] == 1024 or (known and 1024 < sizes[0] < 2048)


def last(watch: Any) -> str:
    return str(watch.report()).splitlines()[-1]


def test_a_half_done_step_is_in_the_report() -> None:
    model, batch = net(), tokens(6)
    watch = guard(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    watch.step(batch, mean_loss)
    with inject_oom("step", at=1), pytest.raises(torch.OutOfMemoryError) as stopped:
        watch.step(batch, mean_loss)
    assert str(stopped.value).startswith("vramlens guard: ")  # the verdict, then what PyTorch says
    assert str(stopped.value).index("partly updated") < str(stopped.value).index(
        "\nPyTorch: CUDA out of memory"
    )
    report = watch.report()
    assert str(report).startswith(
        "Stopped: parameters are only partly updated; restore the checkpoint (in step 2)"
    )
    assert (report.steps, report.failures, report.stopped) == (1, 1, True)
    assert [event.step for event in report.events if event.kind == "failure"] == [2]
    assert "load your last checkpoint" in last(watch)
    with pytest.raises(UsageError, match="only partly updated"):
        watch.step(batch, mean_loss)


def test_a_step_that_never_gets_room_leaves_parameters_and_says_so() -> None:
    model, batch = net(torch.float32), tokens(6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    watch = guard(model, optimizer)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def failing() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    optimizer.step = failing  # type: ignore[assignment,method-assign]
    with pytest.raises(torch.OutOfMemoryError, match="parameters are the same as before this step"):
        watch.step(batch, mean_loss)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert str(watch.report()).startswith("Stopped: out of memory outside of forward and backward")
    assert "partly updated" not in str(watch.report())


def test_a_backup_undoes_the_last_failure_too() -> None:
    model, batch = net(), tokens(6)
    watch = guard(model, torch.optim.AdamW(model.parameters(), lr=0.1), step_backup=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with (
        inject_oom("step", every=1),
        pytest.raises(torch.OutOfMemoryError, match="as before this step"),
    ):
        watch.step(batch, mean_loss)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_what_was_not_checked_is_not_promised() -> None:
    model = norm()
    watch = guard(model, sgd(model), verify=False)
    with inject_oom("forward", at=1):
        watch.step(pairs(), squared)
    assert (
        "were not compared with those of whole batches (verify=False)"
        in str(watch.report()).splitlines()[0]
    )
    assert "equal those of whole batches," not in str(watch.report())


def test_next_follows_from_the_reason_for_stopping() -> None:
    def stopped(model: nn.Module, batch: Any, loss_fn: Any, **options: Any) -> tuple[str, str]:
        watch = guard(model, sgd(model), **options)
        with inject_oom("forward"), pytest.raises(torch.OutOfMemoryError) as error:
            watch.step(batch, loss_fn)
        text = str(error.value)
        assert text.startswith(
            "vramlens guard: Stopped: out of memory, and every remedy was tried (in step 1)\n"
        )
        assert text.count("no remedy left") == 1
        assert text.index("no remedy left") < text.index("PyTorch: CUDA out of memory")
        assert text.splitlines()[-1] == last(watch)
        return last(watch), text

    refused, _ = stopped(norm(), pairs(), squared)
    assert "strict=False" in refused
    assert "smaller batch" in refused
    coupled, _ = stopped(mlp(), pairs(), contrastive)
    assert "(sum, count)" in coupled
    for batch, options in [(pairs(1), {}), (pairs(), {"micro_batch": 1, "verify": False})]:
        alone, _ = stopped(mlp(), batch, squared, **options)
        assert "a smaller sample" in alone
        assert "torch.utils.checkpoint" in alone
        assert "larger GPU" in alone
        assert "MICRO_BATCH" not in alone.upper()
    leaf, _ = stopped(mlp(), pairs() | {"extra": torch.zeros(3)}, squared)
    assert "split=lambda" in leaf
    forbidden, _ = stopped(mlp(), pairs(), squared, order=("offload",))
    assert "order=" in forbidden
    infinite, _ = stopped(mlp(), pairs(), lambda model, batch: squared(model, batch) * float("nan"))
    assert "not finite" in infinite


def test_steps_count_from_one_everywhere() -> None:
    model = mlp()
    watch = guard(model, sgd(model))
    watch.step(pairs(), squared)
    with inject_oom("forward", at=1):
        watch.step(pairs(), squared)
    text = str(watch.report())
    assert text.startswith(
        "Survived 1 out-of-memory error in 2 steps; gradients equal those of whole batches"
    )
    assert "Batches now run in parts of at most 6 samples." in text
    assert "  step 2: out of memory in the forward" in text
    assert "step 0" not in text


def test_without_an_optimizer_the_report_says_so() -> None:
    assert "no optimizer: gradients only" in str(guard(mlp(), None).report())
    model = mlp()
    assert "no optimizer" not in str(guard(model, sgd(model)).report())


def test_swapped_arguments_are_named() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        UsageError, match=r"^guard\(model, optimizer\): the first is an SGD: swapped\?$"
    ):
        guard(optimizer, model)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"the first is a generator, not a model$"):
        guard(model.parameters(), optimizer)  # type: ignore[arg-type]


def test_a_loss_function_of_another_shape_is_told_from_one_that_fails() -> None:
    watch = guard(net())
    with pytest.raises(
        UsageError, match=r"loss_fn is called as loss_fn\(model, batch\).*too many positional"
    ):
        watch.step(tokens(2), lambda out: out)

    def fails(_model: Any, _batch: Any) -> Any:
        raise TypeError("the user's own")

    with pytest.raises(TypeError, match="the user's own"):
        watch.step(tokens(2), fails)


def test_a_guard_prints_its_first_line() -> None:
    watch = guard(net())
    assert repr(watch) == str(watch.report()).splitlines()[0]
    assert repr(watch) == "Memory did not run out in 0 steps; the guard changed nothing."
