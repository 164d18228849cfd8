"""One predicted run: PyTorch made to behave as on a card, the requests gathered, and the answer
made of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vramlens.capture.names.module_marks import ModuleMarks
from vramlens.capture.names.module_paths import ModulePaths
from vramlens.cards.card_room import PredictionMargins
from vramlens.cards.known_cards import DEFAULT_GPU, Card, card_named
from vramlens.prediction.card.cuda_interface import behave_as
from vramlens.prediction.card.stand_in_device import provide_cuda
from vramlens.prediction.full_cards.card_failure import CardFailure, card_failure
from vramlens.prediction.full_cards.card_watch import CardWatch, FullCard, Room
from vramlens.prediction.kernels.kernel_requests import Kernels
from vramlens.prediction.lbfgs_history import note_history
from vramlens.prediction.made_up_decisions import Decision, made_up_decisions, places_of
from vramlens.prediction.predicted_peak import (
    USUAL_CARDS,
    CardFit,
    NotModelled,
    Prediction,
    decided_facts,
    fits_of,
    margin_facts,
    meta_of,
)
from vramlens.prediction.ranks.lone_process_group import (
    RankPlace,
    note_bucket_views,
    put_process_group,
)
from vramlens.prediction.requests.request_log import RequestLog
from vramlens.prediction.tensors.known_values import KnownValues
from vramlens.prediction.tensors.shapes import shapes_mode
from vramlens.prediction.undecided_requests import Moment, most_turns, undecided_requests
from vramlens.trace import DecisionsMeta, WholeRunMeta
from vramlens.units import MIB

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.requests.served_requests import ServedRequests
else:
    from vramlens.ground.late_torch import torch

MARGIN = 0.01
"""Of reserved bytes, where every rule is one that recordings decided."""


_NCCL_BYTES = 600 * MIB
"""Outside the allocator, of a rank: two H200 took 1,129 MiB with NCCL (docs/predict_measured.md)."""


class EnoughSteps(BaseException):
    """Ends a program after the steps that were asked for."""


@dataclass(slots=True)
class Gathered:
    """What a predicted run leaves, in plain values that another process can be given."""

    log: RequestLog
    basis: dict[str, float] = field(default_factory=dict)
    not_modelled: dict[str, int | None] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    torch_version: str = ""
    conf: str = ""
    has_autocast: bool = False
    decisions: tuple[Decision, ...] = ()
    turns: dict[tuple[str, int], int] = field(default_factory=dict)
    step_rows: list[int] = field(default_factory=list)
    full_cards: list[FullCard] = field(default_factory=list)
    own_limit: Room | None = None
    is_limited_late: bool = False
    outcome: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def failed(cls, why: str, began: float) -> Gathered:
        """What a run leaves that did not come to its end."""
        seconds = time.perf_counter() - began
        return cls(RequestLog(), seconds=seconds, outcome={"outcome": "failed", "why": why})


class PredictedRun:
    """A process's one prediction; it changes PyTorch in this process for good."""

    def __init__(
        self,
        card: Card,
        most_steps: int | None = None,
        place: RankPlace | None = None,
        cards: Sequence[int] = (),
    ) -> None:
        """Prepares.

        Args:
            card: that PyTorch finds.
            most_steps: optimizer steps after which the program ends; None for all of its own.
            place: the rank, where the program is one of several.
            cards: sizes of cards, in bytes: what the program holds when each is full is noted.
        """
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where a GPU is there, none of it is taken
        provide_cuda()
        self.log = RequestLog()
        self.kernels, self.values = Kernels(self.log, card), KnownValues(self.log)
        self.mode = shapes_mode(self.log, self.kernels, self.values)
        self._most_steps = most_steps
        self._step_rows: list[int] = []  # of each step that has ended, the row that followed it
        self._stepped_at: list[Moment] = []
        self._optimizer: Callable[[], Any] = lambda: None
        self._progress: Callable[[int], None] | None = None
        devices = 1 if place is None else place.world_size
        behave_as(card, self.mode.runner, devices, self._limit_itself)
        put_process_group(place)
        if place is not None:
            note_bucket_views(self.mode.runner.notes)
        with self.mode:
            self.kernels.learn_sole_uses()
        self.log.clear()
        self._paths = ModulePaths()
        self._marks = self._marked_modules()
        self._card_watch = CardWatch(
            self.log,
            self.values,
            [Room(size, max(0, size - card.outside_bytes[0])) for size in cards],
            card_bytes=card.total_bytes,
            root_names=self._paths.root_names,
        )

    def _limit_itself(self, limit_bytes: int) -> None:
        self._card_watch.limit_itself(limit_bytes)

    @contextlib.contextmanager
    def going(self, progress: Callable[[int], None] | None = None) -> Iterator[None]:
        """The program runs inside; steps that are too many end it.

        Args:
            progress: called with the number of each step that ends.
        """
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._progress = progress
        hook = register_optimizer_step_post_hook(self._stepped)
        try:
            with self.mode, self._in_all_threads(), _without_torchs_words():
                yield
        except EnoughSteps:
            pass
        finally:
            hook.remove()

    @contextlib.contextmanager
    def _in_all_threads(self) -> Iterator[None]:
        """Has threads that begin inside run with shapes, too: a mode is one thread's own."""
        thread_class: Any = threading.Thread
        start = thread_class.start

        def start_with_shapes(thread: threading.Thread) -> None:
            run = thread.run

            def run_with_shapes() -> None:
                with type(self.mode)():
                    run()

            thread.run = run_with_shapes  # type: ignore[method-assign]
            start(thread)

        thread_class.start = start_with_shapes
        try:
            yield
        finally:
            thread_class.start = start

    def gathered(self, began: float) -> Gathered:
        """What the run leaves."""
        uncertain = dict(self.kernels.uncertain)
        not_modelled: dict[str, int | None] = {
            **self.kernels.not_modelled,
            **self.mode.runner.notes,
        }
        asked_values = self.values.asked
        decisions = made_up_decisions(asked_values.files, asked_values.lines)
        log = self.log.plain()
        log.undecided = undecided_requests(log, decisions, asked_values.moments, self._stepped_at)
        return Gathered(
            log=log,
            basis=uncertain,
            not_modelled=not_modelled,
            assumed=[
                f"assumed for {assumption.operator} ({_times(count)}): {assumption.words}"
                for assumption, count in self.values.assumptions.items()
            ],
            steps=len(self._step_rows),
            seconds=time.perf_counter() - began,
            torch_version=torch.__version__,
            conf=self.log.conf,
            has_autocast=self._marks.has_seen_autocast,
            decisions=decisions,
            turns=most_turns(log, decisions, asked_values.moments),
            step_rows=self._step_rows,
            full_cards=self._card_watch.full_cards,
            own_limit=self._card_watch.own_limit,
            is_limited_late=self._card_watch.is_limited_late,
        )

    def _marked_modules(self) -> ModuleMarks:
        def set_mark(path: str) -> None:
            self.log.mark = path

        marks = ModuleMarks(set_mark, lambda: self.log.mark, self._paths)
        marks.install()
        marks.start()
        return marks

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        note_history(optimizer, self.log, self.mode.runner.notes)
        self._stepped_at.append(self.log.now())
        if self._optimizer() is None:  # the first one, or the next when that is gone
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        self._step_rows.append(len(self.log.sizes))
        steps = len(self._step_rows)
        if self._progress is not None:
            self._progress(steps)
        if self._most_steps is not None and steps >= self._most_steps:
            raise EnoughSteps


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


