"""Answers of the tools: the text of the command line, then the code that it speaks of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vramlens import api, questions
from vramlens.agents.code_excerpts import Spot, code_of
from vramlens.analyses.compare.diff_findings import signed_size
from vramlens.errors import UsageError
from vramlens.foreign_text import visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.finding import Finding, Place
    from vramlens.analyses.memory.heap import Heap, LineBytes
    from vramlens.trace.storage_facts import KeptBy

_MOST_OWNERS = 5
_MOST_LINES = 8
_LONGEST_CLAIM = 160


def explain(
    path: str,
    at: str | None = None,
    log: str | None = None,
    total: str | None = None,
    device: int | None = None,
    sources: str | None = None,
) -> str:
    """Where GPU memory is, why it ran out, and what to change, from one file.

    Args:
        path: a recording (.vram), a PyTorch memory snapshot, a log with an out-of-memory error, or
            a torch.profiler trace.
        at: the moment: peak, oom, end or an event's number.
        log: a file with the error's text, to complete a bare snapshot.
        total: the GPU's memory, such as 80GiB.
        device: the GPU's number.
        sources: the program's folder, whose code is quoted; by default the server's.
    """
    _refuse_standard_input(path, log or "")
    explanation = api.explain(path, at=at, log=log, total_bytes=total, device=device)
    spots = _spots(explanation.findings)
    failure = getattr(explanation, "oom", None)
    if failure is not None and failure.place is not None:
        spots.insert(0, Spot(failure.place, "the request that failed"))
    return _with_code(explanation, spots, sources)


def leaks(
    path: str,
    total: str | None = None,
    device: int | None = None,
    sources: str | None = None,
) -> str:
    """What grows with every step of a recording, which line allocates it, what keeps it, and
    when memory runs out.

    Args:
        path: a recording, a snapshot, or a torch.profiler trace.
        total: the GPU's memory, such as 80GiB.
        device: the GPU's number.
        sources: the program's folder, whose code is quoted; by default the server's.
    """
    _refuse_standard_input(path)
    report = api.load(path).leaks(device=device, total_bytes=total)
    spots: list[Spot] = []
    for leak in report.leaks:
        if leak.place is not None and leak.sure:
            claim = f"leaves {leak.rate_text}"
            spots.append(Spot(leak.place, claim, leak.advice))
        if leak.owner is not None and leak.owner.file and leak.owner.line:
            spots.append(Spot(_place(leak.owner), f"{leak.owner.name} keeps it"))
    return _with_code(report, spots, sources)


def tune(
    path: str,
    cap: str | None = None,
    cards: list[str] | None = None,
    device: int | None = None,
) -> str:
    """The best allocator settings for a recorded run, each simulated on its requests.

    Args:
        path: a recording or a snapshot.
        cap: what the process may reserve, such as 24GiB.
        cards: card sizes: on which of them the run fits.
        device: the GPU's number.
    """
    _refuse_standard_input(path)
    return str(api.load(path).tune(cap, cards=cards or [], device=device))


def diff(before: str, after: str, device: int | None = None, sources: str | None = None) -> str:
    """What a change did to memory: failure, growth, peak and lines, before and after.

    Args:
        before: the recording (or trace) before the change.
        after: the recording after it.
        device: the GPU's number.
        sources: the program's folder, whose code is quoted; by default the server's.
    """
    _refuse_standard_input(before, after)
    difference = questions.diff(before, after, device=device)
    lines = [
        Spot(change.place, f"{signed_size(change.change_bytes)} at the peak")
        for change in difference.by_line[:_MOST_LINES]
    ]
    return _with_code(difference, [*_spots(difference.findings), *lines], sources)


def ranks(paths: list[str], sources: str | None = None) -> str:
    """Which rank of a distributed job differs from its peers in memory, why, and who failed first.

    Args:
        paths: a folder of the ranks' recordings and NCCL flight records, or the files.
        sources: the program's folder, whose code is quoted; by default the server's.
    """
    _refuse_standard_input(*paths)
    comparison = questions.ranks(paths)
    return _with_code(comparison, _spots(comparison.findings), sources)


def who_holds(
    path: str,
    name: str = "",
    at: str | None = None,
    device: int | None = None,
    sources: str | None = None,
) -> str:
    """What uses the recorded memory: objects that were seen to keep it (run --leaks), and lines.

    Args:
        path: a recording or a snapshot.
        name: only what has this in its name or in its file:line.
        at: the moment: peak, oom, end or an event's number.
        device: the GPU's number.
        sources: the program's folder, whose code is quoted; by default the server's.
    """
    _refuse_standard_input(path)
    recording = api.load(path)
    explanation = recording.explain(at=at, device=device)
    owners = recording.owners
    owned = [] if owners is None else _kept(owners.owners, owners.owner, owners.size_bytes, name)
    lines = _lines_about(explanation.heap, name)
    if not owned and not lines:
        raise UsageError(f"{path}: nothing in it is called {name!r}")
    words = []
    if owners is None:
        words.append("The recording holds no owners (vramlens run --leaks records them): by line.")
    shown = owned[:_MOST_OWNERS]
    for size_bytes, owner in shown:
        words += _owner_lines(size_bytes, owner)
    spots = _owner_spots([owner for _, owner in shown])
    for row in lines[:_MOST_LINES]:
        words.append(_line_words(row))
        spots.append(Spot(row.place, f"requested {format_size(row.bytes)}"))
    return _with_code("\n".join(words), spots, sources)


ANSWERS: dict[str, Callable[..., str]] = {
    "explain": explain,
    "leaks": leaks,
    "tune": tune,
    "diff": diff,
    "ranks": ranks,
    "who_holds": who_holds,
}
"""The tools by name, in the order in which agents see them; their signatures and docstrings are
what agents read.
"""


def _with_code(answer: object, spots: Sequence[Spot], sources: str | None) -> str:
    text = str(answer).rstrip("\n")
    code = code_of(spots, sources or ".")
    return f"{text}\n\nCode:\n{code}\n" if code else f"{text}\n"


def _owner_lines(size_bytes: int, owner: KeptBy) -> Iterator[str]:
    yield f"{format_size(size_bytes)} is kept by {visible(owner.name)} ({owner.kind})"
    if owner.chain:
        yield f"    {visible(' -> '.join(owner.chain))}"
    if owner.fix:
        yield f"    Do: {visible(owner.fix)}"


def _lines_about(heap: Heap | None, name: str) -> list[LineBytes]:
    return [] if heap is None else [row for row in heap.by_line if _is_about(row, name)]


def _owner_spots(owners: Iterable[KeptBy]) -> list[Spot]:
    placed = [owner for owner in owners if owner.file and owner.line]
    return [Spot(_place(owner), f"{owner.name} keeps it") for owner in placed]


def _line_words(row: LineBytes) -> str:
    names = f": {', '.join(row.names)}" if row.names else ""
    return (
        f"{format_size(row.bytes)} in {counted(row.allocations, 'allocation')} requested at"
        f" {visible(str(row.place))} [{row.category}]{visible(names)}"
    )


def _spots(findings: Iterable[Finding]) -> list[Spot]:
    """Where findings are, with claim and fix."""
    return [
        Spot(finding.place, finding.title[:_LONGEST_CLAIM], finding.fix)
        for finding in findings
        if finding.place is not None
    ]


def _kept(
    owners: Sequence[KeptBy], owner_of_row: Any, size_of_row: Any, name: str
) -> list[tuple[int, KeptBy]]:
    """Owners with the bytes that they keep, the most first."""
    sums = [0] * len(owners)
    for owner, size_bytes in zip(owner_of_row.tolist(), size_of_row.tolist(), strict=True):
        if owner >= 0:
            sums[owner] += size_bytes
    named = [
        (size_bytes, owner)
        for size_bytes, owner in zip(sums, owners, strict=True)
        if name in owner.name or name in f"{owner.file}:{owner.line}"
    ]
    return sorted(named, key=lambda row: -row[0])


def _is_about(row: Any, name: str) -> bool:
    return name in f"{row.place.file}:{row.place.line}" or any(
        name in tensor_name for tensor_name in row.names
    )


def _place(owner: Any) -> Place:
    from vramlens.analyses.finding import Place

    return Place(owner.file, owner.line, getattr(owner, "function", ""))


def _refuse_standard_input(*paths: str) -> None:
    """Standard input is the protocol's."""
    if "-" in paths:
        raise UsageError("name a file: standard input belongs to the protocol")
