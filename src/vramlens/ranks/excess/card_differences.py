"""Cards of several models in one job: what ranks hold more because of their card is no difference."""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.excess.rank_differences import differences_of
from vramlens.ranks.peers.usual import Usual, lower_median
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import RankSummary

_BY_AMOUNT = (
    "uneven_batch",
    "not_checkpointed",
    "moe_hot_rank",
    "pipeline_stage",
    "uneven_shard",
    "embedding_shard",
    "overlap",
    "unknown",
)
"""Causes that say how much a rank holds of what its peers hold as well."""
_LARGER = 1.1
"""Times the memory of another card, or the share of it in use: less is the same."""


def differences_beside_cards(
    beside: RankAgainstPeers, peers: Sequence[RankSummary]
) -> list[RankDifference]:
    """The reasons why a rank holds more than is usual among its peers; where these have other cards,
    how much it holds is compared with ranks that have the same.
    """
    differences = differences_of(beside)
    rank = beside.rank
    alike = [peer for peer in peers if peer.device_name == rank.device_name]
    if not 1 < len(alike) < len(peers):
        return differences
    usual = Usual(alike).beside(rank)
    by_amount = [
        difference
        for difference in differences_of(
            RankAgainstPeers(rank, usual, beside.position, beside.strays)
        )
        if difference.cause in _BY_AMOUNT
    ]
    causes = {difference.cause for difference in by_amount}
    others = [peer for peer in peers if peer.device_name != rank.device_name]
    return [
        *by_amount,
        *(
            difference
            for difference in differences
            if difference.cause not in causes and not _is_of_card(difference, rank, others)
        ),
    ]


def _is_of_card(
    difference: RankDifference, rank: RankSummary, others: Sequence[RankSummary]
) -> bool:
    """True if a difference from ranks with other cards comes of the card: workspaces that libraries
    choose, or a part of the work in proportion to its memory.
    """
    if difference.cause not in _BY_AMOUNT:
        return False
    lines = [line for line in rank.lines if line.place == difference.place]
    if lines and all(line.category == "workspace" for line in lines):
        return True
    total = lower_median(other.total_bytes or 0 for other in others)
    share = lower_median(_share_in_use(other) for other in others)
    is_larger = (rank.total_bytes or 0) > _LARGER * total > 0
    return is_larger and _share_in_use(rank) <= _LARGER * share


def _share_in_use(rank: RankSummary) -> float:
    return rank.peak_reserved_bytes / max(1, rank.total_bytes or 0)
