"""A GPU's memory by kind, over all its processes, in the ledger's words; the kinds sum to the
total.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.monitor.machine.inside import InsideDevice

KINDS = {
    "pytorch_allocated": "in use by PyTorch, in programs under vramlens",
    "pytorch_cached": "cached by PyTorch, in programs under vramlens",
    "nccl": "NCCL, in programs under vramlens",
    "outside_pytorch": "programs under vramlens outside PyTorch: CUDA contexts, kernels, libraries",
    "other_processes": "all other processes",
    "driver_reserved": "driver and firmware",
    "unknown": "used, but by no process that the driver lists",
    "free": "free",
}
_GIVES_WAY = (
    "unknown",
    "outside_pytorch",
    "other_processes",
    "nccl",
    "pytorch_cached",
    "pytorch_allocated",
)
"""What is cut first where figures of different moments add up to more than is in use."""


def kinds_of(
    total_bytes: int,
    free_bytes: int,
    driver_bytes: int | None,
    processes: Sequence[tuple[int | None, InsideDevice | None]],
    is_listed: bool,
) -> dict[str, int]:
    """The size of each kind, in bytes.

    Args:
        driver_bytes: what driver and firmware keep; None where it is not told: then it is in
            ``unknown``.
        processes: what the driver says that each has, and what its allocator says.
        is_listed: whether the driver lists the processes at all; where it does not, whoever is not
            under vramlens is in ``unknown``.
    """
    sizes = dict.fromkeys(KINDS, 0)
    sizes["free"] = free_bytes
    # The driver's part may be of an earlier moment than the others.
    sizes["driver_reserved"] = min(driver_bytes or 0, total_bytes - free_bytes)
    for used_bytes, inside in processes:
        _add_process(sizes, used_bytes, inside)
    unnamed = total_bytes - sum(sizes.values())
    if unnamed < 0:
        _cut(sizes, -unnamed)
        return sizes
    unsized = [inside for used_bytes, inside in processes if used_bytes is None]
    # One process without a size has what is left; of several nobody knows who has it.
    is_of_one = is_listed and len(unsized) == len(processes) == 1
    kind_of_one = "outside_pytorch" if any(unsized) else "other_processes"
    sizes[kind_of_one if is_of_one else "unknown"] += unnamed
    return sizes


def _add_process(
    sizes: dict[str, int], used_bytes: int | None, inside: InsideDevice | None
) -> None:
    used = used_bytes or 0
    if inside is None:
        sizes["other_processes"] += used
        return
    live, reserved = inside.allocated_bytes or 0, inside.reserved_bytes or 0
    nccl = inside.nccl_bytes or 0
    sizes["pytorch_allocated"] += min(live, reserved)
    sizes["pytorch_cached"] += max(0, reserved - live)
    sizes["nccl"] += nccl
    sizes["outside_pytorch"] += max(0, used - reserved - nccl)


def _cut(sizes: dict[str, int], excess: int) -> None:
    """Takes that many bytes off the kinds, the least certain first."""
    for kind in _GIVES_WAY:
        less = min(sizes[kind], excess)
        sizes[kind] -= less
        excess -= less
