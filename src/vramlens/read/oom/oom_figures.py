"""The figures of an out-of-memory message: sizes, devices and processes, by the clauses that hold
them.

A message may be broken over lines anywhere, also inside words and numbers, as a terminal does: it
is read once with line breaks as spaces and once without any space, and the reading that yields more
figures is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from vramlens.read.broken_lines import plain_lines, squash, unbroken

_GAP = 160  # characters that may stand between two clauses of one message, as in new wordings
_LINE = 600  # characters kept of a message that is one line
NOT_AVAILABLE = 1 << 62  # 2**64 - 1 stands for "not known" and is printed as 17179869184.00 GiB

_SIZE = r"(\d{1,20})(?:\.(\d{1,6}))? ?(bytes?|[KMGT]i?B)\b"
# What may follow a start, by the message's style: a figure's name and its words; "" only lengthens
# the text.
_CLAUSES = {
    "alloc": (
        ("tried_bytes", rf"Tried to allocate {_SIZE}"),
        # 2.1 to 2.3 print the device's number as a raw byte: GPU 0 is "GPU \0", which terminals
        # swallow.
        ("device", r"\bGPU ([\x00-\x08]|\d{1,4})? ?(?=has a total capac)"),
        ("device", r"\([A-Z]{3,4} (\d{1,4}); "),
        ("total_bytes", rf"has a total capaci?ty of {_SIZE}"),
        ("total_bytes", rf"{_SIZE} total capacity"),
        ("free_bytes", rf"of which {_SIZE} is free"),
        ("free_bytes", rf"{_SIZE} free[;)]"),
        ("other_processes", rf"Process (\d{{1,10}}) has {_SIZE} memory in use"),
        ("process_bytes", rf"this process has {_SIZE} memory in use"),
        ("allowed_bytes", rf"{_SIZE} allowed;"),
        ("allocated_bytes", rf"Of the allocated memory {_SIZE} is allocated by PyTorch"),
        ("allocated_bytes", rf"{_SIZE} already allocated"),
        ("private_pool_bytes", rf"with {_SIZE} allocated in private pools"),
        ("unallocated_bytes", rf"and {_SIZE} is reserved by PyTorch but unallocated"),
        ("unallocated_bytes", rf"{_SIZE} cached\)"),
        ("reserved_bytes", rf"{_SIZE} reserved in total by PyTorch"),
        (
            "",
            r"expandable_segments:True to avoid fragmentation|max_split_size_mb to avoid fragmentation",
        ),
        (
            "",
            r"See documentation for Memory Management(?: and [A-Z_]{1,40}| \(https?://[^ )]{1,200}\))?",
        ),
        ("", r"more than 1EB memory|release all unoccupied cached memory"),
    ),
    "async": (
        ("allocated_bytes", rf"Currently allocated\s{{0,8}}: {_SIZE}"),
        ("tried_bytes", rf"Requested\s{{0,20}}: {_SIZE}"),
        ("total_bytes", rf"Device limit\s{{0,20}}: {_SIZE}"),
        ("free_bytes", rf"Free \(according to CUDA\): {_SIZE}"),
        (
            "allowed_bytes",
            rf"PyTorch limit \(set by user-supplied memory fraction\)\s{{0,40}}: {_SIZE}",
        ),
    ),
    "mps": (
        ("allocated_bytes", rf"MPS allocated: {_SIZE}"),
        ("other_allocations", rf"other allocations: {_SIZE}"),
        ("allowed_bytes", rf"max allowed: {_SIZE}"),
        ("tried_bytes", rf"Tried to allocate {_SIZE}"),
        (
            "",
            r"PYTORCH_MPS_HIGH_WATERMARK_RATIO=0\.0 to disable upper limit for memory allocations",
        ),
    ),
    "line": (
        (
            "tried_bytes",
            rf"(?:tr(?:ied|ying) to allocate|calloc|malloc|host alloc|async|mmap) {_SIZE}",
        ),
        ("tried_bytes", rf"(?:Unable to allocate|^allocating) {_SIZE}"),
        (
            "tried_bytes",
            r"(?:requested buffer of size|memory allocating|memory to allocate) ([\d,]{1,26})()()\b",
        ),
        ("tried_bytes", r"^failed to allocate [\d.]{1,12}[KMGT]?i?B? \((\d{1,20})()()"),
    ),
}
_PATTERNS = {
    style: re.compile("|".join(f"(?P<c{i}>{pattern})" for i, (_, pattern) in enumerate(clauses)))
    for style, clauses in _CLAUSES.items()
}
# The same without any space, for messages that are broken inside words.
_SQUASHED = {
    style: re.compile(
        pattern.pattern.replace(r"\b", "")
        .replace(" ?", "")
        .replace("[^ )]", "[^)]")
        .replace(" ", "")
    )
    for style, pattern in _PATTERNS.items()
    if style != "line"
}
# A sentence of PyTorch's message that has begun and gives a figure, without spaces; and what it may
# be cut to.
_SENTENCE = re.compile(
    r"Triedtoalloc(?!atemorethan1EB)|GPU.{0,4}(?:hasatotal|h?a?s?$)|Process\d{1,10}h?a?s?(?:\d|$)|Includingnon"
    r"|Oftheallocated|\d{1,20}(?:\.\d{0,6})?[KMGT]?i?B?(?:al{0,2}o?w?e?d?)?;?$"
)
_SENTENCES = (
    "Triedtoallocate",
    "GPU0hasatotal",
    "Includingnon-PyTorchmemory",
    "Oftheallocatedmemory",
    "Process",
)


@dataclass(slots=True)
class OomFigures:
    """What the clauses of one message said, the first of each name."""

    text: str = ""
    device: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    rounded: dict[str, int] = field(default_factory=dict)
    other_processes: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0  # of clauses
    last: int = 0  # where the last figure ends, its name, and whether a bracket closed there
    last_name: str = ""
    closed: bool = False
    cut: bool = False

    def add(self, name: str, groups: tuple[str, ...], binary_units: bool) -> None:
        """Keep one clause's groups under its name."""
        if name == "device":
            self.device = device_number(groups[0]) if self.device is None else self.device
            return
        pid = int(groups[0]) if name == "other_processes" else None
        digits, fraction, unit = groups[-3:]
        size, slack = _size(digits, fraction, unit, binary_units)
        if pid is not None:
            self.other_processes.append((pid, size))
            self.rounded[name] = self.rounded.get(name, 0) + (slack if size < NOT_AVAILABLE else 0)
        elif name not in self.sizes:
            self.sizes[name], self.rounded[name] = size, slack

    def available_sizes(self) -> dict[str, int]:
        """The sizes that were known where the message was written."""
        return {name: size for name, size in self.sizes.items() if size < NOT_AVAILABLE}

    def available_processes(self) -> tuple[tuple[int, int], ...]:
        """The other processes whose size was known there, each with it."""
        return tuple(process for process in self.other_processes if process[1] < NOT_AVAILABLE)

    def sum_up(self, name: str, first: str, second: str) -> None:
        """Fill a figure that was not printed with the sum of two that were."""
        if name not in self.sizes and {first, second} <= self.sizes.keys():
            self.sizes[name] = self.sizes[first] + self.sizes[second]
            self.rounded[name] = self.rounded[first] + self.rounded[second]


