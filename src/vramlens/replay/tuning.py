"""``vramlens tune``: the settings worth trying, the best of them, and the smallest card for
each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramlens.analyses.failure.oom import settings_variable
from vramlens.cards.card_room import CardRoom
from vramlens.errors import InputError
from vramlens.ground.printed_answer import PrintedAnswer
from vramlens.replay.answer import Progress, missing_of, places_of, proven_device
from vramlens.replay.proof import Proven, Recorded
from vramlens.replay.settings import Settings
from vramlens.replay.what_if import WhatIf, WhatIfQuestion, ask, question
from vramlens.units import GIB, format_size

if TYPE_CHECKING:
    from vramlens.analyses.failure.need import LimitAdvice
    from vramlens.replay.failed_step import FailedStep
    from vramlens.trace import DecisionsMeta, Trace

WORTH_TRYING = (
    "",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:128",
    "max_split_size_mb:32",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "max_split_size_mb:1024",
    "max_split_size_mb:128,max_non_split_rounding_mb:64",
    "max_split_size_mb:256,max_non_split_rounding_mb:128",
    "roundup_power2_divisions:2",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:8,max_split_size_mb:128",
    "roundup_power2_divisions:16,max_split_size_mb:512",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:0.8,max_split_size_mb:128",
    "large_segment_size_mb:40",
    "large_segment_size_mb:64",
)
"""Settings that people use or advise; the default first."""

_WORTH_IT = 0.02
"""A smaller share saved is not worth a change."""

_USUAL_OUTSIDE_BYTES = GIB
"""What a process may take outside the allocator, where the recording does not say."""

# What a ledger counts that the allocator's own reserved memory does not hold, and that no other
# process holds.
_OUTSIDE = ("nccl", "this_process", "this_process_other", "outside_pytorch", "driver_reserved")


@dataclass(frozen=True, slots=True)
class CardUnderSetting:
    """A card of some size, under one setting.

    Attributes:
        row: what would have happened on it.
        room: what the card leaves for the allocator.
        sure_bytes: what a predicted run surely needs; None where it is sure of the whole.
        may_need_more: whether a predicted run may need more, nobody knows how much.
    """

    row: WhatIf
    room: CardRoom
    sure_bytes: int | None = None
    may_need_more: bool = False

    @property
    def size_bytes(self) -> int:
        """The card's memory."""
        return self.room.total_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the run would have lived; None where that cannot be told."""
        if self.row.oom is None or self.room_is_in_doubt or self.is_undecided:
            return None
        return None if self.may_need_more and not self.row.oom else not self.row.oom

    @property
    def is_undecided(self) -> bool:
        """Whether it is too small for the run as predicted, and not if made-up numbers decide for
        the least.
        """
        if not self.row.oom or self.sure_bytes is None:
            return False
        return self.sure_bytes <= self.room.free_bytes

    @property
    def room_is_in_doubt(self) -> bool:
        """Whether the allocator's memory fits, and what is beside it, which is unknown, may not."""
        return self.row.oom is False and self.row.high_bytes > self.room.least_bytes


@dataclass(frozen=True, slots=True)
class Tuned:
    """One setting that was tried.

    Attributes:
        row: what it led to.
        saved_bytes: peak reserved below that of the recorded settings; negative where it is above.
        cards: one a card size that was asked for, smallest first.
        step_finishes: whether the step that ended the recording by its failure finishes, as
            ``vramlens explain`` says; None where that cannot be told, or none did.
        step_peak_bytes: what that whole step reserves; None unless it finishes.
    """

    row: WhatIf
    saved_bytes: int
    cards: tuple[CardUnderSetting, ...] = ()
    step_finishes: bool | None = None
    step_peak_bytes: int | None = None

    @property
    def fails(self) -> bool:
        """Whether the run surely fails: at some request, or in the rest of the failed step."""
        return self.row.oom is True or (self.row.oom is None and self.step_finishes is False)

    @property
    def smallest_card(self) -> int | None:
        """The smallest card that the run surely fits on; None where it fits on none of them."""
        return next((card.size_bytes for card in self.cards if card.fits), None)

    @property
    def smallest(self) -> CardUnderSetting | None:
        """The run on that card; else on the smallest that has room for the allocator's memory."""
        surely = (card for card in self.cards if card.fits)
        perhaps = (card for card in self.cards if card.room_is_in_doubt)
        return next(itertools.chain(surely, perhaps), None)

    @property
    def card_rank(self) -> tuple[int, int]:
        """Less for a smaller card; a card that it surely fits comes before one that it may fit."""
        card = self.smallest
        if card is None:
            return 2, 0
        return (0 if card.fits else 1), card.size_bytes


