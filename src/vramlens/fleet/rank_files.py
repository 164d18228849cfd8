"""A file of a rank: which kind it is, and which rank its name or its recording says."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vramlens.errors import VramlensError
from vramlens.fleet.process import Process, process_of_meta, process_of_summary
from vramlens.fleet.summary_file import ENDING, UnreadSummary, recording_of, summary_in
from vramlens.ranks import RankSummary
from vramlens.ranks.rank_words import RANK_IN_NAME, names_a_rank
from vramlens.read.error_file import is_error_file
from vramlens.read.flight_record import is_flight_record
from vramlens.read.opened_source import open_source
from vramlens.read.values import MOST_RANKS

RECORDING, FLIGHT_RECORD, ERROR_FILE = "recording", "flight record", "error file"
_ENDINGS = re.compile(r"(?i)\.(?:vram|(?:pickle|pkl|json)(?:\.(?:xz|gz|zst))?)$")
_HEAD_BYTES = 1 << 16
# torchrun's log folder: attempt_0/3/error.json, where 3 is the rank on its machine.
_LOCAL = re.compile(r"attempt_\d+[/\\](\d{1,7})[/\\]error\.json$")
# Kineto's metadata, before the events: "distributedInfo": {"backend": "nccl", "rank": 3, ...}
_TRACE_RANK = re.compile(rb'"distributedInfo":\s*\{[^{}]{0,2000}?"rank":\s*(\d{1,7})\b')
_LETTER_AND_NUMBER = re.compile(r"[rR]\d+")
_FLIGHT_NAME = re.compile(r"(?i)nccl|flight|comm_lib_trace")
# NCCL's own names end in the rank: nccl_trace_rank_3, comm_lib_trace_rank_3, and no ending at all.
_FLIGHT_PLAIN = re.compile(r"(?i)(?:nccl|comm_lib)_trace_rank_?\d+$")


@dataclass(frozen=True, slots=True)
class CandidateFile:
    """A file that may be what there is of a rank.

    Attributes:
        path: where it is.
        kind: ``RECORDING``, ``FLIGHT_RECORD`` or ``ERROR_FILE``.
        rank: its rank; None where neither its content nor its name says one.
        process: of a recording of vramlens: what wrote it.
        summary: of a recording: what lies beside it; None where it is to be read.
        is_profiler_trace: a recording that is a trace of PyTorch's profiler.
        in_run_folder: whether its folder, whose name may be a rank's (``r1``), contains other ranks'
            files as well.
    """

    path: str
    kind: str
    rank: int | None
    process: Process | None = None
    summary: RankSummary | None = None
    is_profiler_trace: bool = False
    in_run_folder: bool = False

    @property
    def job_folder(self) -> str:
        """The folder of its job: its own, or that above where only the folder says the rank."""
        folder, name = os.path.split(self.path)
        is_of_rank = not self.in_run_folder and names_a_rank(os.path.basename(folder))
        if is_of_rank and not names_a_rank(name):
            folder = os.path.dirname(folder)
        return folder or os.curdir

    @property
    def written_us(self) -> int:
        """When it was written, as it says itself or as the file system does; 0 where it has gone
        since.
        """
        if self.process is not None and self.process.written_us is not None:
            return self.process.written_us
        with contextlib.suppress(OSError):
            return int(os.path.getmtime(self.path) * 1e6)
        return 0

    @property
    def worth(self) -> tuple[bool, bool, int, str]:
        """The order of several files of a rank: that of its failure is best, then a recording
        before a profiler's trace, else the latest.
        """
        is_of_failure = self.process is not None and self.process.trigger == "oom"
        return is_of_failure, not self.is_profiler_trace, self.written_us, self.path


def with_run_folders(candidates: Sequence[CandidateFile]) -> list[CandidateFile]:
    """The files, those in folders whose names are a run's rather than a rank's without the rank
    that the folder's name seemed to say: ``r1`` with several recordings of no known rank.
    """
    unnamed = {file.path for file in candidates if _is_numbered_by_letter(file)}
    count = Counter(map(os.path.dirname, unnamed))
    # A rank may have left several, too: then most folders beside its own have one.
    if 2 * sum(files > 1 for files in count.values()) <= len(count):
        return list(candidates)
    return [
        replace(file, rank=None, in_run_folder=True) if file.path in unnamed else file
        for file in candidates
    ]


def _is_numbered_by_letter(file: CandidateFile) -> bool:
    """True if all that says a recording's rank is a letter and a number of its folder."""
    folder, name = os.path.split(file.path)
    says_itself = file.is_profiler_trace or (
        file.process is not None and file.process.rank is not None
    )
    if file.kind != RECORDING or says_itself or names_a_rank(name):
        return False
    return _LETTER_AND_NUMBER.fullmatch(os.path.basename(folder)) is not None


def may_be_of_rank(name: str) -> bool:
    """True if a file in a folder is worth a look, by its name."""
    is_one = name.endswith(ENDING) or _ENDINGS.search(name) or _FLIGHT_PLAIN.search(name)
    return bool(is_one) and not name.startswith(".")


def from_summary(unread: UnreadSummary) -> CandidateFile | None:
    """The recording that a summary lies beside, as the summary tells of it; None where it cannot
    be used: the recording is then read itself.
    """
    try:
        summary_file = summary_in(unread)
    except VramlensError:
        return None
    if not summary_file.is_current:
        return None
    summary = summary_file.summary
    process = process_of_summary(summary)
    path = recording_of(unread.path)
    return CandidateFile(path, RECORDING, summary.rank, process, summary=summary)


def examine(path: str) -> CandidateFile | None:
    """The file, by its first bytes and its name; None if it is not a rank's.

    Raises:
        VramlensError: it cannot be read.
    """
    with open_source(path) as source:
        kind, members = source.kind, source.members
        head = b"" if members is not None else source.stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]
    if members is not None:
        process = None if members.meta.is_empty else process_of_meta(members.meta)
        rank = None if process is None else process.rank
        return CandidateFile(path, RECORDING, _rank_of(path) if rank is None else rank, process)
    if kind not in ("pickle", "json"):
        return None
    if is_flight_record(head):
        return CandidateFile(path, FLIGHT_RECORD, _rank_of(path))
    if kind == "json" and is_error_file(head):
        return CandidateFile(path, ERROR_FILE, _rank_of(path, _LOCAL))
    if _FLIGHT_NAME.search(os.path.basename(path)):
        return CandidateFile(path, FLIGHT_RECORD, _rank_of(path))
    if kind == "json":
        return _profiler_trace(path, head)
    return CandidateFile(path, RECORDING, _rank_of(path))


def _profiler_trace(path: str, head: bytes) -> CandidateFile | None:
    """A trace of PyTorch's profiler, which says its rank where torch.distributed was up; None for
    any other JSON.
    """
    if b'"traceEvents"' not in head:
        return None
    rank_match = _TRACE_RANK.search(head)
    rank = int(rank_match[1]) if rank_match is not None else _rank_of(path)
    return CandidateFile(path, RECORDING, rank, is_profiler_trace=True)


def _rank_of(path: str, of_path: re.Pattern[str] = RANK_IN_NAME) -> int | None:
    """The rank that a file's name says, or its path, or another pattern for the path."""
    patterns = (RANK_IN_NAME, RANK_IN_NAME, of_path)
    for pattern, text in zip(patterns, (os.path.basename(path), path, path), strict=True):
        matches = list(pattern.finditer(text))
        if matches:
            rank = int(next(filter(None, matches[-1].groups())))
            return rank if rank <= MOST_RANKS else None
    return None
