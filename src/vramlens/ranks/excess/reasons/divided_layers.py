"""Layers that are divided among the ranks, such as a vocabulary: where a rank's part has more
parameters, what is computed with them is larger by the same factor. No batch makes parameters
larger.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from vramlens.ranks.excess.causes import SAME_SHARE
from vramlens.ranks.excess.line_excess import LineExcess, bytes_of
from vramlens.ranks.parameter_groups import modules_of
from vramlens.ranks.peers.usual import Usual, lower_median
from vramlens.ranks.rank_summary import LineUse, RankSummary

_TABLE = re.compile(
    r"(?i)embed|(?:^|[._])(?:emb|tables?|vocab\w*|lookup|wte|wpe|codebook|items?|users?)(?:$|[._{])"
)
"""In names of modules: tables, one row an entry."""
_FAR_MORE = 1.25
"""Times as large: no rounding makes a part so much larger."""
_MOST = 2 / 3
_NEAR = 0.1
"""By how much two shares may differ, each by which something is larger."""
_LEAST_PART = 0.1
"""Of a rank's parameters, that are its part of a divided layer."""


def divided_parameters(
    larger: Sequence[LineExcess], rank: RankSummary, usual: Usual
) -> tuple[LineUse, float] | None:
    """The parameters of a rank's larger part, and how many times as large they are as its peers',
    where most of what else is larger is so by that factor; None where it is not.
    """
    growing = list(_larger_parameters(rank, usual))
    alike = [
        excess
        for excess in larger
        if excess.usual is not None
        and any(_are_alike(excess.line.times_as_large(excess.usual), times) for _, times in growing)
    ]
    if not growing or bytes_of(alike) < _MOST * bytes_of(larger):
        return None
    return max(growing, key=lambda pair: pair[0].peak_bytes)


def are_larger_layers(rank: RankSummary, usual: Usual) -> bool:
    """True if the parameters that are larger than the peers' have names, and these are no
    tables'.
    """
    peers_bytes: dict[tuple[str, int], list[int]] = defaultdict(list)
    for peer in usual.ranks:
        for group in peer.parameters if peer is not rank else ():
            peers_bytes[modules_of(group), group.count].append(group.bytes)
    usual_bytes = {key: lower_median(sizes) for key, sizes in peers_bytes.items()}
    larger = [
        group.modules
        for group in rank.parameters
        if group.bytes > _FAR_MORE * usual_bytes.get((modules_of(group), group.count), group.bytes)
    ]
    return bool(larger) and not any(map(_TABLE.search, larger))


def has_no_more_parameters(rank: RankSummary, usual: Usual) -> bool:
    """True if a rank has no more parameters in all than its peers: its part is another one, not a
    larger one.
    """
    usual_bytes = lower_median(peer.bytes_of("parameters") for peer in usual.ranks)
    return rank.bytes_of("parameters") <= usual_bytes


def _larger_parameters(rank: RankSummary, usual: Usual) -> Iterator[tuple[LineUse, float]]:
    """Yields as many parameters of a line as on the peers, each larger, and how many times as
    large.
    """
    least_bytes = _LEAST_PART * rank.bytes_of("parameters")
    for line in rank.lines:
        peer = usual.line(line) if line.category == "parameters" else None
        if peer is None or line.allocations != peer.allocations or line.peak_bytes < least_bytes:
            continue
        times = line.times_as_large(peer)
        if times > 1 + SAME_SHARE:
            yield line, times


def _are_alike(growth: float, times: float) -> bool:
    return abs(growth - times) <= _NEAR * (times - 1)
