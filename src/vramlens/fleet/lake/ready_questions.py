"""Questions to a lake that are ready: each with the SQL that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone


@dataclass(frozen=True, slots=True)
class ReadyQuestion:
    """A question that is ready.

    Attributes:
        name: as ``--ask`` takes it.
        meaning: what it answers.
        sql: the question; ``{month}`` is the first moment of this month.
    """

    name: str
    meaning: str
    sql: str


_FAILING_CAUSES = """
SELECT coalesce(cause, kind) AS cause,
       count(DISTINCT (run, attempt)) AS jobs,
       count(DISTINCT (run, attempt, rank)) AS ranks,
       max(failed_at) AS last_failed_at
FROM failures
WHERE died AND follows IS NOT TRUE AND failed_at >= TIMESTAMP '{month}'
GROUP BY ALL
ORDER BY jobs DESC, ranks DESC, cause
"""
_WORST_LINES = """
SELECT file, line, function, category,
       count(DISTINCT (run, attempt)) AS jobs,
       count(DISTINCT (run, attempt, rank)) AS ranks,
       max(bytes) AS most_bytes_at_peak,
       CAST(avg(bytes) AS BIGINT) AS mean_bytes_at_peak
FROM (SELECT run, attempt, rank, file, line, function, category, sum(at_peak_bytes) AS bytes
      FROM lines WHERE file IS NOT NULL GROUP BY ALL)
GROUP BY ALL
HAVING most_bytes_at_peak > 0
ORDER BY most_bytes_at_peak DESC, file, line
LIMIT 20
"""
_LEAKS = """
SELECT file, line, function, count(DISTINCT (run, attempt)) AS jobs, max(bytes) AS most_bytes
FROM findings WHERE cause = 'leak'
GROUP BY ALL ORDER BY jobs DESC, most_bytes DESC, file, line LIMIT 20
"""
_FIRST_FAILURES = """
SELECT run, attempt, rank, kind, cause, failed_at, requested_bytes, file, line, message
FROM failures WHERE died AND follows IS NOT TRUE
QUALIFY row_number() OVER (PARTITION BY run, attempt ORDER BY failed_at NULLS LAST, rank) = 1
ORDER BY failed_at DESC NULLS LAST, run LIMIT 100
"""
_UNEVEN_JOBS = """
SELECT run, attempt, count(*) AS ranks,
       median(peak_reserved_bytes)::BIGINT AS median_peak_bytes,
       max(peak_reserved_bytes) AS highest_peak_bytes,
       arg_max(rank, peak_reserved_bytes) AS highest_rank
FROM ranks GROUP BY ALL
ORDER BY highest_peak_bytes - median_peak_bytes DESC, run LIMIT 20
"""
_SLOW_RANKS = """
SELECT run, attempt, rank, host, device_name, step_time_us,
       round(step_time_us / usual_us, 2) AS times_the_median
FROM (SELECT *, median(step_time_us) OVER (PARTITION BY run, attempt) AS usual_us FROM ranks)
WHERE step_time_us > 1.1 * usual_us
ORDER BY times_the_median DESC, run, rank LIMIT 20
"""

QUESTIONS: Mapping[str, ReadyQuestion] = {
    question.name: question
    for question in (
        ReadyQuestion(
            "failing-causes-this-month",
            "why jobs failed since the first of this month (UTC), and how many",
            _FAILING_CAUSES,
        ),
        ReadyQuestion(
            "worst-lines", "the lines that hold most at the peak, over all jobs", _WORST_LINES
        ),
        ReadyQuestion(
            "leaking-lines", "the lines that leak, by how many jobs they leak in", _LEAKS
        ),
        ReadyQuestion(
            "first-failures", "of each job that failed, who failed first", _FIRST_FAILURES
        ),
        ReadyQuestion("uneven-jobs", "the jobs whose ranks are furthest apart", _UNEVEN_JOBS),
        ReadyQuestion(
            "slow-ranks", "ranks whose steps take a tenth longer than the usual", _SLOW_RANKS
        ),
    )
}


def sql_of(name: str, now: datetime | None = None) -> str:
    """The SQL of a question that is ready.

    Args:
        name: one of QUESTIONS.
        now: the present moment.
    """
    moment = now or datetime.now(timezone.utc)
    month = f"{moment:%Y-%m}-01 00:00:00"
    return QUESTIONS[name].sql.format(month=month).strip()
