"""``vramlens.predict``: a model, a batch, a loss and an optimizer, without a GPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vramlens.argument_types import (
    function_given,
    number_given,
    optional,
    required_function,
    takes,
    text,
)
from vramlens.cards.known_cards import DEFAULT_GPU, card_bytes, card_named
from vramlens.prediction.own_process import in_a_process
from vramlens.prediction.predicted_peak import Prediction
from vramlens.prediction.predicted_run import Gathered, PredictedRun, Question, answer

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.requests.request_log import RequestStacks
else:
    from vramlens.ground.late_torch import torch


@takes(
    model_fn=required_function,
    make_batch=required_function,
    loss_fn=required_function,
    optimizer_fn=function_given,
    batch=number_given,
    steps=number_given,
    gpu=text,
    torch_version=optional(text),
    conf=text,
)
def predict(  # noqa: PLR0913 - public: its options are keywords
    model_fn: Callable[[], Any],
    make_batch: Callable[[int], Any],
    loss_fn: Callable[[Any, Any], Any],
    optimizer_fn: Callable[[Any], Any] | None = None,
    *,
    batch: int,
    steps: int = 2,
    gpu: str = DEFAULT_GPU,
    torch_version: str | None = None,
    conf: str = "",
    cards: Sequence[int | str] = (),
) -> Prediction:
    """The peak of training steps that never run on a GPU: what they ask of the allocator, and what
    it would reserve.

    It runs in a process of its own, with shapes instead of values on the device.

    Args:
        model_fn: a fresh model, on ``cuda`` or not (it is moved there).
        make_batch: n -> a batch of n samples on the device.
        loss_fn: (model, batch) -> a loss, or (sum, count).
        optimizer_fn: a list of parameters -> an optimizer; without it only forward and backward
            run.
        batch: samples in a batch; steps: how many training steps.
        gpu: the card whose kernels and workspaces are taken, such as h200, a100 or l4.
        torch_version: whose allocator's rules; by default the installed PyTorch's.
        conf: the allocator's settings, as ``PYTORCH_ALLOC_CONF`` takes them.
        cards: cards to compare with: bytes, "24GiB" or "H100".

    Raises:
        UsageError: the card is not known, a size is none, or the program cannot be predicted (the
            text says why).
    """
    card = card_named(gpu)
    sizes = tuple(card_bytes(size) if isinstance(size, str) else int(size) for size in cards)

    def run() -> Gathered:
        began = time.perf_counter()
        predicted = PredictedRun(card, cards=sizes or (card.total_bytes,))
        with predicted.going():
            hooks = _Hooks(model_fn, make_batch, loss_fn, optimizer_fn)
            _train(hooks, batch, steps, predicted.log.stack_table)
            return predicted.gathered(began)

    return answer(
        in_a_process(run),
        Question(
            gpu=gpu,
            torch_version=torch_version,
            conf=conf,
            cards=sizes,
            command=("vramlens.predict",),
        ),
    )


class _Hooks(NamedTuple):
    """The user's functions."""

    model_fn: Any
    make_batch: Any
    loss_fn: Any
    optimizer_fn: Any


def _train(hooks: _Hooks, batch: int, steps: int, stacks: RequestStacks) -> None:
    stacks.driver = _train.__code__
    torch.manual_seed(0)
    model = hooks.model_fn()
    if hasattr(model, "to"):
        with _standing_in(stacks, hooks.model_fn):
            model = model.to("cuda")
    make_optimizer = hooks.optimizer_fn
    optimizer = None if make_optimizer is None else make_optimizer(list(model.parameters()))
    for _ in range(steps):
        loss = hooks.loss_fn(model, hooks.make_batch(batch))
        with _standing_in(stacks, hooks.loss_fn):
            if isinstance(loss, tuple):
                loss = loss[0] / loss[1]
            loss.backward()
        del loss
        if optimizer is not None:
            with _standing_in(stacks, make_optimizer):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _standing_in(stacks: RequestStacks, hook: Any) -> Iterator[None]:
    """Has what PyTorch asks for inside be told as the hook's: no line of the user's runs then."""
    stacks.hook = getattr(hook, "__code__", None)
    try:
        yield
    finally:
        stacks.hook = None
