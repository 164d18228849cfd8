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
class Column:
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
class Table:
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
    columns: tuple[Column, ...]
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


_ATTEMPT = Column("attempt", "INTEGER", "which start of the job by its launcher, from 0")
_RANK = Column("rank", "INTEGER", "the rank's number in the job")
_PLACE = (
    Column("file", "VARCHAR", "the user's file"),
    Column("line", "INTEGER", "the line in it, from 1"),
    Column("function", "VARCHAR", "the function around it"),
)

_RUNS = Table(
    "runs",
    "one attempt of a job",
    (
        _ATTEMPT,
        Column("schema_version", "INTEGER", "of these tables"),
        Column("vramlens", "VARCHAR", "the version that exported it"),
        Column(
            "job", "VARCHAR", "the launcher's name for the job (torchrun's run id, Slurm's job)"
        ),
        Column("command", "VARCHAR", "the program and its arguments"),
        Column("host", "VARCHAR", "the machine of the lowest rank"),
        Column("hosts", "INTEGER", "how many machines"),
        Column("world_size", "INTEGER", "how many ranks the job had"),
        Column("ranks", "INTEGER", "how many ranks are in the lake"),
        Column("missing_ranks", NUMBERS, "the ranks of which there is nothing"),
        Column("started_at", "TIMESTAMP", "when the first rank began to record"),
        Column("ended_at", "TIMESTAMP", "when the last recording was written"),
        Column("exported_at", "TIMESTAMP", "when it was written into the lake"),
        Column("source", "VARCHAR", "the folder that it was exported from"),
        Column("notes", TEXTS, "what was odd, a sentence each"),
    ),
)
_RANKS = Table(
    "ranks",
    "one rank of an attempt",
    (
        _ATTEMPT,
        _RANK,
        Column("host", "VARCHAR", "its machine"),
        Column("pid", "BIGINT", "its process there"),
        Column("device", "INTEGER", "the index of its GPU"),
        Column("device_name", "VARCHAR", "the model of its GPU"),
        Column("total_bytes", "BIGINT", "the memory of its GPU"),
        Column("peak_requested_bytes", "BIGINT", "highest requested bytes of the run"),
        Column("peak_allocated_bytes", "BIGINT", "highest allocated bytes of the run"),
        Column("peak_reserved_bytes", "BIGINT", "highest reserved bytes of the run"),
        Column("nccl_bytes", "BIGINT", "of NCCL's communicators at the end"),
        Column("other_processes_bytes", "BIGINT", "of other processes on its GPU at the end"),
        Column("steps", "INTEGER", "steps that were recorded"),
        Column("step_time_us", "BIGINT", "the median time of a step, in microseconds"),
        Column("started_at", "TIMESTAMP", "when recording began"),
        Column("ended_at", "TIMESTAMP", "when its recording was written"),
        Column("ended_by", "VARCHAR", "why: oom, error, sigterm, exit, ..."),
        Column("died", "BOOLEAN", "whether a request for memory that failed ended it"),
        Column("source", "VARCHAR", "its recording"),
        Column("source_us", "BIGINT", "when its newest file was last changed, epoch microseconds"),
    ),
    ranks_a_file=1024,
    key=("rank",),
)
_FINDINGS = Table(
    "findings",
    "one difference of ranks, or one leak that ranks share",
    (
        _ATTEMPT,
        Column("finding", "INTEGER", "its place in the answer, from 0: the most useful first"),
        Column("cause", "VARCHAR", "its slug, as in docs/ranks.md"),
        Column("verdict", "VARCHAR", "proven, likely or possible"),
        Column("bytes", "BIGINT", "what it costs a rank; of a leak, all that it kept so far"),
        *_PLACE,
        Column("title", "VARCHAR", "the answer in words"),
        Column("fix", "VARCHAR", "what to do"),
        Column("is_shared", "BOOLEAN", "whether most ranks have it alike"),
        Column("rank_count", "INTEGER", "how many ranks it is about"),
        Column("first_rank", "INTEGER", "the lowest of them"),
    ),
    key=("finding",),
)
_FAILURES = Table(
    "failures",
    "one rank that failed, and of what",
    (
        _ATTEMPT,
        _RANK,
        Column("kind", "VARCHAR", "out_of_memory, error, or error_file (torchrun's)"),
        Column("cause", "VARCHAR", "of out of memory: leak, fragmentation, spike or capacity"),
        Column("failed_at", "TIMESTAMP", "when, by its machine's clock"),
        Column("step", "INTEGER", "in which step, from 0"),
        Column("requested_bytes", "BIGINT", "what the request that failed asked for"),
        Column("message", "VARCHAR", "the error's text"),
        *_PLACE,
        Column("follows", "BOOLEAN", "whether it only says that another rank is gone"),
        Column("died", "BOOLEAN", "whether it ended the program"),
        Column("source", "VARCHAR", "the file that says so"),
    ),
    key=("rank", "kind"),
)
_LINES = Table(
    "lines",
    "what one line of the program held on one rank",
    (
        _ATTEMPT,
        _RANK,
        *_PLACE,
        Column("category", "VARCHAR", "what most of its bytes are for"),
        Column("phase", "VARCHAR", "when most of them were asked for"),
        Column("peak_bytes", "BIGINT", "the most that was alive at once, whenever that was"),
        Column("at_peak_bytes", "BIGINT", "alive at the rank's own peak; they sum to the peak"),
        Column("allocations", "BIGINT", "how many in all"),
        Column("total_bytes", "BIGINT", "requested by all of them"),
    ),
    ranks_a_file=64,
)
_STEPS = Table(
    "steps",
    "one step of one rank",
    (
        _ATTEMPT,
        _RANK,
        Column("step", "INTEGER", "from 0"),
        Column("peak_bytes", "BIGINT", "highest requested bytes in it"),
    ),
    ranks_a_file=1024,
    key=("rank", "step"),
)
_EVENTS = Table(
    "events",
    "one event of the allocator on one rank",
    (
        _ATTEMPT,
        _RANK,
        Column("seq", "INTEGER", "its place in the recording, from 0"),
        Column("happened_at", "TIMESTAMP", "when"),
        Column("action", "VARCHAR", "alloc, free_requested, free_completed, segment_alloc, ..."),
        Column("address", "BIGINT", "of the block or segment"),
        Column("size_bytes", "BIGINT", "of it"),
        Column("stream", "BIGINT", "the CUDA stream"),
        Column("stack", "BIGINT", "its row in stacks of the same run and attempt"),
    ),
    ranks_a_file=64,
    key=("rank", "seq"),
)
_STACKS = Table(
    "stacks",
    "one call stack; once in an attempt, whatever ranks have it",
    (
        _ATTEMPT,
        Column("stack", "BIGINT", "the hash of its text: alike on every rank and in every run"),
        *_PLACE,
        Column("frames", "VARCHAR", "all its frames, innermost first, one a line of text"),
    ),
    key=("stack",),
)
_COLLECTIVES = Table(
    "collectives",
    "one call of a collective in a rank's flight record",
    (
        _ATTEMPT,
        _RANK,
        Column("group_name", "VARCHAR", "the process group"),
        Column("seq", "BIGINT", "the collective's number in its group: alike on every rank"),
        Column("name", "VARCHAR", "what was called, such as all_reduce"),
        Column("is_p2p", "BOOLEAN", "whether it is a send or a receive"),
        Column("state", "VARCHAR", "scheduled, started or completed"),
        Column("elements", "BIGINT", "of its first input"),
        Column("created_at", "TIMESTAMP", "when it was called"),
        Column("duration_us", "BIGINT", "from start to end, where both were recorded"),
        *_PLACE,
    ),
    ranks_a_file=64,
)
_SUMMARIES = Table(
    "summaries",
    "one rank's whole summary, which 'vramlens ranks' reads back",
    (_ATTEMPT, _RANK, Column("summary", "VARCHAR", "JSON")),
    ranks_a_file=1024,
    key=("rank",),
)
_FLIGHTS = Table(
    "flights",
    "one rank's whole flight record, which 'vramlens ranks' reads back",
    (_ATTEMPT, _RANK, Column("record", "VARCHAR", "JSON")),
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
