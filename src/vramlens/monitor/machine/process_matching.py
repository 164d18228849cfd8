"""Which of the driver's processes is which program under vramlens: by number and start, else by
elimination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vramlens.capture.memory.driver import GpuProcess
from vramlens.monitor.machine.inside import Inside
from vramlens.monitor.machine.people import Person


def match(
    listed: Sequence[GpuProcess],
    people: Mapping[int, Person],
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
        people: what the host knows of them, by the driver's number.
        insides: what programs tell.
        uuid: the GPU.
    """
    on_gpu = [
        one
        for one in insides
        if any(held.uuid == uuid and uuid is not None for held in one.devices)
    ]
    by_start: dict[int, list[Inside]] = {}
    for one in on_gpu:
        by_start.setdefault(one.started, []).append(one)
    matched: dict[int, tuple[Inside, bool]] = {}
    for process in listed:
        person = people[process.pid]
        for one in by_start.get(person.started, ()) if person.started is not None else ():
            if one.pid in (process.pid, *person.pids) and one.owner in (None, person.uid):
                matched[process.pid] = (one, False)
    taken = {id(one) for one, _ in matched.values()}
    programs = [one for one in on_gpu if id(one) not in taken and one.is_here]
    rest = [
        process
        for process in listed
        if process.pid not in matched and people[process.pid].started is None
    ]
    if len(programs) == 1 and len(rest) == 1 and _fits(rest[0], programs[0], uuid):
        return {**matched, rest[0].pid: (programs[0], True)}, []
    return matched, programs


def _fits(process: GpuProcess, program: Inside, uuid: str | None) -> bool:
    reserved = sum(held.reserved_bytes or 0 for held in program.devices if held.uuid == uuid)
    return process.used_bytes is None or process.used_bytes >= reserved
