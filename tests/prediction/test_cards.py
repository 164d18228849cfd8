"""On which cards a program fits: a full card fails no request at once, for PyTorch gives back what
it has cached and asks again.
"""

from __future__ import annotations

import pytest

from vramlens.cards.card_room import PredictionMargins
from vramlens.cards.known_cards import CARDS
from vramlens.prediction.predicted_peak import CardFit, fits_of
from vramlens.units import GIB, MIB

pytest.importorskip("torch")

from vramlens.prediction.requests.request_log import RequestLog
from vramlens.prediction.requests.served_requests import ServedRequests, serve

H200 = CARDS["h200"]


def growing(steps: int, *, kept_mib: int = 0, is_sure: bool = True) -> RequestLog:
    """Results of 22 MiB more each time, so that none fits where an earlier one was; the last two
    are alive at once.
    """
    log = RequestLog()
    if kept_mib:
        kept = log.allocate(kept_mib * MIB)
        if not is_sure:
            log.bounds[kept] = MIB, kept_mib * MIB
    last = log.allocate(22 * MIB)
    for step in range(2, steps + 1):
        result = log.allocate(step * 22 * MIB)
        log.free(last)
        last = result
    log.free(last)
    return log


def served_on(log: RequestLog, *card_gib: float) -> tuple[ServedRequests, tuple[CardFit, ...]]:
    margins = PredictionMargins(0.01, H200.outside_bytes)
    rooms = [margins.room_on(int(size * GIB)) for size in card_gib]
    limits = [limit for room in rooms for limit in (room.least_bytes, room.most_bytes)]
    served = serve(log, "", "2.11.0", card_bytes=100 * GIB, limits=limits)
    return served, fits_of(rooms, served)


def test_a_program_fits_where_freeing_the_cache_lets_it_live() -> None:
    served, cards = served_on(growing(60), 5, 8, 80)
    assert served.peaks["allocated_bytes"] == (59 + 60) * 22 * MIB  # 2.56 GiB
    assert served.peaks["reserved_bytes"] > 16 * GIB
    assert [card.fits for card in cards] == [True, True, True]
    assert cards[0].retries > cards[1].retries > cards[2].retries == 0


def test_what_is_alive_at_once_must_fit() -> None:
    served, (card,) = served_on(growing(60), 2.5)
    assert served.floor_bytes + 450 * MIB > 2.5 * GIB
    assert (card.fits, card.retries) == (False, 0)


def test_a_size_that_is_not_sure_may_decide_it() -> None:
    _, cards = served_on(growing(60, kept_mib=2048, is_sure=False), 5, 8)
    assert [card.fits for card in cards] == [None, True]


def test_no_more_is_reserved_than_the_card_has() -> None:
    log = growing(60)
    unlimited = serve(log, "", "2.11.0", card_bytes=100 * GIB)
    served = serve(log, "", "2.11.0", card_bytes=8 * GIB)
    assert served.is_limited
    assert not unlimited.is_limited
    assert 7 * GIB < served.peaks["reserved_bytes"] <= 8 * GIB < unlimited.peaks["reserved_bytes"]
    freed = [
        event for event in served.snapshot["device_traces"][0] if event["action"] == "segment_free"
    ]
    assert freed


def test_a_program_that_a_card_is_too_small_for_keeps_the_peak_that_it_needs() -> None:
    served = serve(growing(60), "", "2.11.0", card_bytes=2 * GIB)
    assert not served.is_limited
    assert served.within[2 * GIB].lives is False
    assert served.peaks["reserved_bytes"] > 16 * GIB