@lru_cache(maxsize=64)  # a loop that retries prints the same text again and again
def parse(style: str, window: bytes, binary_units: bool) -> OomFigures:
    """The figures in a window of the log that begins with a message, and the message's own text."""
    lines = plain_lines(window)
    if style == "line":
        text = " ".join(lines[0][:_LINE].split())
        figures, _ = _read(style, text, _PATTERNS[style], binary_units)
        figures.text = text
    else:
        figures = _parse_sentences(style, lines, binary_units)
    figures.sum_up("reserved_bytes", "allocated_bytes", "unallocated_bytes")
    # MPS prints the two apart.
    figures.sum_up("process_bytes", "allocated_bytes", "other_allocations")
    figures.sizes.pop("other_allocations", None)
    figures.rounded.pop("other_allocations", None)
    return figures


def _parse_sentences(style: str, lines: list[str], binary_units: bool) -> OomFigures:
    """The figures of a message over many lines: read with line breaks as spaces, and without any
    space where that yields more.
    """
    text = " ".join(" ".join(lines).split())
    figures, end = _read(style, text, _PATTERNS[style], binary_units)
    following = squash(text[figures.last : figures.last + _GAP])
    squashed = squash("".join(line.strip() for line in lines))
    from_squashed, squashed_end = _read(style, squashed, _SQUASHED[style], binary_units)
    has_more = from_squashed.count > figures.count
    has_others = from_squashed.count == figures.count and from_squashed.sizes != figures.sizes
    if has_more or has_others:
        text, end = unbroken(lines, squashed_end)
        figures, following = from_squashed, squashed[from_squashed.last :]
    first_sentence_end = text.find(".") + 1 or len(text[:_GAP])
    figures.text = text[: max(end, first_sentence_end)].strip()
    figures.cut = _is_cut(style, figures, following)
    return figures


