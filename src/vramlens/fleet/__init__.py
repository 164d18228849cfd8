"""Fleet: the recordings of many ranks, found, read and summarised, here or on other machines.

files: which file belongs to which rank.
rank_files: one file of them.
process: what wrote it.
attempts: the starts of a job told apart.
summary_file: the summary beside a recording.
job: a job read and compared.
lake_export: written into a lake.
job_budget: held against a budget.
job_diff: compared with an earlier run of it.
workers: a function run for each rank.
lake: Parquet of many ranks and jobs.
summary_json: a rank's summary as JSON.
typed_json: dataclasses back from JSON.
trace_notes: what the profiler traces of some ranks say beside their memory.
"""

from vramlens.fleet.files import JobFiles, RankFile, find_ranks
from vramlens.fleet.job import Job, compare_files, read_job, read_lake
from vramlens.fleet.lake import Lake, is_lake
from vramlens.fleet.lake_export import Exported, export_lake

__all__ = [
    "Exported",
    "Job",
    "JobFiles",
    "Lake",
    "RankFile",
    "compare_files",
    "export_lake",
    "find_ranks",
    "is_lake",
    "read_job",
    "read_lake",
]
