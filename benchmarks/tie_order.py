"""Asks the installed PyTorch which rules its allocator follows, and prints them as a line of
replay/versions.py.

    python benchmarks/tie_order.py        # on any CUDA GPU with 2 GiB free; a few seconds; needs PyTorch alone

What differs between versions cannot be read off a recording that has no ties. Each question is a
handful of requests whose answer is an address; where the driver's own placement hides the answer,
the question is asked again, and if it stays hidden that is said, never guessed.
"""

from __future__ import annotations

import re
from typing import Any

MIB = 2**20
WHOLE, HALF = 64 * MIB, 32 * MIB
TRIES = 8


def fresh(torch: Any) -> None:
    """Gives back everything that is cached."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def by_address(torch: Any) -> bool | None:
    """Whether the lower of two equal free segments is taken, and not the one that was made
    first.
    """
    allocate, delete = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
    for _ in range(TRIES):
        fresh(torch)
        first, second = allocate(WHOLE), allocate(WHOLE)
        delete(first)
        torch.cuda.empty_cache()
        third = allocate(WHOLE)  # made later than the second
        delete(second)
        delete(third)
        taken = allocate(WHOLE)
        delete(taken)
        if third < second:
            return bool(taken == third)
    return None


def by_segment(torch: Any) -> bool | None:
    """Given that a number decides: whether it counts segments, and not each piece that is split
    off.
    """
    allocate, delete = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
    fresh(torch)
    earlier, later = allocate(WHOLE), allocate(WHOLE)
    delete(later)
    piece_of_later, rest_of_later = allocate(HALF), allocate(HALF)
    delete(earlier)
    piece_of_earlier, rest_of_earlier = (
        allocate(HALF),
        allocate(HALF),
    )  # split after the piece of the later segment
    split_as_meant = piece_of_later == later and piece_of_earlier == earlier
    delete(piece_of_later)
    delete(piece_of_earlier)
    taken = allocate(HALF)
    for address in (taken, rest_of_later, rest_of_earlier):
        delete(address)
    return bool(taken == piece_of_earlier) if split_as_meant else None


def scope_suppresses_release(torch: Any) -> bool | None:
    """Whether an open pool scope keeps a failing request from giving back what is cached outside
    of the pool.
    """
    if not hasattr(torch.cuda, "MemPool"):
        return None
    fresh(torch)
    reserved = torch.cuda.memory_reserved()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((reserved + 5 * WHOLE + MIB) / total)
    cached = torch.empty(4 * WHOLE, dtype=torch.uint8, device="cuda")
    del cached
    pool = torch.cuda.MemPool()
    try:
        with torch.cuda.use_mem_pool(pool):
            torch.empty(4 * WHOLE, dtype=torch.uint8, device="cuda")
        suppressed = False
    except torch.OutOfMemoryError:
        suppressed = True
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return suppressed


def settle(torch: Any, text: str) -> dict[str, Any] | None:
    """The allocator's settings after a text was given to it; None where it refuses the text."""
    give = (
        getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        or torch.cuda.memory._set_allocator_settings
    )
    try:
        give(text)
    except (RuntimeError, ValueError):
        return None
    found: dict[str, Any] = torch.cuda.memory._snapshot().get("allocator_settings", {})
    return found


def main() -> None:
    import torch

    torch.cuda.init()
    address = by_address(torch)
    segment = by_segment(torch) if address is False else None
    order = {True: "ADDRESS", None: "UNKNOWN"}.get(address) or {
        True: "SEGMENT_COUNTER", False: "OBJECT_COUNTER", None: "UNKNOWN"
    }[segment]  # fmt: skip
    suppresses = scope_suppresses_release(torch)
    large_option = settle(torch, "large_segment_size_mb:40") is not None
    settle(torch, "large_segment_size_mb:20")
    listed = settle(torch, "roundup_power2_divisions:[256:1,512:2,>:8]") or {}
    table = listed.get("roundup_power2_divisions")
    overwrites = table.get("512") == 8 if isinstance(table, dict) else None
    settle(torch, "roundup_power2_divisions:1")
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert version is not None
    rounds = (int(version[1]), int(version[2])) >= (
        2,
        10,
    )  # read from the source: no request shows it
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}")
    print(f"equal free blocks: {order}")
    print(f"an open pool scope keeps a failing request from releasing: {suppresses}")
    print(f"large_segment_size_mb exists: {large_option}")
    print(f"'>' in roundup_power2_divisions overwrites the last interval named: {overwrites}")
    print(
        "as a line of src/vramlens/replay/versions.py (rounds_fraction is read from the source, not asked):"
    )
    print(
        f'    Version("{version[0]}", ({version[1]}, {version[2]}), {order}, {suppresses}, {rounds}, {overwrites},'
        f" {large_option}),"
    )


if __name__ == "__main__":
    main()