def _read(
    style: str, text: str, pattern: re.Pattern[str], binary_units: bool
) -> tuple[OomFigures, int]:
    """The figures that a text begins with, and where the last clause ends."""
    figures, position, clauses = OomFigures(), 0, _CLAUSES[style]
    # The start's own words are not a clause, so the first clause may stand as far away as they are
    # long.
    while match := pattern.search(text, position, position + 2 * _GAP):
        if match.start() > position + _GAP:
            break
        position = match.end()
        index = int((match.lastgroup or "c0")[1:])
        name, first = clauses[index][0], pattern.groupindex[f"c{index}"]
        figures.count += 1
        if name:
            ends = pattern.groupindex.get(f"c{index + 1}", pattern.groups + 1)
            figures.add(
                name, tuple(match[group] or "" for group in range(first + 1, ends)), binary_units
            )
            figures.last, figures.last_name = position, name
            figures.closed = match[0].endswith(")")
    return figures, position


_LAST_FIGURE = {"mps": "tried_bytes", "async": "allowed_bytes"}
"""The figure that a whole message of a style ends with."""
_NEVER_LAST = ("allowed_bytes", "private_pool_bytes")
"""Figures in mid-sentence: PyTorch goes on after them."""


def _is_cut(style: str, figures: OomFigures, following: str) -> bool:
    """True where a message stops and PyTorch goes on; ``following`` is what stands behind its last
    figure, without spaces.
    """
    if style in _LAST_FIGURE:
        return _LAST_FIGURE[style] not in figures.sizes
    if figures.last_name == "unallocated_bytes" or figures.closed:
        return False
    if not figures.last_name:
        return _has_begun_sentence(following[following.find(".") + 1 :])
    if following[:1] not in (".", ")") or figures.last_name in _NEVER_LAST:
        return True
    return _has_begun_sentence(following[1:])


def _has_begun_sentence(text: str) -> bool:
    """True for the beginning of a sentence that gives a figure, even where it is cut."""
    is_prefix = text != "" and any(sentence.startswith(text) for sentence in _SENTENCES)
    return is_prefix or _SENTENCE.match(text) is not None


def device_number(text: str) -> int | None:
    """The device that a message names with digits, or with a raw byte."""
    if text.isdecimal():
        return int(text)
    return ord(text) if len(text) == 1 and ord(text) < 9 else None


def _size(whole: str, fraction: str, unit: str, binary_units: bool) -> tuple[int, int]:
    """A printed size in bytes, and the most by which rounding may have moved it."""
    if unit[:1] in ("", "b", "B"):
        return int(whole.replace(",", "") or 0), 0
    base = 1024 if "i" in unit or binary_units else 1000
    factor, scale = base ** ("KMGT".index(unit[0]) + 1), 10 ** len(fraction)
    return round(int(whole + fraction) * factor / scale), -(-factor // (2 * scale))
