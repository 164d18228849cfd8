"""What a person whose run died reads first: what makes it live, then what may."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.explanation import OomVerdict
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.table import FROM_RECORDING
from vramlens.ground.verdict import Verdict
from vramlens.units import MIB

_IN_CODE = {row.id: row.saves_at_most for row in FROM_RECORDING if row.is_mended_in_code}
"""The ids of faults that are mended in the code, with whether their bytes are all that this saves."""
_BEFORE_CODE = ("request_too_large", "allocator_retry", "settings_help")
_AFTER_CODE = (
    "settings_may_help",
    "smaller_batch",
    "fragmented_request",
    "process_limit",
    "device_full",
)
_MAY_BE_MEANT = frozenset(row.id for row in FROM_RECORDING if row.may_be_meant)
_GROWING = frozenset(row.id for row in FROM_RECORDING if row.grows)
_EXPLAINING = _GROWING.union(
    row.id for row in FROM_RECORDING if row.is_mended_in_code and row.id not in _MAY_BE_MEANT
)
"""The ids of what, once mended, leaves nothing to do about the same bytes."""
_MOSTLY = 0.8
"""Of a finding's bytes, that another one explains."""
_WEIGHT_OF_MEANT = 0.5
"""Of the bytes of what may be meant: a fault that frees half as much, and enough, comes first."""
_WEIGHT_OF_KEPT = 1.02
"""Of about as many bytes what is kept comes first: the others may be made of it."""
_ENOUGH = 0.999
"""Of what is short: a failed request that becomes tiny is all of it but for these bytes."""
_MOST_OF_MEMORY = 0.5
"""Of what is in use."""
_SLIGHT = 0.001
"""Of what could be reserved: mending a leak of less changes nothing."""


def order_of_advice(
    oom: OomVerdict,
    findings: Sequence[Finding],
    sizes: NDArray[np.int64],
    *,
    leaking: bool,
    only_program_keeps: bool,
    missing_bytes: int,
) -> tuple[str, ...]:
    """What comes first: what makes the run live, then what may.

    Args:
        sizes: the bytes of each allocation.
        leaking: whether memory surely grows with each step.
        only_program_keeps: whether no backward pass comes that frees what repetitions keep.
        missing_bytes: by how much the step needs more than there is; 0 where nothing tells.
    """
    short_bytes = oom.short_by_bytes or oom.requested_bytes or 0
    in_code = _enough_in_code(findings, short_bytes, max(short_bytes, missing_bytes))
    if leaking:
        keepers = _keepers_of_leak(findings, sizes)
        after_leak = [name for name in in_code if name not in keepers]
        in_code = [*(name for name in in_code if name in keepers), "leak", *after_leak]
    elif only_program_keeps and _fills_memory(oom, findings):
        in_code = [*in_code, "leak"]  # what may be meant, after what is no doubt a fault
    order = (*_BEFORE_CODE, *in_code, *_AFTER_CODE)
    if oom.cause == "fragmentation":
        return order
    # What only may help comes after all that does.
    return tuple(name for name in order if name != "settings_may_help")


def _keepers_of_leak(findings: Sequence[Finding], sizes: NDArray[np.int64]) -> set[str]:
    """The findings that say who keeps most of what each step leaves."""
    leaks = [finding for finding in findings if finding.id == "leak" and finding.extent is not None]
    largest = max(leaks, key=lambda leak: leak.bytes or 0, default=None)
    if largest is None or largest.extent is None:
        return set()
    leaked_rows = largest.extent.rows
    leaked_bytes = _MOSTLY * int(sizes[leaked_rows].sum())
    return {
        finding.id
        for finding in findings
        if finding.id != "leak"
        and _is_sure(finding, _GROWING)
        and finding.extent is not None
        and sizes[np.intersect1d(finding.extent.rows, leaked_rows)].sum() >= leaked_bytes
    }


