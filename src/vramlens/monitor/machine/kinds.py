"""A GPU's memory by kind, over all its processes, in the ledger's words; the kinds sum to the
total.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.monitor.machine.inside import InsideDevice

KINDS = {
    "pytorch_allocated": "live in PyTorch, in programs under vramlens",
    "pytorch_cached": "cached by PyTorch, in programs under vramlens",
    "nccl": "NCCL, in programs under vramlens",
    "outside_pytorch": "programs under vramlens outside PyTorch: CUDA contexts, kernels, libraries",
    "other_processes": "all other processes",
    "driver_reserved": "driver and firmware",
    "unknown": "used by nobody whom the driver names",
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
    # The driver's part may be of an earlier moment than the rest.
    sizes["free"], sizes["driver_reserved"] = (
        free_bytes,
        min(driver_bytes or 0, total_bytes - free_bytes),
    )
    in_use = total_bytes - free_bytes - sizes["driver_reserved"]
    for used, held in processes:
        if held is None:
            sizes["other_processes"] += used or 0
            continue
        live, reserved = held.allocated_bytes or 0, held.reserved_bytes or 0
        nccl = held.nccl_bytes or 0
        sizes["pytorch_allocated"] += min(live, reserved)
        sizes["pytorch_cached"] += max(0, reserved - live)
        sizes["nccl"] += nccl
        sizes["outside_pytorch"] += max(0, (used or 0) - reserved - nccl)
    named = sum(sizes[kind] for kind in _GIVES_WAY)
    rest = in_use - named
    if rest >= 0:
        unsized = [held for used, held in processes if used is None]
        # One process without a size has what is left; of several nobody knows who has it.
        if is_listed and len(unsized) == len(processes) == 1:
            sizes["outside_pytorch" if unsized[0] is not None else "other_processes"] += rest
        else:
            sizes["unknown"] += rest
        return sizes
    for kind in _GIVES_WAY:
        cut = min(sizes[kind], -rest)
        sizes[kind] -= cut
        rest += cut
    return sizes
