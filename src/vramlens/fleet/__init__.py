"""Fleet: the recordings of many ranks, found, read and summarised, here or on other machines."""

from vramlens.fleet.files import JobFiles, RankFile, find_ranks
from vramlens.fleet.job import Exported, Job, compare_files, export_lake, read_job, read_lake
from vramlens.fleet.lake import Lake, is_lake

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