def _fills_memory(oom: OomVerdict, findings: Sequence[Finding]) -> bool:
    """Whether what repetitions keep is most of what is in use: a higher limit only lets it grow on."""
    kept_bytes = max(
        (finding.bytes or 0 for finding in findings if finding.id == "leak"), default=0
    )
    return kept_bytes >= _MOST_OF_MEMORY * (oom.allocated_bytes or 0) > 0


def _enough_in_code(findings: Sequence[Finding], short_bytes: int, missing_bytes: int) -> list[str]:
    """The faults in the code whose mending frees enough, the largest first: for the request where it
    saves more with every layer, else for the step.
    """
    saved_bytes: dict[str, int] = {}
    for finding in findings:
        if finding.verdict == Verdict.POSSIBLE or finding.id not in _IN_CODE:
            continue
        saves_at_most = _IN_CODE[finding.id] and not finding.recurs
        enough_bytes = missing_bytes if saves_at_most else short_bytes
        if (finding.bytes or 0) >= _ENOUGH * enough_bytes:
            weight = _WEIGHT_OF_MEANT if finding.id in _MAY_BE_MEANT else 1.0
            weight *= _WEIGHT_OF_KEPT if finding.id in _GROWING else 1.0
            saved_bytes[finding.id] = int(weight * (finding.bytes or 0))

    def rank(name: str) -> tuple[int, bool, bool]:
        return -(saved_bytes[name] // MIB), name in _MAY_BE_MEANT, name not in _GROWING

    return sorted(saved_bytes, key=rank)


def with_growth_to_come(finding: Finding) -> Finding:
    """The finding, of a run that goes on as it did: what is kept at its failure is not all that mending saves."""
    return replace(finding, recurs=True) if finding.id in _GROWING else finding


def with_higher_limit(order: Sequence[str], *, is_known: bool) -> tuple[str, ...]:
    """The order where the device has room for a higher limit: that changes nothing else.

    Args:
        is_known: whether it is known which limit is enough: that is surer than what only may help.
    """
    other_findings = [name for name in order if name != "process_limit"]
    may_help = "settings_may_help" in other_findings
    place = other_findings.index("settings_may_help" if may_help else "smaller_batch")
    place += may_help and not is_known
    return (*other_findings[:place], "process_limit", *other_findings[place:])


def told_once(findings: Sequence[Finding], sizes: NDArray[np.int64]) -> tuple[Finding, ...]:
    """The findings in their order, without those about what a fault before them explains, and without
    a word on the batch where the first is something that the program keeps.

    Args:
        sizes: the bytes of each allocation.
    """
    explained = np.zeros(len(sizes), np.bool_)
    findings_once: list[Finding] = []
    for finding in findings:
        rows = finding.extent.rows if finding.extent is not None else np.zeros(0, np.int64)
        is_told = sizes[rows[explained[rows]]].sum() >= _MOSTLY * sizes[rows].sum() > 0
        is_told |= (
            finding.id == "smaller_batch"
            and bool(findings_once)
            and _is_sure(findings_once[0], _GROWING)
        )
        if is_told:
            continue
        findings_once.append(finding)
        if _is_sure(finding, _EXPLAINING):
            explained[rows] = True
    return tuple(findings_once)


def _is_sure(finding: Finding, ids: Container[str]) -> bool:
    """Whether a finding has one of these ids, and is more than possible."""
    return finding.id in ids and finding.verdict != Verdict.POSSIBLE and finding.fix is not None


def rank_of(
    finding: Finding, order: tuple[str, ...], capacity: int | None
) -> tuple[bool, bool, int]:
    """A finding's place: those with a fix first, and what changes little or only may help last.

    Args:
        capacity: what could be reserved; None where that is not known.
    """
    last = finding.id == "settings_may_help" and finding.id not in order
    last |= finding.id == "leak" and (finding.bytes or 0) < _SLIGHT * (capacity or 0)
    return finding.fix is None, last, order.index(finding.id) if finding.id in order else len(order)
