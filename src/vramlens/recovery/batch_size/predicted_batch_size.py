"""The largest batch that would fit a card, without one: the requests of predicted steps,
continued to other sizes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens.cards.card_room import PredictionMargins
from vramlens.cards.known_cards import (
    DEFAULT_GPU,
    Card,
    card_label,
    card_named,
    is_card,
)
from vramlens.errors import UsageError
from vramlens.prediction.own_process import in_a_process
from vramlens.prediction.predicted_peak import outside_words
from vramlens.prediction.predicted_run import MARGIN, Gathered, PredictedRun
from vramlens.prediction.requests.served_requests import columns_of
from vramlens.recovery.batch_size.peak_fit import Probe
from vramlens.recovery.batch_size.scaled_requests import (
    ScaledRequests,
    StepRequests,
    scaled_requests,
)
from vramlens.recovery.losses.part_losses import LossFunction, loss_of
from vramlens.replay.settings import parse_settings
from vramlens.replay.versions import version_named
from vramlens.units import size_in_bytes

if TYPE_CHECKING:
    import torch

_STEPS = 2
_CLOSE = 0.25
"""A probe of this share of the limit is enough: larger ones tell the same requests."""
_MOST_PROBES = 12
_MARGIN = 0.02
"""Of the limit: what predictions are off by (docs/predict.md)."""


class PredictedSizes:
    """Steps of growing batches, predicted, until two of them tell the requests of the others.

    Attributes:
        probes: what was predicted.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        make_batch: Any,
        loss_fn: LossFunction,
        optimizer: torch.optim.Optimizer | None,
        card: Card,
    ) -> None:
        self._program = model, make_batch, loss_fn, optimizer
        self._card = card
        self.probes: list[Probe] = []
        self._margins = PredictionMargins(0.0, card.outside_bytes)

    def requests_by_size(self, limit_bytes: int, start: int) -> ScaledRequests:
        """The requests as a function of the batch's size.

        Raises:
            UsageError: the step cannot be predicted, or asks for other things at each size.
        """
        smaller: StepRequests | None = None
        size = start
        for _ in range(_MOST_PROBES):
            larger = self._probe(size)
            scaled = None if smaller is None else scaled_requests(smaller, larger)
            if scaled is not None and self.probes[-1].peak_bytes >= _CLOSE * limit_bytes:
                return scaled
            smaller, size = larger, 2 * size
        raise UsageError(
            "find_batch_size: its steps make different requests at each batch size; predict "
            "the sizes one by one"
        )

    def surely_fitting(self, scaled: ScaledRequests, total_bytes: int) -> tuple[int, int] | None:
        """The largest batch that surely fits a card of so many bytes, and the largest that may, by the
        rules of ``predict --cards``; None where none of the sizes surely does.
        """
        room = self._margins.room_on(total_bytes)
        sure = scaled.largest(room.least_bytes)
        if not scaled.served(sure, room.least_bytes).fits:
            return None
        return sure, max(sure, scaled.largest(min(room.most_bytes, room.free_bytes)))

    def on_card(self, scaled: ScaledRequests, size: int, total_bytes: int) -> str:
        """What a card of so many bytes has for a batch, and whether it fits where that is not sure."""
        room, card = self._margins.room_on(total_bytes), f"a card of {card_label(total_bytes)}"
        outside = outside_words(self._card.outside_bytes)
        words = f"{outside} of {card} also go to the CUDA context and libraries"
        if scaled.served(size, room.least_bytes).fits:
            return words
        may = scaled.served(size, min(room.most_bytes, room.free_bytes)).fits
        return f"a batch of {size:,} {'may' if may else 'does not'} fit: {words}"

    def _probe(self, size: int) -> StepRequests:
        model, make_batch, loss_fn, optimizer = self._program
        card = self._card

        def run() -> Gathered:
            began = time.perf_counter()
            predicted = PredictedRun(card)
            with predicted.going():
                model.to("cuda")
                for _ in range(_STEPS):
                    loss: Any = loss_of(loss_fn(model, make_batch(size))).mean
                    loss.backward()
                    del loss
                    if optimizer is not None:
                        optimizer.step()
                    model.zero_grad(set_to_none=True)
                return predicted.gathered(began)

        gathered = in_a_process(run)
        self._margins = PredictionMargins(
            share=MARGIN + sum(gathered.basis.values()),
            outside_bytes=card.outside_bytes,
            not_modelled_bytes=sum(bound or 0 for bound in gathered.not_modelled.values()),
        )
        requests = _step_requests(gathered, size)
        peak = gathered.log.peak_bytes
        self.probes.append(
            Probe(
                size=size,
                forward_bytes=peak,
                backward_bytes=peak,
                step_bytes=peak,
                batch_bytes=0,
                reserved_bytes=peak,
                waste_bytes=0,
                retries=0,
                seconds=gathered.seconds,
                requests=None,
            )
        )
        return requests


def predicted_limit(limit: int | str) -> tuple[Card, int, int, str]:
    """The card whose kernels are taken, the bytes that PyTorch may reserve, the card's bytes, and
    whose limit it is.

    Of a card that is named, the most that a process takes outside the allocator is left out.
    """
    if isinstance(limit, str) and is_card(limit):
        card = card_named(limit)
        limit_bytes = card.total_bytes - card.outside_bytes[1]
        return card, limit_bytes, card.total_bytes, f"what {card.name} leaves for PyTorch"
    limit_bytes = size_in_bytes(limit)
    return card_named(DEFAULT_GPU), limit_bytes, limit_bytes, "the given limit"


def _step_requests(gathered: Gathered, size: int) -> StepRequests:
    log = gathered.log
    columns, _ = columns_of(log)
    version = version_named(gathered.torch_version)
    numbers, origins = np.unique(np.array(log.stacks, np.int64), return_inverse=True)
    stacks = log.stack_table.stacks
    texts = tuple(
        "\n".join(
            f"{frame['filename']}:{frame['line']}:{frame['name']}" for frame in stacks[number]
        )
        for number in numbers.tolist()
    )
    settings = parse_settings(gathered.conf, version)
    return StepRequests(
        size=size,
        columns=columns,
        pools=1,
        origins=origins.reshape(-1).astype(np.int64),
        stacks=texts,
        settings=settings,
        version=version,
    )


def largest_predicted(scaled: ScaledRequests, limit_bytes: int) -> tuple[int, int, int]:
    """The largest batch, and the least and most that it may be."""
    shares = (1 - 2 * _MARGIN, 1 - _MARGIN, 1 + _MARGIN)
    low, size, high = (scaled.largest(int(limit_bytes * share)) for share in shares)
    return low, size, high
