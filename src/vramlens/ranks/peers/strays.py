"""Strays: what ranks hold on GPUs of others, as they recorded it themselves and as the driver saw it
from the other GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import RankSummary, Stray

_Process = tuple[str | None, int]
"""A process of a host, as its driver counts."""
_Device = tuple[str | None, int]
"""A GPU of a host."""


def strays_of_ranks(ranks: Sequence[RankSummary]) -> dict[int, tuple[Stray, ...]]:
    """The strays of each rank, by its number."""
    rank_of_process = _rank_of_process(ranks)
    strays = {summary.rank: list(summary.strays) for summary in ranks}
    devices = {summary.rank: summary.device for summary in ranks}
    for summary in ranks:
        for pid, size in summary.neighbors:
            owner = rank_of_process.get((summary.host, pid))
            # Ranks that share a GPU, or see only their own, have the same number for it.
            if owner is None or devices[owner] == summary.device:
                continue
            if all(stray.device != summary.device for stray in strays[owner]):
                strays[owner].append(
                    Stray(
                        device=summary.device,
                        reserved_bytes=0,
                        process_bytes=size,
                        place=None,
                        hints=Hint.NONE,
                    )
                )
    return {rank: tuple(of_rank) for rank, of_rank in strays.items()}


def strays_by_device(
    ranks: Mapping[int, RankSummary], strays: Mapping[int, Sequence[Stray]]
) -> dict[_Device, list[Stray]]:
    """The strays by the GPU that they are on."""
    by_device: dict[_Device, list[Stray]] = defaultdict(list)
    for rank, of_rank in strays.items():
        for stray in of_rank:
            by_device[ranks[rank].host, stray.device].append(stray)
    return by_device


def _rank_of_process(ranks: Sequence[RankSummary]) -> dict[_Process, int]:
    """The rank of each process. The driver counts the processes of a container otherwise than they
    do themselves, so only its own numbers are compared.
    """
    return {
        (summary.host, summary.driver_pid): summary.rank
        for summary in ranks
        if summary.driver_pid is not None
    }
