"""NCCL's watchdog in a log: which collective each rank was in when it gave up.

The lines are those of ProcessGroupNCCL.cpp (PyTorch 2.4 to 2.13), with torchrun's prefix or
without it:

    [rank1]:[E... ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout:
    WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from vramlens.read.values import MOST_RANKS
from vramlens.trace.flight import Collective, FlightGroup, FlightRecord

_LINE = re.compile(
    r"\[(?:PG (?:ID )?\d+[^\]]{0,200}? )?Rank (?P<group_rank>\d{1,7})\][^\n]{0,80}?"
    r"Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(?P<seq>\d{1,15}), OpType=(?P<name>[A-Z_a-z0-9]{1,60}), "
    r"NumelIn=(?P<inputs>\d{1,15}), NumelOut=(?P<outputs>\d{1,15}), "
    r"Timeout\(ms\)=(?P<timeout>\d{1,12})\)"
)
_DETECTED = re.compile(r"failure detected by watchdog at work sequence id: (?P<seq>\d{1,15})")
"""What the next line says of the same call; it names the group, which PyTorch 2.11's first does not."""
_GROUP = re.compile(r"PG GUID (?P<name>[\w.-]{1,60})(?:\((?P<description>[^)]{1,60})\))?")
_PREFIX = re.compile(r"\[rank(?P<rank>\d{1,7})\]:")
_DEFAULT_GROUP = FlightGroup("0", "", ())
_MOST_LINES = 10_000_000
_NAMES = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
}
"""As flight records call them; the others in small letters."""


def read_watchdog_lines(lines: Iterable[str], source: str) -> dict[int, FlightRecord]:
    """What each rank was in when the watchdog gave up, as flight records of one call a group; empty
    where the log has no such line.

    Args:
        lines: of the log.
        source: its name.
    """
    timed_out: dict[tuple[int, str, FlightGroup | None], re.Match[str]] = {}
    detected: dict[tuple[int, str], FlightGroup] = {}
    for line in islice(lines, _MOST_LINES):
        match = _LINE.search(line)
        if match is not None:
            call = _rank_of(line, match), match["seq"], _group_of(line)
            timed_out.setdefault(call, match)
            continue
        detection = _DETECTED.search(line)
        if detection is None:
            continue
        prefix, group = _PREFIX.search(line), _group_of(line)
        if prefix is not None and group is not None:
            detected[int(prefix["rank"]), detection["seq"]] = group
    calls: dict[int, dict[str, Collective]] = {}
    groups: dict[str, FlightGroup] = {}
    for (rank, number, named), match in timed_out.items():
        group = named or detected.get((rank, number), _DEFAULT_GROUP)
        groups.setdefault(group.name, group)
        if rank <= MOST_RANKS:
            # Of several lines of a rank and group the first is the one that hung.
            calls.setdefault(rank, {}).setdefault(group.name, _call(match, group))
    default = groups.get(_DEFAULT_GROUP.name)
    if default is not None:
        groups[default.name] = replace(default, ranks=tuple(sorted(calls)))
    return {
        rank: FlightRecord(
            source=source,
            version="log",
            library_version=None,
            groups=groups,
            last_completed={},
            collectives=tuple(by_group.values()),
        )
        for rank, by_group in sorted(calls.items())
    }


def _rank_of(line: str, match: re.Match[str]) -> int:
    """The global rank, which torchrun puts before the line; else the group's."""
    prefix = _PREFIX.search(line)
    return int(prefix["rank"] if prefix is not None else match["group_rank"])


def _group_of(line: str) -> FlightGroup | None:
    match = _GROUP.search(line)
    if match is None:
        return None
    return FlightGroup(match["name"], match["description"] or "", ())


def _call(match: re.Match[str], group: FlightGroup) -> Collective:
    return Collective(
        group=group.name,
        description=group.description,
        seq=int(match["seq"]),
        name=_NAMES.get(match["name"], match["name"].lower()),
        is_p2p=False,
        state="started",
        input_sizes=((int(match["inputs"]),),),
        output_sizes=((int(match["outputs"]),),),
        dtypes=(),
        created_ns=None,
        started_ns=None,
        completed_ns=None,
        frames=(),
        timeout_ms=int(match["timeout"]),
    )
