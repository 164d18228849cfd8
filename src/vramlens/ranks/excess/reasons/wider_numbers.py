"""Numbers of 32 bits where peers have 16: the same tensors with twice the bytes, of a batch that is no
larger. Autocast also makes copies, so a rank without it makes fewer tensors at the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramlens.ranks.excess.causes import SAME_SHARE, is_built_once
from vramlens.ranks.excess.line_excess import LineExcess, bytes_of
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_summary import LineUse, RankSummary
from vramlens.units import KIB, format_size

_TWICE = (1.98, 2.02)
"""Numbers of 32 instead of 16 bits: nothing is larger than twice, and most is so exactly."""
_MOST = 2 / 3
_LEAST_EQUAL_BYTES = 64 * KIB


def are_twice_as_wide(larger: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> bool:
    """True if most is exactly twice as large, and nothing larger than that, while a forward pass
    asks for some of the same size: a batch would scale these, too.
    """
    times = [
        (_times_as_large(excess.line, excess.usual), excess.bytes)
        for excess in larger
        if excess.usual is not None
    ]
    twice_bytes = sum(size for ratio, size in times if _is_twice(ratio))
    is_twice = 0 < _MOST * bytes_of(larger) <= twice_bytes
    is_more = any(ratio > _TWICE[1] for ratio, _ in times)
    return is_twice and not is_more and any(_of_same_size(rank, usual))


def words_of_wider(larger: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> list[str]:
    """What shows that numbers are wider, and the batch is not: one phrase each."""
    pairs = [(excess.line, excess.usual) for excess in larger if excess.usual is not None]
    twice = [pair for pair in pairs if _is_twice(_times_as_large(*pair))]
    line, peer = max(twice, key=lambda pair: pair[0].at_peak_bytes)
    own_size, usual_size = (
        (line.main_bytes, peer.main_bytes)
        if line.main_bytes == 2 * peer.main_bytes > 0
        else (int(line.mean_bytes), int(peer.mean_bytes))
    )
    words = [
        f"tensors of {format_size(own_size)} at {line.place}; its peers: {format_size(usual_size)},"
        " half as much"
    ]
    words += words_of_same_batch(rank, usual)
    if makes_fewer(larger):
        own_count, usual_count = _allocations(larger)
        words.append(
            f"{own_count:,} tensors at these lines; its peers: {usual_count:,}, with the copies"
            " that autocast makes"
        )
    return words


def words_of_same_batch(rank: RankSummary, usual: Usual) -> list[str]:
    """What shows that the batch is not larger: one phrase; none where nothing does."""
    same = max(_of_same_size(rank, usual), key=lambda line: line.peak_bytes, default=None)
    if same is None:
        return []
    return [f"what {same.place} makes is as large as on the peers, so the batch is not larger"]


def makes_fewer(larger: Sequence[LineExcess]) -> bool:
    """True if peers make more tensors at these lines, as with the copies of autocast."""
    own_count, usual_count = _allocations(larger)
    return own_count < (1 - SAME_SHARE) * usual_count


def _allocations(larger: Sequence[LineExcess]) -> tuple[int, int]:
    """How many the rank makes at lines that its peers have, too, and how many these make."""
    pairs = [(excess.line, excess.usual) for excess in larger if excess.usual is not None]
    return sum(line.allocations for line, _ in pairs), sum(peer.allocations for _, peer in pairs)


def _of_same_size(rank: RankSummary, usual: Usual) -> Iterator[LineUse]:
    """Yields the lines of a forward pass whose activations are as large as on a typical rank."""
    for line in rank.lines:
        peer = usual.line(line)
        if peer is None or is_built_once(peer) or line.phase != "forward":
            continue
        is_kept = "activations" in (line.category, peer.category)
        is_same = abs(line.times_as_large(peer) - 1) <= SAME_SHARE
        if is_kept and is_same and line.peak_bytes >= _LEAST_EQUAL_BYTES:
            yield line


def _times_as_large(line: LineUse, peer: LineUse) -> float:
    """How many times as large as a peer's the tensors of a line are. Where it makes another number of
    them, autocast's copies are in the mean: then those that hold most at the peak may say it.
    """
    is_as_many = abs(line.allocations - peer.allocations) <= SAME_SHARE * peer.allocations
    if not is_as_many and line.main_bytes == 2 * peer.main_bytes > 0:
        return 2.0
    return line.times_as_large(peer)


def _is_twice(ratio: float) -> bool:
    return _TWICE[0] <= ratio <= _TWICE[1]
