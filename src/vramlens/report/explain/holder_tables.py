"""Tables: who holds the bytes of a heap, grouped as asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vramlens.report.explain.module_tree import branches_of, main_parts
from vramlens.report.holders import HeldMemory, HolderRow
from vramlens.report.wording import place_name, plain, short_place_name, visible

if TYPE_CHECKING:
    from vramlens.analyses.memory.heap import Heap

DEFAULT_TOP = 10


def table_of(heap: Heap, by: str) -> HeldMemory:
    """The holders of a heap's requested bytes by one of GROUPINGS, all of them."""
    return _TABLES[by](heap)


def _by_line(heap: Heap) -> HeldMemory:
    return HeldMemory(
        "line",
        heap.requested_bytes,
        _lines(heap),
        rest=_rest("(no line known)", heap.unattributed_bytes),
        note_header="mostly",
    )


def _by_code(heap: Heap) -> HeldMemory:
    rows = tuple(
        HolderRow(place_name(row.place), row.place, row.bytes, row.allocations)
        for row in heap.by_code
    )
    return HeldMemory(
        "code",
        heap.requested_bytes,
        rows,
        rest=_rest("(no line known)", heap.unattributed_bytes),
    )


def _by_category(heap: Heap) -> HeldMemory:
    rows = tuple(
        HolderRow(plain(name), None, category_bytes.bytes, note=category_bytes.verdict)
        for name, category_bytes in heap.by_category.items()
    )
    return HeldMemory("category", heap.requested_bytes, rows, note_header="verdict")


def _by_phase(heap: Heap) -> HeldMemory:
    rows = tuple(HolderRow(plain(name), None, size) for name, size in heap.by_phase.items())
    return HeldMemory("phase", heap.requested_bytes, rows)


def _by_region(heap: Heap) -> HeldMemory:
    total, regions = heap.requested_bytes, heap.by_region
    if not regions:
        return HeldMemory("region", total, (), empty=_NO_REGIONS)
    rows = tuple(HolderRow(visible(name), None, size) for name, size in regions.items())
    return HeldMemory(
        "region",
        total,
        rows,
        rest=_rest("(outside any region)", total - sum(regions.values())),
    )


_NO_REGIONS = (
    "No regions are recorded: wrap code in `with "
    "torch.profiler.record_function('name'):` and record again."
)
_NO_MODULES = (
    "No module names are recorded: none ran, or this is a bare PyTorch snapshot. "
    "A recording that vramlens run makes with PyTorch 2.10 or newer has them."
)


def _rest(name: str, size_bytes: int) -> HolderRow | None:
    return HolderRow(name, None, size_bytes) if size_bytes > 0 else None


def _by_module(heap: Heap) -> HeldMemory:
    total = heap.requested_bytes
    if not heap.by_module:
        return HeldMemory("module", total, (), empty=_NO_MODULES)
    branches = branches_of(heap.by_module)
    return HeldMemory(
        "module",
        total,
        tuple(
            HolderRow(b.path, None, b.bytes, note=b.note, depth=b.depth, label=b.label)
            for b in branches
        ),
        rest=_rest("(outside any module)", total - sum(heap.by_module.values())),
        note_header="alike" if any(branch.note for branch in branches) else "",
        nested=True,
    )


_MOST = 0.6
"""Of all bytes: a line that holds more tells little where it calls a library; what lies below it
is shown, too.
"""
_BELOW = 4


def _below(heap: Heap) -> tuple[HolderRow, ...]:
    """What lies below the largest line, where that holds most: modules where they are known, else
    libraries' lines.
    """
    if not heap.by_line or heap.by_line[0].bytes < _MOST * heap.requested_bytes:
        return ()
    line = heap.by_line[0]
    coded = [row for row in heap.by_code if row.caller == line.place != row.place]
    calls_library = sum(row.bytes for row in coded) >= line.bytes / 2
    if not calls_library:
        return ()
    if sum(heap.modules_below_line.values()) >= line.bytes / 2:
        return _modules_below(heap)
    names = [visible(short_place_name(row.place)) for row in coded[:_BELOW]]
    return tuple(
        HolderRow(name, None, row.bytes, row.allocations, depth=1, label=_part_of_it(name))
        for name, row in zip(names, coded, strict=False)
    )


def _modules_below(heap: Heap) -> tuple[HolderRow, ...]:
    return tuple(
        HolderRow(
            part.path,
            None,
            part.bytes,
            note=part.note,
            depth=1,
            label=_part_of_it(_end_of_path(part.path)),
        )
        for part in main_parts(heap.modules_below_line, _BELOW)
    )


def _part_of_it(name: str) -> str:
    """How a part of the row above is named: its bytes are counted there already."""
    return f"of it: {name}"


_WIDEST_PATH = 20


def _end_of_path(path: str) -> str:
    """The last parts of a module's path: they tell modules apart."""
    parts = path.split(".")
    while len(parts) > 1 and len(".".join(parts)) > _WIDEST_PATH:
        del parts[0]
    end = ".".join(parts)
    return end if end == path else f"…{end}"


def _lines(heap: Heap) -> tuple[HolderRow, ...]:
    rows = _user_lines(heap)
    return (*rows[:1], *_below(heap), *rows[1:])


def _user_lines(heap: Heap) -> tuple[HolderRow, ...]:
    return tuple(
        HolderRow(
            place_name(line.place),
            line.place,
            line.bytes,
            line.allocations,
            inferred_bytes=line.inferred_bytes,
            note=plain(line.category),
            tensors=tuple(visible(name) for name in line.names),
        )
        for line in heap.by_line
    )


def _by_stack(heap: Heap) -> HeldMemory:
    rows, without_stack = [], None
    for stack_bytes in heap.by_stack:
        if stack_bytes.frames:
            rows.append(
                HolderRow(
                    place_name(stack_bytes.frames[0]),
                    stack_bytes.frames[0],
                    stack_bytes.bytes,
                    stack_bytes.allocations,
                    frames=stack_bytes.frames,
                )
            )
        else:
            without_stack = HolderRow(
                "(no Python stack)", None, stack_bytes.bytes, stack_bytes.allocations
            )
    return HeldMemory("stack", heap.requested_bytes, tuple(rows), rest=without_stack)


_TABLES: dict[str, Callable[[Heap], HeldMemory]] = {
    "line": _by_line,
    "code": _by_code,
    "module": _by_module,
    "category": _by_category,
    "phase": _by_phase,
    "region": _by_region,
    "stack": _by_stack,
}
GROUPINGS = tuple(_TABLES)
