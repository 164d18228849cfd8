"""A question to a lake: one SELECT over its tables, which reads their files and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.fleet.lake.lake_tables import TABLES

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Of a plan: DuckDB 2 takes COPY within WITH, and runs SQL from a text, and calls both a SELECT.
_WRITES = re.compile(r"COPY|INSERT|UPDATE|DELETE|MERGE|EXECUTE")
_TABLES = f"tables: {', '.join(TABLES)}"


def check_question(connection: DuckDBPyConnection, question: str) -> None:
    """Refuses what is not one SELECT.

    Raises:
        UsageError: it is empty, no SQL, several statements, or another one.
    """
    import duckdb

    with refused():
        statements = connection.extract_statements(question)
    if not statements:
        raise UsageError(f"--sql: the query is empty ({_TABLES})")
    if len(statements) > 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise refusal_of_writing()


def refusal(error: Exception) -> UsageError:
    """What to say of a question that DuckDB refuses."""
    return UsageError(f"--sql: {str(error).splitlines()[0]} ({_TABLES})")


@contextmanager
def refused() -> Iterator[None]:
    """Makes whatever DuckDB refuses one line.

    Raises:
        UsageError: it refused something.
    """
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise refusal(error) from None


def refusal_of_writing() -> UsageError:
    """What to say of a question that is not one SELECT."""
    return UsageError(f"--sql: takes one SELECT and nothing else ({_TABLES})")


def lock(connection: DuckDBPyConnection, paths: Iterable[str]) -> None:
    """Has a connection read these files only, and change no setting any more.

    Args:
        paths: in every spelling that DuckDB may use of them.
    """
    from vramlens.fleet.lake.parquet_files import literal

    allowed = ", ".join(literal(path) for path in dict.fromkeys(paths))
    connection.execute(f"SET allowed_paths = [{allowed}]")
    # Else a name that is no table is looked for among Python's variables.
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def refuse_writing(connection: DuckDBPyConnection, question: str) -> None:
    """Refuses a SELECT that would write; the views of its tables are there.

    Raises:
        UsageError: a part of its plan writes, or runs what no plan shows.
        duckdb.Error: DuckDB refuses the question.
    """
    plans = connection.execute(f"EXPLAIN (FORMAT json) {question}").fetchall()
    if any(_WRITES.search(name) for _kind, plan in plans for name in _operators(json.loads(plan))):
        raise refusal_of_writing()


def _operators(plan: Any) -> Iterator[str]:
    """The names of a plan's operators."""
    unread = [plan]
    while unread:
        node = unread.pop()
        if isinstance(node, list):
            unread += node
        elif isinstance(node, dict):
            yield str(node.get("name", "")).upper()
            unread += node.get("children", [])
