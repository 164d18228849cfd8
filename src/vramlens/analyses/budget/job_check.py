"""A job held against a budget: of each limit, the rank that keeps it least."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from vramlens.analyses.budget.broken_limits import Result, bytes_over, title_of
from vramlens.analyses.budget.budget import Check
from vramlens.analyses.budget.budget_file import COUNT, Limit
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict

_RANKS = ("ranks",)
_MOST_NAMED = 3


def check_of_job(source: str, checks: Mapping[int, Check], unread: Mapping[int, str]) -> Check:
    """The check of a job from those of its ranks.

    Args:
        source: the job's folder.
        checks: of each rank that could be read.
        unread: by rank, why it could not be: what cannot be told does not pass.
    """
    results = [_worst(checks, path) for path in _limits(checks)]
    findings = list(_findings(checks, results))
    if unread:
        results.append(_unread_result(len(checks) + len(unread), unread))
        findings.append(
            Finding(
                id="cannot_tell",
                verdict=Verdict.PROVEN,
                title=f"ranks unknown: {results[-1].why}",
                limits=_RANKS,
                fix="record every rank, or check the folder of a run that ended well",
            )
        )
    worst = next((result.rank for result in results if not result.passed), None)
    highest = max(checks, key=lambda rank: (rank == worst, -rank), default=None)
    return Check(
        source=source,
        budget=next((check.budget for check in checks.values()), ""),
        passed=all(result.passed for result in results),
        results=tuple(results),
        findings=tuple(findings),
        ranks=tuple(sorted({*checks, *unread})),
        worst_recording=None if highest is None else checks[highest].source,
    )


def _limits(checks: Mapping[int, Check]) -> list[tuple[str, ...]]:
    """The limits of all ranks in the file's order; one that only some have comes last."""
    paths = (result.limit.path for check in checks.values() for result in check.results)
    return list(dict.fromkeys(paths))


def _worst(checks: Mapping[int, Check], path: tuple[str, ...]) -> Result:
    """The result of the rank that keeps a limit least: over, then unknown, then the highest."""
    results = [
        replace(result, rank=rank)
        for rank, check in checks.items()
        for result in check.results
        if result.limit.path == path
    ]
    return max(results, key=_badness)


def _badness(result: Result) -> tuple[bool, bool, float, int]:
    return (
        result.passed is False,
        result.passed is None,
        result.value or 0,
        -(result.rank or 0),
    )


def _findings(checks: Mapping[int, Check], results: Sequence[Result]) -> Iterator[Finding]:
    """Yields what broke the limits, each once: of the rank that keeps it least."""
    broken: dict[tuple[int, tuple[str, ...]], list[Result]] = defaultdict(list)
    findings = {}
    for result in results:
        if result.passed or result.rank is None:
            continue
        for finding in checks[result.rank].findings:
            if result.limit.scope in finding.limits:
                key = result.rank, finding.limits
                findings[key] = finding
                broken[key].append(result)
    for (rank, _limits_of_rank), finding in findings.items():
        yield _finding_of_job(finding, broken[rank, finding.limits], checks, rank)


def _finding_of_job(
    finding: Finding, broken: Sequence[Result], checks: Mapping[int, Check], rank: int
) -> Finding:
    """A rank's finding, of the limits that this rank keeps least."""
    if len(broken) < len(finding.limits):  # another rank keeps the others even less
        finding = replace(
            finding,
            title=title_of(broken),
            bytes=bytes_over(broken[0]),
            limits=tuple(result.limit.scope for result in broken),
        )
    other_ranks_text = _others_over(checks, broken[0].limit.scope, rank)
    return replace(finding, title=f"{finding.title} (rank {rank}{other_ranks_text})")


def _others_over(checks: Mapping[int, Check], scope: str, rank: int) -> str:
    """The other ranks that do not keep a limit."""
    other_ranks = [
        other for other, check in checks.items() if other != rank and _breaks(check, scope)
    ]
    if not other_ranks:
        return f" only, of {len(checks):,}" if len(checks) > 1 else ""
    return f" and {len(other_ranks):,} more of {len(checks):,}"


def _breaks(check: Check, scope: str) -> bool:
    """Whether a rank does not keep the limit of a scope."""
    return any(result.limit.scope == scope and not result.passed for result in check.results)


def _unread_result(ranks: int, unread: Mapping[int, str]) -> Result:
    named = [f"rank {rank} {why}" for rank, why in sorted(unread.items())[:_MOST_NAMED]]
    if len(unread) > _MOST_NAMED:
        named.append(f"{len(unread) - _MOST_NAMED:,} more")
    return Result(Limit(_RANKS, COUNT, ranks, None), None, None, "; ".join(named))
