"""Processes of the driver and programs under vramlens, matched by number and start, else by
elimination.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from vramlens.capture.memory.driver import GpuProcess
from vramlens.monitor.machine.host_processes import HostProcess
from vramlens.monitor.machine.inside import Inside


def match(
    listed: Sequence[GpuProcess],
    host_processes: Mapping[int, HostProcess],
    insides: Sequence[Inside],
    uuid: str | None,
) -> tuple[dict[int, tuple[Inside, bool]], list[Inside]]:
    """The program of each of the driver's processes, and the programs that the driver does not
    list.

    A number alone is not enough: the start must fit too, and the user, for root sees what every
    user tells. In a container the driver may count as the host does; where exactly one program and
    one process are left over on a GPU, and the process is large enough, they are taken for each
    other, and the answer says so.

    Args:
        listed: the driver's processes on one GPU.
        host_processes: what the host knows of them, by the driver's number.
        insides: what programs tell.
        uuid: the GPU.
    """
    on_gpu = [program for program in insides if _uses(program, uuid)]
    matched = _matched_by_start(listed, host_processes, on_gpu)
    taken = {id(program) for program, _ in matched.values()}
    unlisted = [program for program in on_gpu if id(program) not in taken and program.is_here]
    unmatched = [
        process
        for process in listed
        if process.pid not in matched and host_processes[process.pid].started is None
    ]
    if len(unlisted) == len(unmatched) == 1 and _fits(unmatched[0], unlisted[0], uuid):
        return {**matched, unmatched[0].pid: (unlisted[0], True)}, []
    return matched, unlisted


def _uses(program: Inside, uuid: str | None) -> bool:
    return uuid is not None and any(device.uuid == uuid for device in program.devices)


def _matched_by_start(
    listed: Sequence[GpuProcess],
    host_processes: Mapping[int, HostProcess],
    programs: Sequence[Inside],
) -> dict[int, tuple[Inside, bool]]:
    """The program of each process that has its number, start and user."""
    programs_by_start: dict[int | None, list[Inside]] = defaultdict(list)
    for program in programs:
        programs_by_start[program.started].append(program)
    matched: dict[int, tuple[Inside, bool]] = {}
    for process in listed:
        host_process = host_processes[process.pid]
        for program in programs_by_start[host_process.started]:
            if _is_of(program, process, host_process):
                matched[process.pid] = program, False
    return matched


def _is_of(program: Inside, process: GpuProcess, host_process: HostProcess) -> bool:
    is_user = program.owner is None or program.owner == host_process.uid
    return is_user and program.pid in (process.pid, *host_process.pids)


def _fits(process: GpuProcess, program: Inside, uuid: str | None) -> bool:
    reserved = sum(device.reserved_bytes or 0 for device in program.devices if device.uuid == uuid)
    return process.used_bytes is None or process.used_bytes >= reserved