@dataclass(frozen=True, slots=True, repr=False)
class Tuning(PrintedAnswer):
    """All settings that were tried, the best first.

    Attributes:
        source, device, recorded, ended_by_failure, variable, places, missing: as for an Answer.
        baseline: the recorded settings, under the same cap.
        tried: one a setting; the recorded one is among them.
        best: the one to use, on the smallest card where cards were asked for; None where nothing
            helps.
        inert: settings left out, since garbage collection does nothing without a limit.
        outside_bytes: on a card beside the allocator's memory; None where the recording does not
            say.
        floor_bytes: what any allocator would have to reserve for these lifetimes: the most bytes
            alive at once, the request that failed last among them.
        leaked_per_step: what each step leaves behind, where that is why the run failed; None
            elsewhere.
        step_limit: what to allow the process for the failed step, as ``vramlens explain`` advises;
            None where unknown.
        capacity_bytes: the most that the process could have reserved; None where nothing bounds it.
        decisions: what made-up numbers decide, where the recording was predicted.
    """

    source: str
    device: int
    recorded: Recorded
    ended_by_failure: bool
    variable: str
    places: dict[int, str]
    missing: tuple[str, ...]
    baseline: WhatIf
    tried: tuple[Tuned, ...]
    best: Tuned | None
    inert: tuple[str, ...]
    outside_bytes: int | None
    floor_bytes: int
    leaked_per_step: int | None = None
    step_limit: LimitAdvice | None = None
    capacity_bytes: int | None = None
    decisions: DecisionsMeta | None = None

    @property
    def as_recorded(self) -> Tuned:
        """The settings that the run had."""
        return next(tuned for tuned in self.tried if tuned.row.settings == self.baseline.settings)

    @property
    def card_of_best(self) -> CardUnderSetting | None:
        """The card for which the best setting is advised, as the run with its own settings needs a
        larger one; None where it is advised for what it saves.
        """
        is_smaller = self.best is not None and self.best.card_rank < self.as_recorded.card_rank
        return self.best.smallest if self.best is not None and is_smaller else None

    @property
    def past_request_only(self) -> Tuned | None:
        """The best setting that only gets past the failed request; None where one is advised."""
        if self.best is not None or self.leaked_per_step is not None:
            return None
        if self.baseline.past_failure:
            return None
        past = (tuned for tuned in self.tried if tuned.row.past_failure)
        return next((tuned for tuned in past if tuned.step_finishes is False), None)

    @property
    def no_setting_can_help(self) -> bool:
        """Whether more is alive at once than may be reserved, whatever the settings."""
        capacity = self.capacity_bytes
        is_above = capacity is not None and self.floor_bytes > capacity
        return is_above and all(tuned.fails for tuned in self.tried)


