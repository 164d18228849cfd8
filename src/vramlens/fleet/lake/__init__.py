"""Lake: the recordings of many ranks and jobs as Parquet, and questions to all of them in SQL.

lake_tables: which there are.
lake_rows: what is in them.
store: the folder or bucket.
lake_layout: which file is where.
parquet_files: how one is written.
staging: a rank as its worker leaves it.
commit: 64 ranks a file.
runs: which job is which run.
views: the tables of files that anybody wrote.
lake: reading and asking.
one_select: what a question may be.
ready_questions: those that are ready.
"""

from vramlens.fleet.lake.lake import Lake, is_lake
from vramlens.fleet.lake.parquet_files import connect

__all__ = ["Lake", "connect", "is_lake"]
