"""Cards of several models in one job: what ranks hold more because of their card is no difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

from vramlens.ranks.excess.causes import BY_STEP
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.excess.rank_differences import differences_of
from vramlens.ranks.peers.usual import Usual, lower_median
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import RankSummary

_BY_AMOUNT = (*BY_STEP, "overlap")
"""Causes that say how much a rank holds of what its peers hold as well."""
_LARGER = 1.1
"""Times the memory of another card, or the share of it in use: less is the same."""


class PeersByCard:
    """Ranks that do the same work, by the model of their card; as quick for the last as for all."""

    def __init__(self, peers: Sequence[RankSummary]) -> None:
        by_model: dict[str | None, list[RankSummary]] = defaultdict(list)
        for peer in peers:
            by_model[peer.device_name].append(peer)
        self._models = {
            model: _Model(alike, [peer for peer in peers if peer.device_name != model])
            for model, alike in by_model.items()
            if 1 < len(alike) < len(peers)
        }

    def differences(self, beside: RankAgainstPeers) -> list[RankDifference]:
        """The reasons why a rank holds more than is usual among its peers; where these have other
        cards, how much it holds is compared with ranks that have the same.
        """
        differences = differences_of(beside)
        model = self._models.get(beside.rank.device_name)
        if model is None:
            return differences
        by_amount = model.differences_by_amount(beside)
        causes = {difference.cause for difference in by_amount}
        of_all = (difference for difference in differences if difference.cause not in causes)
        return [
            *by_amount,
            *(other for other in of_all if not model.is_of_card(other, beside.rank)),
        ]


class _Model:
    """The ranks with cards of one model, and those with others."""

    def __init__(self, alike: Sequence[RankSummary], others: Sequence[RankSummary]) -> None:
        self._alike, self._others = alike, others

    @cached_property
    def _usual(self) -> Usual:
        return Usual(self._alike)

    @cached_property
    def _bytes_of_others(self) -> int:
        return lower_median(other.total_bytes or 0 for other in self._others)

    @cached_property
    def _share_of_others(self) -> float:
        return lower_median(map(_share_in_use, self._others))

    def differences_by_amount(self, beside: RankAgainstPeers) -> list[RankDifference]:
        """Where a rank holds more than those with its card."""
        usual = self._usual.beside(beside.rank)
        alike = RankAgainstPeers(beside.rank, usual, beside.position, beside.strays)
        return [
            difference for difference in differences_of(alike) if difference.cause in _BY_AMOUNT
        ]

    def is_of_card(self, difference: RankDifference, rank: RankSummary) -> bool:
        """True if a difference from ranks with other cards comes of the card: workspaces that
        libraries choose, or a part of the work in proportion to its memory.
        """
        if difference.cause not in _BY_AMOUNT:
            return False
        lines = [line for line in rank.lines if line.place == difference.place]
        if lines and all(line.category == "workspace" for line in lines):
            return True
        is_larger = (rank.total_bytes or 0) > _LARGER * self._bytes_of_others > 0
        return is_larger and _share_in_use(rank) <= _LARGER * self._share_of_others


def _share_in_use(rank: RankSummary) -> float:
    return rank.peak_reserved_bytes / max(1, rank.total_bytes or 0)