def tune_trace(
    trace: Trace,
    *,
    cap_bytes: int | None = None,
    cards: Sequence[int] = (),
    confs: Sequence[str] = WORTH_TRYING,
    recorded_cap_bytes: int | None = None,
    device: int | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Tries settings on one device's recording.

    Args:
        cap_bytes: what the process may reserve; None: what it could when it was recorded.
        cards: card sizes to fit on.

    Raises:
        InputError, UsageError: as for ``replay_trace``.
    """
    proven = proven_device(trace, device, recorded_cap_bytes)
    outside = outside_bytes(trace, proven.device.device)
    decisions = trace.meta.decisions
    sure_bytes = None if decisions is None else decisions.sure_bytes
    may_need_more = decisions is not None and decisions.is_open
    settings_to_try = distinct_settings(proven, confs, newest=trace.torch_version is not None)
    floor = floor_bytes(proven)
    recorded_question = question(proven, None, cap_bytes)
    inert = _inert(settings_to_try, recorded_question)
    questions = [recorded_question]
    questions += [
        question(proven, settings.conf, cap_bytes)
        for settings in settings_to_try
        if settings.conf not in inert
    ]
    sizes = sorted(set(cards))
    rooms = [_room_on(size, trace, outside) for size in sizes]
    _refuse_small_card(proven, rooms, outside or 0)
    per_card = [
        question(proven, without_card.settings.conf, _most_allowed(room, floor), card=True)
        for without_card in questions
        for room in rooms
    ]
    answers = ask(proven, [*questions, *per_card], progress)
    rows, card_rows = answers[: len(questions)], answers[len(questions) :]
    on_cards = [
        CardUnderSetting(row=row, room=room, sure_bytes=sure_bytes, may_need_more=may_need_more)
        for room, row in zip(itertools.cycle(rooms), card_rows, strict=False)
    ]
    on_cards = _with_least_room(proven, on_cards)
    baseline = rows[0]
    # Only here: it explains the whole recording, by what this module offers.
    from vramlens.replay.failed_step import failed_step_under

    failed_step = failed_step_under(trace, proven, cap_bytes, recorded_cap_bytes)
    tried = []
    for index, row in enumerate(rows):
        tried.append(
            Tuned(
                row=row,
                saved_bytes=baseline.peak_reserved_bytes - row.peak_reserved_bytes,
                cards=tuple(on_cards[index * len(sizes) : (index + 1) * len(sizes)]),
                step_finishes=failed_step.finishes(row.settings),
                step_peak_bytes=failed_step.peak_bytes(row.settings),
            )
        )
    tried = _best_first(tried)
    best = _best(tried, baseline, failed_step)
    tried.sort(key=lambda tuned: tuned is not best)
    return Tuning(
        source=trace.source,
        device=proven.device.device,
        recorded=proven.recorded,
        ended_by_failure=proven.ended_by_failure,
        variable=settings_variable(trace),
        places=places_of(trace, proven, rows),
        missing=missing_of(trace),
        baseline=baseline,
        tried=tuple(tried),
        best=best,
        inert=inert,
        outside_bytes=outside,
        floor_bytes=floor,
        leaked_per_step=failed_step.leaked_per_step,
        step_limit=failed_step.limit,
        capacity_bytes=failed_step.capacity_bytes or recorded_question.limit.most_bytes,
        decisions=decisions,
    )


def _room_on(size_bytes: int, trace: Trace, outside: int | None) -> CardRoom:
    """What a card leaves for the allocator.

    Args:
        outside: what the process holds beside it; None where the recording does not say.
    """
    margins = trace.meta.margins
    if outside is None and margins is not None:
        return margins.room_on(size_bytes)
    most = max(0, size_bytes - (outside or 0))
    least = most if outside is not None else max(0, size_bytes - _USUAL_OUTSIDE_BYTES)
    return CardRoom(size_bytes, free_bytes=most, least_bytes=least, most_bytes=most)


def _most_allowed(room: CardRoom, floor: int) -> int:
    """Within which a run may live: what is alive at once has to fit what is free."""
    return room.most_bytes if floor <= room.free_bytes else min(room.most_bytes, room.free_bytes)


def _with_least_room(
    proven: Proven, on_cards: Sequence[CardUnderSetting]
) -> list[CardUnderSetting]:
    """The same; where the cache filled a card to its end, with room left for what is beside the
    allocator, if the run lives so, too.
    """
    base = proven.device.reserved.base_bytes
    doubted = [
        place
        for place, card in enumerate(on_cards)
        if card.room_is_in_doubt and card.room.least_bytes >= base
    ]
    questions = []
    for place in doubted:
        card = on_cards[place]
        conf = card.row.settings.conf
        questions.append(question(proven, conf, card.room.least_bytes, card=True))
    with_room = list(on_cards)
    for place, row in zip(doubted, ask(proven, questions), strict=True):
        if row.oom is False:
            with_room[place] = replace(on_cards[place], row=row)
    return with_room


def floor_bytes(proven: Proven) -> int:
    """The most bytes alive at once: what any allocator would have to reserve for these lifetimes.

    A block that a stream still uses counts until it is done. The request that ended the run counts
    as alive: what it asked for was needed.
    """
    device, request = proven.device, proven.last_failure
    floor = int(device.requested.peak_bytes)
    if request is None:
        return floor
    alive = device.allocations.alive_after(request.event)
    return max(floor, int(device.allocations.requested_bytes[alive].sum()) + request.size_bytes)


def _inert(settings_to_try: Sequence[Settings], recorded: WhatIfQuestion) -> tuple[str, ...]:
    """The settings that do nothing: garbage collection without a limit of the process."""
    if recorded.limit.bytes is not None and not recorded.limit.of_device:
        return ()
    return tuple(
        settings.conf for settings in settings_to_try if settings.garbage_collection_threshold
    )


def _refuse_small_card(proven: Proven, rooms: Sequence[CardRoom], outside: int) -> None:
    base = proven.device.reserved.base_bytes
    if rooms and rooms[0].most_bytes < base:
        raise InputError(
            f"a card of {format_size(rooms[0].total_bytes)} is too small: the process already held"
            f" {format_size(base + outside)} of its own when recording began;"
            " leave it out of --cards"
        )


def _best_first(tried: Sequence[Tuned]) -> list[Tuned]:
    """Of what gets past a failure the simplest is best: what is reserved below a limit costs
    nothing.
    """
    past_failure = simple_first([tuned.row for tuned in tried if tuned.row.past_failure])

    def place(tuned: Tuned) -> int:
        return past_failure.index(tuned.row) if tuned.row in past_failure else len(past_failure)

    return sorted(tried, key=lambda tuned: (place(tuned), *_rank(tuned)))


def distinct_settings(proven: Proven, confs: Sequence[str], *, newest: bool) -> list[Settings]:
    """The settings that differ from the recorded ones, each once.

    Args:
        newest: whether the version is known, so that options can be told apart from those it lacks.
    """
    distinct = [proven.recorded.settings]
    for conf in confs:
        if "large_segment_size_mb" in conf and not (
            newest and proven.recorded.version.large_segment_option
        ):
            continue
        settings = question(proven, conf).settings
        if settings not in distinct:
            distinct.append(settings)
    return distinct[1:]


def outside_bytes(trace: Trace, device: int) -> int | None:
    """What the process holds on a device beside the allocator's memory; None where the recording
    does not say.
    """
    for moment in (trace.ledgers.end, trace.ledgers.peak) if trace.ledgers else ():
        ledger = moment.get(device)
        if ledger is not None and ledger.parts:
            return sum(part.bytes for part in ledger.parts if part.kind in _OUTSIDE)
    return None


def simple_first(rows: Sequence[WhatIf]) -> list[WhatIf]:
    """The cheapest first; of those that are nearly as cheap as it, the one with the fewest
    options.
    """
    least_bytes = min((row.peak_reserved_bytes for row in rows), default=0)

    def cost(row: WhatIf) -> tuple[int, int, int, int]:
        size = row.peak_reserved_bytes
        return (
            0 if size <= (1 + _WORTH_IT) * least_bytes else size,
            row.settings.conf.count(":"),
            row.retries,
            size,
        )

    return sorted(rows, key=cost)


def _rank(setting: Tuned) -> tuple[int, int, int, int]:
    """Lives before cannot tell before fails; then the least reserved at worst, the fewest
    retries, the shortest text.
    """
    row = setting.row
    if row.past_failure:
        life = 1
    elif setting.fails:
        life = 3
    else:
        life = 0 if row.oom is False else 2
    return life, row.high_bytes, row.retries, len(row.settings.conf)


def _best(tried: Sequence[Tuned], baseline: WhatIf, failed_step: FailedStep) -> Tuned | None:
    """The setting to use; None where none is better than what the run had."""
    if failed_step.leaked_per_step is not None:
        return None
    past_failure = [tuned.row.settings for tuned in tried if tuned.row.past_failure]
    if (past_failure or failed_step.judged) and not baseline.past_failure:
        advice = failed_step.advice(past_failure)
        return next((tuned for tuned in tried if tuned.row.settings == advice), None)
    return _best_on_smallest_card(tried, baseline)


def _best_on_smallest_card(tried: Sequence[Tuned], baseline: WhatIf) -> Tuned | None:
    """The best of the settings that fit the smallest card, or of all where no card was asked for.

    Where the recorded ones do not fit it, that is the reason for a change, and retries decide.
    """
    smallest_card_rank = min(tuned.card_rank for tuned in tried)
    fitting = [tuned for tuned in tried if tuned.card_rank == smallest_card_rank]
    if any(tuned.row.settings == baseline.settings for tuned in fitting):
        return fitting[0] if _is_worth_a_change(fitting[0].row, baseline) else None
    return min(fitting, key=_retries_on_smallest)


def _retries_on_smallest(tuned: Tuned) -> int:
    return tuned.smallest.row.retries if tuned.smallest is not None else 0


def _is_worth_a_change(row: WhatIf, baseline: WhatIf) -> bool:
    """True for a setting that avoids a failure, or surely saves enough."""
    if row.settings == baseline.settings or not (row.oom is False or row.past_failure):
        return False
    if baseline.oom is not False and not baseline.past_failure:
        return True
    return baseline.low_bytes - row.high_bytes >= _WORTH_IT * baseline.peak_reserved_bytes
