"""Runs of a lake: which job is which, so that two jobs whose folders have one name stay two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vramlens.errors import UsageError
from vramlens.fleet.lake.lake import Lake
from vramlens.fleet.lake.lake_layout import files_of
from vramlens.fleet.lake.store import Store
from vramlens.fleet.process import JobIdentity

_SAME_START_US = 600_000_000
"""Ranks of one job begin to record within ten minutes of each other."""
_RESTARTED_WITHIN_US = 3_600_000_000
_UNIQUE_NAMES = ("slurm:", "pbs:", "lsf:")
_MOST_OF_A_NAME = 1000


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a job goes in a lake: its run's name, the attempt, and a note where that surprises."""

    run: str
    attempt: int
    note: str = ""


def destination_of(
    store: Store, name: str, identity: JobIdentity, attempt: int, *, is_given: bool
) -> Destination:
    """Where an attempt of a job goes.

    Args:
        store: of the lake.
        name: what the run is to be called.
        identity: of the job.
        attempt: which start of it, as its files say.
        is_given: whether somebody asked for that name; else another job's run of this name has
            this one called ``NAME-2``.

    Raises:
        UsageError: the name was asked for, and is another job's.
    """
    attempts = files_of(store).attempts
    for number in range(1, _MOST_OF_A_NAME):
        run = name if number == 1 else f"{name}-{number}"
        if run not in attempts:
            note = f"run {name} is another job's: this one is {run}" if number > 1 else ""
            return Destination(run, attempt, note)
        own_attempt = _own_attempt(store, run, attempts[run], identity, attempt)
        if own_attempt is not None:
            return Destination(run, own_attempt)
        if is_given:
            raise UsageError(
                f"--run {name}: is another job's in {store.root} ({_words_of(store, run)}): take"
                " another name"
            )
    raise UsageError(f"--run: {store.root} holds {_MOST_OF_A_NAME} jobs called {name}")


def _own_attempt(
    store: Store, run: str, attempts: list[int], identity: JobIdentity, attempt: int
) -> int | None:
    """The attempt that the job's ranks are of in a run; None where the run is another job's."""
    newest_first = sorted(attempts, reverse=True)
    lakes = {number: Lake(store.root, run, number) for number in newest_first}
    for number, lake in lakes.items():
        processes = _processes(lake)
        common = processes.keys() & identity.processes.keys()
        if any(processes[rank] == identity.processes[rank] for rank in common):
            return number
        if not common and _looks_alike(lake.facts(), identity):
            return number
    if _is_restarted(lakes[newest_first[0]].facts(), identity, attempt > newest_first[0]):
        return attempt if attempt not in attempts else newest_first[0] + 1
    return None


def _is_restarted(facts: dict[str, Any], identity: JobIdentity, is_later: bool) -> bool:
    """True where a launcher started the job of a run again.

    Schedulers never give a name twice. Others do (torchrun's run id is anybody's choice, and in
    containers the launcher always has one number): there the launcher must have counted on, or the
    start must follow the earlier end.
    """
    if identity.job is None or facts.get("job") != identity.job:
        return False
    if is_later or identity.job.startswith(_UNIQUE_NAMES):
        return True
    ended_at, started_us = facts.get("ended_at"), identity.started_us
    if ended_at is None or started_us is None:
        return False
    return 0 <= started_us - _epoch_us(ended_at) <= _RESTARTED_WITHIN_US


def _processes(lake: Lake) -> dict[int, tuple[str | None, int | None, int | None]]:
    """The processes of an attempt by rank, as ``JobIdentity`` has them."""
    _, rows = lake.sql(
        "SELECT rank, host, pid, epoch_us(started_at) FROM ranks WHERE started_at IS NOT NULL"
    )
    return {rank: (host, pid, started_us) for rank, host, pid, started_us in rows}


def _looks_alike(facts: dict[str, Any], identity: JobIdentity) -> bool:
    """True where nothing but the job as a whole can tell, and it does: the command, the number of
    ranks and the start; without any of these, the folder.
    """
    if identity.started_us is None or facts.get("started_at") is None:
        return facts.get("source") in (identity.source, None)
    alike = (facts.get("command") or "", facts.get("world_size")) == (
        identity.command,
        identity.world_size,
    )
    start = facts["started_at"]
    apart_us = abs(_epoch_us(start) - identity.started_us)
    return alike and apart_us <= _SAME_START_US


def _epoch_us(moment: Any) -> int:
    """Microseconds since the epoch of a TIMESTAMP, which is in UTC without saying so."""
    from datetime import datetime, timezone

    since = moment.replace(tzinfo=timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return int(since.total_seconds() * 1_000_000)


def _words_of(store: Store, run: str) -> str:
    facts = Lake(store.root, run).facts()
    start, host = facts.get("started_at"), facts.get("host")
    words = [f"started {start:%Y-%m-%d %H:%M:%S}" if start else "", f"on {host}" if host else ""]
    return " ".join(filter(None, words)) or f"exported from {facts.get('source')}"
