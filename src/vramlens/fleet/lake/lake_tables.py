"""Tables of a lake: their columns, the type and the meaning of each, and how many ranks share a
file.

docs/lake.md is written from this, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA_VERSION = 2
"""Of the tables. It grows where a column changes its meaning; new columns do not change it."""
TEXTS, NUMBERS = "VARCHAR[]", "INTEGER[]"
"""Lists, which rows hold as JSON."""
_EVERY_RANK = 1 << 30


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a table.

    Attributes:
        name: with the unit in it where it has one: ``_bytes``, ``_us``; ``_at`` is a moment in UTC.
        sql_type: DuckDB's name of its type.
        meaning: what a cell says; NULL is always "not known" or "there is none".
    """

    name: str
    sql_type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table of a lake.

    Attributes:
        name: what it is called in SQL, and its folder.
        meaning: what one row is.
        columns: beside ``run``, which the folder's name says.
        ranks_a_file: how many ranks one file holds after a commit.
        key: the columns besides run and attempt of which two rows never agree; () where rows are
            as they are.
    """

    name: str
    meaning: str
    columns: tuple[LakeColumn, ...]
    ranks_a_file: int = _EVERY_RANK
    key: tuple[str, ...] = ()

    @property
    def has_ranks(self) -> bool:
        """True where each row belongs to a rank."""
        return any(column.name == "rank" for column in self.columns)

    @property
    def types(self) -> Mapping[str, str]:
        """The type of each column."""
        return {column.name: column.sql_type for column in self.columns}


_ATTEMPT = LakeColumn("attempt", "INTEGER", "which start of the job by its launcher, from 0")
_RANK = LakeColumn("rank", "INTEGER", "the rank's number in the job")
_PLACE = (
    LakeColumn("file", "VARCHAR", "the user's file"),
    LakeColumn("line", "INTEGER", "the line in it, from 1"),
    LakeColumn("function", "VARCHAR", "the function around it"),
)

_RUNS = LakeTable(
    "runs",
    "one attempt of a job",
    (
        _ATTEMPT,
        LakeColumn("schema_version", "INTEGER", "of these tables"),
        LakeColumn("vramlens", "VARCHAR", "the version that exported it"),
        LakeColumn(
            "job", "VARCHAR", "the launcher's name for the job (torchrun's run id, Slurm's job)"
        ),
        LakeColumn("command", "VARCHAR", "the program and its arguments"),
        LakeColumn("host", "VARCHAR", "the machine of the lowest rank"),
        LakeColumn("hosts", "INTEGER", "how many machines"),
        LakeColumn("world_size", "INTEGER", "how many ranks the job had"),
        LakeColumn("ranks", "INTEGER", "how many ranks are in the lake"),
        LakeColumn("missing_ranks", NUMBERS, "the ranks of which there is nothing"),
        LakeColumn("started_at", "TIMESTAMP", "when the first rank began to record"),
        LakeColumn("ended_at", "TIMESTAMP", "when the last recording was written"),
        LakeColumn("exported_at", "TIMESTAMP", "when it was written into the lake"),
        LakeColumn("source", "VARCHAR", "the folder that it was exported from"),
        LakeColumn("notes", TEXTS, "what was odd, a sentence each"),
    ),
)
_RANKS = LakeTable(
    "ranks",
    "one rank of an attempt",
    (
        _ATTEMPT,
        _RANK,
        LakeColumn("host", "VARCHAR", "its machine"),
        LakeColumn("pid", "BIGINT", "its process there"),
        LakeColumn("device", "INTEGER", "the index of its GPU"),
        LakeColumn("device_name", "VARCHAR", "the model of its GPU"),
        LakeColumn("total_bytes", "BIGINT", "the memory of its GPU"),
        LakeColumn("peak_requested_bytes", "BIGINT", "highest requested bytes of the run"),
        LakeColumn("peak_allocated_bytes", "BIGINT", "highest allocated bytes of the run"),
        LakeColumn("peak_reserved_bytes", "BIGINT", "highest reserved bytes of the run"),
        LakeColumn("nccl_bytes", "BIGINT", "of NCCL's communicators at the end"),
        LakeColumn("other_processes_bytes", "BIGINT", "of other processes on its GPU at the end"),
        LakeColumn("steps", "INTEGER", "steps that were recorded"),
        LakeColumn("step_time_us", "BIGINT", "the median time of a step, in microseconds"),
        LakeColumn("started_at", "TIMESTAMP", "when recording began"),
        LakeColumn("ended_at", "TIMESTAMP", "when its recording was written"),
        LakeColumn("ended_by", "VARCHAR", "why: oom, error, sigterm, exit, ..."),
        LakeColumn("died", "BOOLEAN", "whether a request for memory that failed ended it"),
        LakeColumn("source", "VARCHAR", "its recording"),
        LakeColumn(
            "source_us", "BIGINT", "when its newest file was last changed, epoch microseconds"
        ),
    ),
    ranks_a_file=1024,
    key=("rank",),
)
_FINDINGS = LakeTable(
    "findings",
    "one difference of ranks, or one leak that ranks share",
    (
        _ATTEMPT,
        LakeColumn("finding", "INTEGER", "its place in the answer, from 0: the most useful first"),
        LakeColumn("cause", "VARCHAR", "its slug, as in docs/ranks.md"),
        LakeColumn("verdict", "VARCHAR", "proven, likely or possible"),
        LakeColumn("bytes", "BIGINT", "what it costs a rank; of a leak, all that it kept so far"),
        *_PLACE,
        LakeColumn("title", "VARCHAR", "the answer in words"),
        LakeColumn("fix", "VARCHAR", "what to do"),
        LakeColumn("is_shared", "BOOLEAN", "whether most ranks have it alike"),
        LakeColumn("rank_count", "INTEGER", "how many ranks it is about"),
        LakeColumn("first_rank", "INTEGER", "the lowest of them"),
    ),
    key=("finding",),
)
_FAILURES = LakeTable(
    "failures",
    "one rank that failed, and of what",
    (
        _ATTEMPT,
        _RANK,
        LakeColumn("kind", "VARCHAR", "out_of_memory, error, or error_file (torchrun's)"),
        LakeColumn("cause", "VARCHAR", "of out of memory: leak, fragmentation, spike or capacity"),
        LakeColumn("failed_at", "TIMESTAMP", "when, by its machine's clock"),
        LakeColumn("step", "INTEGER", "in which step, from 0"),
        LakeColumn("requested_bytes", "BIGINT", "what the request that failed asked for"),
        LakeColumn("message", "VARCHAR", "the error's text"),
        *_PLACE,
        LakeColumn("follows", "BOOLEAN", "whether it only says that another rank is gone"),
        LakeColumn("died", "BOOLEAN", "whether it ended the program"),
        LakeColumn("source", "VARCHAR", "the file that says so"),
    ),
    key=("rank", "kind"),
)
_LINES = LakeTable(
    "lines",
    "what one line of the program held on one rank",
    (
        _ATTEMPT,
        _RANK,
        *_PLACE,
        LakeColumn("category", "VARCHAR", "what most of its bytes are for"),
        LakeColumn("phase", "VARCHAR", "when most of them were asked for"),
        LakeColumn("peak_bytes", "BIGINT", "the most that was alive at once, whenever that was"),
        LakeColumn("at_peak_bytes", "BIGINT", "alive at the rank's own peak; they sum to the peak"),
        LakeColumn("allocations", "BIGINT", "how many in all"),
        LakeColumn("total_bytes", "BIGINT", "requested by all of them"),
    ),
    ranks_a_file=64,
)
_STEPS = LakeTable(
    "steps",
    "one step of one rank",
    (
        _ATTEMPT,
        _RANK,
        LakeColumn("step", "INTEGER", "from 0"),
        LakeColumn("peak_bytes", "BIGINT", "highest requested bytes in it"),
    ),
    ranks_a_file=1024,
    key=("rank", "step"),
)
_EVENTS = LakeTable(
    "events",
    "one event of the allocator on one rank",
    (
        _ATTEMPT,
        _RANK,
        LakeColumn("seq", "INTEGER", "its place in the recording, from 0"),
        LakeColumn("happened_at", "TIMESTAMP", "when"),
        LakeColumn(
            "action", "VARCHAR", "alloc, free_requested, free_completed, segment_alloc, ..."
        ),
        LakeColumn("address", "BIGINT", "of the block or segment"),
        LakeColumn("size_bytes", "BIGINT", "of it"),
        LakeColumn("stream", "BIGINT", "the CUDA stream"),
        LakeColumn("stack", "BIGINT", "its row in stacks of the same run and attempt"),
    ),
    ranks_a_file=64,
    key=("rank", "seq"),
)
_STACKS = LakeTable(
    "stacks",
    "one call stack; once per attempt, even if several ranks have it",
    (
        _ATTEMPT,
        LakeColumn("stack", "BIGINT", "the hash of its text: alike on every rank and in every run"),
        *_PLACE,
        LakeColumn("frames", "VARCHAR", "all its frames, innermost first, one per line of text"),
    ),
    key=("stack",),
)
_COLLECTIVES = LakeTable(
    "collectives",
    "one call of a collective in a rank's flight record",
    (
        _ATTEMPT,
        _RANK,
        LakeColumn("group_name", "VARCHAR", "the process group"),
        LakeColumn("seq", "BIGINT", "the collective's number in its group: alike on every rank"),
        LakeColumn("name", "VARCHAR", "what was called, such as all_reduce"),
        LakeColumn("is_p2p", "BOOLEAN", "whether it is a send or a receive"),
        LakeColumn("state", "VARCHAR", "scheduled, started or completed"),
        LakeColumn("elements", "BIGINT", "of its first input"),
        LakeColumn("created_at", "TIMESTAMP", "when it was called"),
        LakeColumn("duration_us", "BIGINT", "from start to end, where both were recorded"),
        *_PLACE,
    ),
    ranks_a_file=64,
)
_SUMMARIES = LakeTable(
    "summaries",
    "one rank's whole summary, which 'vramlens ranks' reads back",
    (_ATTEMPT, _RANK, LakeColumn("summary", "VARCHAR", "JSON")),
    ranks_a_file=1024,
    key=("rank",),
)
_FLIGHTS = LakeTable(
    "flights",
    "one rank's whole flight record, which 'vramlens ranks' reads back",
    (_ATTEMPT, _RANK, LakeColumn("record", "VARCHAR", "JSON")),
    ranks_a_file=1024,
    key=("rank",),
)

TABLES = {
    table.name: table
    for table in (
        _RUNS,
        _RANKS,
        _FINDINGS,
        _FAILURES,
        _LINES,
        _STEPS,
        _EVENTS,
        _STACKS,
        _COLLECTIVES,
        _SUMMARIES,
        _FLIGHTS,
    )
}
OF_A_RANK = tuple(name for name in TABLES if name not in ("runs", "findings"))
"""Tables that are written rank by rank; the others rest on all ranks together."""