@contextlib.contextmanager
def _without_torchs_words() -> Iterator[None]:
    """Keeps PyTorch's shapes from logging a traceback of a program's own error, which the answer
    names in one line.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


@dataclass(frozen=True, slots=True)
class Question:
    """What a prediction is asked for.

    Attributes:
        gpu: the card's name (``cards.known_cards.CARDS``).
        torch_version: whose allocator's rules; None is the installed one.
        conf: the allocator's settings.
        cards: card sizes to compare with, in bytes.
        command: the program.
        place: the rank, where the program is one of several.
    """

    gpu: str = DEFAULT_GPU
    torch_version: str | None = None
    conf: str = ""
    cards: tuple[int, ...] = ()
    command: tuple[str, ...] = ()
    place: RankPlace | None = None


def answer(gathered: Gathered, question: Question) -> Prediction:
    """The prediction that a run's requests lead to.

    Raises:
        InputError: the program asked for no GPU memory.
        SettingsError: PyTorch would refuse the allocator's settings.
    """
    from vramlens.prediction.requests.served_requests import serve

    card = card_named(question.gpu)
    version = question.torch_version or gathered.torch_version
    share = MARGIN + sum(gathered.basis.values())
    nccl = 0 if question.place is None or question.place.world_size == 1 else _NCCL_BYTES
    not_modelled = sum(size or 0 for size in gathered.not_modelled.values())
    margins = PredictionMargins(share, card.outside_bytes, not_modelled + nccl)
    rooms = [margins.room_on(total) for total in question.cards or USUAL_CARDS]
    own_rooms = []
    if gathered.own_limit is not None:  # of which nothing goes to the CUDA context
        own_margins = replace(margins, outside_bytes=(0, 0))
        own_rooms.append(own_margins.room_on(gathered.own_limit.total_bytes))
    card_bytes = card.room_bytes
    served = serve(
        gathered.log,
        question.conf,
        version,
        card_bytes=card_bytes,
        limits=[
            limit for room in (*rooms, *own_rooms) for limit in (room.least_bytes, room.most_bytes)
        ],
    )
    reserved = served.peaks["reserved_bytes"]
    margin = margins.of_peak(reserved)
    low = min(max(served.floor_bytes, served.low_bytes - margin), reserved)
    high = served.high_bytes + margin + not_modelled
    decided = DecisionsMeta(
        places_of(gathered.decisions), served.sure_bytes, _has_open_turns(gathered, served)
    )
    if served.is_limited:
        low, high = min(low, card.total_bytes - card.outside_bytes[1]), card_bytes
    fits = fits_of(rooms, served, turns_are_open=decided.is_open)
    own_fit = next(iter(fits_of(own_rooms, served, turns_are_open=decided.is_open)), None)
    if own_fit is not None and gathered.is_limited_late:
        own_fit = CardFit(own_fit.total_bytes, None)
    too_small = {fit.total_bytes for fit in fits if fit.fits is False}.intersection(question.cards)
    if served.within[card_bytes].lives is False:
        too_small.add(card.total_bytes)
    meta = {
        **meta_of(
            list(question.command),
            card,
            version,
            platform.python_version(),
            gathered.steps,
            has_autocast=gathered.has_autocast,
        ),
        **decided_facts(decided),
        **margin_facts(margins),
    }
    whole_run = WholeRunMeta(
        peak_reserved_bytes=reserved,
        low_bytes=low,
        high_bytes=None if decided.is_open else high,
        floor_bytes=served.floor_bytes,
    )
    return Prediction(
        peaks=served.peaks,
        low_bytes=low,
        high_bytes=high,
        basis=(
            "every request was rounded and served by a replay of PyTorch's allocator",
            *gathered.basis,
        ),
        not_modelled=(
            *(NotModelled(reason, size) for reason, size in gathered.not_modelled.items()),
            *(NotModelled(words, None, is_assumption=True) for words in gathered.assumed),
        ),
        cards=fits,
        own_limit=own_fit,
        retries=served.within[card_bytes].retries if served.is_limited else 0,
        decisions=decided.places,
        sure_bytes=decided.sure_bytes,
        turns_are_open=decided.is_open,
        turns=tuple((*place, count) for place, count in gathered.turns.items()),
        outside_bytes=(card.outside_bytes[0], card.outside_bytes[1] + nccl),
        gpu=card.name,
        torch=version,
        steps=gathered.steps,
        seconds=gathered.seconds,
        snapshot=served.snapshot,
        meta=meta,
        failure=_failure(gathered, too_small, meta, whole_run, question),
    )


def _failure(
    gathered: Gathered,
    too_small: set[int],
    meta: Mapping[str, Any],
    whole_run: WholeRunMeta,
    question: Question,
) -> CardFailure | None:
    """The failure within the program's own limit if it went beyond it, else on the largest card that is too
    small.

    Args:
        too_small: the bytes of such cards.
    """
    outside_bytes = card_named(question.gpu).outside_bytes[0]
    full_cards = [
        full_card
        for full_card in gathered.full_cards
        if full_card.room.is_own_limit or full_card.room.total_bytes in too_small
    ]
    full_cards += [  # those that only gaps between blocks fail: nobody looked then
        FullCard.unseen(Room(total_bytes, total_bytes - outside_bytes), gathered.log)
        for total_bytes in too_small.difference(card.room.total_bytes for card in full_cards)
    ]
    if not full_cards:
        return None
    return card_failure(
        gathered.log,
        max(full_cards, key=lambda card: (card.room.is_own_limit, card.room.total_bytes)),
        meta,
        step_rows=gathered.step_rows,
        whole_run=whole_run,
        conf=question.conf,
        outside_bytes=outside_bytes,
    )


def _has_open_turns(gathered: Gathered, served: ServedRequests) -> bool:
    """Whether memory hangs on the turns of a loop that nothing but a made-up number ends."""
    is_open = any(
        decision.is_loop and not decision.has_other_end for decision in gathered.decisions
    )
    return is_open and served.sure_bytes is not None
