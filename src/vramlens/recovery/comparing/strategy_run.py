"""One strategy in a process of its own: its peak, its step time, its losses and its gradient."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from vramlens.recovery.comparing.strategy_kinds import (
    NotHere,
    Program,
    TrainingSetup,
    contexts,
    parts_of,
)
from vramlens.recovery.losses.part_losses import Weights
from vramlens.recovery.memory_errors import OUT_OF_MEMORY, kind_of
from vramlens.recovery.meters import CountingMeter, CudaMeter
from vramlens.recovery.splitting.batch_parts import ranges
from vramlens.recovery.splitting.gradient_runs import CheckedTraining
from vramlens.recovery.splitting.split_check import check_split
from vramlens.recovery.training.batch_attempts import Call, Runner

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_GRADIENT_NUMBERS = 2048
_WARM_UP = 3


def run_strategy(name: str, device_name: str, program: Program, steps: int) -> dict[str, Any]:
    """Plain figures: ``outcome`` (done, not here, out of memory, failed), bytes, times, losses,
    a gradient.
    """
    device = torch.device(device_name)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
        return _run(name, device, CudaMeter(device), program, steps)
    with CountingMeter() as meter:
        return _run(name, device, meter, program, steps)


def _run(name: str, device: Any, meter: Any, program: Program, steps: int) -> dict[str, Any]:
    torch.manual_seed(0)
    training = TrainingSetup(program.model_fn(), program.optimizer_fn, device)
    try:
        for strategy in parts_of(name):
            strategy.prepare(training)
        _refuse_conflicts(training)
        if not training.steps_in_backward:
            try:
                training.optimizer = training.optimizer_fn(list(training.model.parameters()))
            except Exception as error:
                if kind_of(error) == OUT_OF_MEMORY:
                    raise
                return {"outcome": "failed", "why": _words(error), "optimizer_fn": _words(error)}
        return _measured(training, meter, program.make_batch, program.loss_fn, program.batch, steps)
    except NotHere as error:
        return {"outcome": "not here", "why": str(error)}
    except Exception as error:
        if kind_of(error) == OUT_OF_MEMORY:
            return {"outcome": "out of memory", "why": str(error).partition("\n")[0][:200]}
        return {"outcome": "failed", "why": _words(error)}


def prepared(name: str, model_fn: Any, optimizer_fn: Any) -> TrainingSetup:
    """A training on the GPU with a strategy in it, ready for its first step.

    Raises:
        NotHere: this model or machine cannot use it.
    """
    torch.manual_seed(0)
    training = TrainingSetup(model_fn(), optimizer_fn, torch.device("cuda"))
    if hasattr(training.model, "to"):
        training.model = training.model.to("cuda")
    for part in parts_of(name):
        part.prepare(training)
    _refuse_conflicts(training)
    if not training.steps_in_backward:
        training.optimizer = training.optimizer_fn(list(training.model.parameters()))
    return training


def _refuse_conflicts(training: TrainingSetup) -> None:
    """Strategies that together would train something else.

    Raises:
        NotHere: the text says why.
    """
    if training.steps_in_backward and training.parts > 1:
        raise NotHere("in_backward would step the optimizer once for each part")
    if training.steps_in_backward and training.scaler is not None:
        raise NotHere("in_backward would step with gradients that are still scaled")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def _measured(
    training: TrainingSetup, meter: Any, make_batch: Any, loss_fn: Any, batch: int, steps: int
) -> dict[str, Any]:
    gradient: list[Any] = []
    if training.parts > 1:
        torch.manual_seed(0)
        training.weights = _weights(training, meter, make_batch(batch), loss_fn)
    if not training.steps_in_backward:
        gradient = _gradient(training, make_batch, loss_fn, batch)
    losses, times = [], []
    began = time.perf_counter()
    for number in range(_WARM_UP + steps):
        if number == _WARM_UP:
            _wait(training.device)
            meter.restart()
        torch.manual_seed(number)
        inputs = make_batch(batch)
        _wait(training.device)
        start = time.perf_counter()
        loss = step(training, inputs, loss_fn)
        if why := training.idle():
            raise NotHere(why)
        if training.after is not None:
            training.after()
        _wait(training.device)
        if number >= _WARM_UP:
            times.append((time.perf_counter() - start) * 1e3)
        losses.append(float(loss))
    reserved = (
        torch.cuda.max_memory_reserved(training.device)
        if training.device.type == "cuda"
        else meter.peak_bytes()
    )
    return {
        "outcome": "done",
        "peak_allocated_bytes": meter.peak_bytes(),
        "peak_reserved_bytes": reserved,
        "step_ms": statistics.median(times),
        "losses": losses,
        "gradient": gradient,
        "seconds": time.perf_counter() - began,
    }


def _weights(training: TrainingSetup, meter: Any, data: Any, loss_fn: Any) -> Weights:
    """By what the parts of a batch count: found as the guard does, with no more samples than a part
    has.

    Raises:
        NotHere: a split changes the gradient.
    """
    named = [
        (name, parameter)
        for name, parameter in training.model.named_parameters()
        if parameter.requires_grad
    ]
    samples = Call(data, loss_fn).split(None)
    checked = CheckedTraining(
        model=training.model,
        parameters=named,
        loss_fn=loss_fn,
        count_fn=None,
        devices=[training.device],
        clean=meter.release,
    )
    check = check_split(checked, samples, max(2, samples.count // training.parts))
    if not check.equal and not check.undecided:
        raise NotHere(check.reason)
    return check.weights


def _gradient(training: TrainingSetup, make_batch: Any, loss_fn: Any, batch: int) -> list[Any]:
    """A few numbers of each parameter's gradient at the beginning."""
    torch.manual_seed(1234)
    random_state = torch.get_rng_state()
    inputs = make_batch(batch)
    torch.set_rng_state(random_state)
    _backward(training, inputs, loss_fn)
    scale = 1.0 if training.scaler is None else float(training.scaler.get_scale())
    taken: list[Any] = []
    for parameter in training.model.parameters():
        if parameter.grad is None:
            taken.append(None)
            continue
        flat = parameter.grad.detach().reshape(-1)
        step = -(-flat.numel() // _GRADIENT_NUMBERS) or 1
        taken.append((flat[::step].double() / scale).cpu().numpy())
        parameter.grad = None
    return taken


def step(training: TrainingSetup, data: Any, loss_fn: Any) -> Any:
    """The loss of one training step."""
    loss = _backward(training, data, loss_fn)
    if training.optimizer is None:
        return loss
    if training.scaler is not None:
        training.scaler.step(training.optimizer)
        training.scaler.update()
    else:
        training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=True)
    return loss


def _backward(training: TrainingSetup, data: Any, loss_fn: Any) -> Any:
    def around() -> Any:
        return contexts(training.around_forward)

    model = (
        training.model if training.call is None else training.call
    )  # a compiled one has no truth value
    runner = Runner(model, list(training.model.parameters()), training.scaler, around)
    call = Call(data, loss_fn)
    if training.parts == 1:
        return runner.whole(call)
    count = call.split(None).count
    return runner.split(call, ranges(count, -(-count // training.parts)), training.weights)


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
