"""The doctor's check of NCCL: all-reduce and friends on this node's GPUs: values, bandwidth and
memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import IO, Any

from vramlens.capture.doctor.torch_checks import PATHS_OF_PARENT, paths_for_child

_CODE = (
    f"{PATHS_OF_PARENT}; from vramlens.capture.doctor.nccl_worker import print_answer;"
    " print_answer()"
)
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a collective at a size: bytes of the buffer, seconds a call, bytes a second
    as nccl-tests counts.
    """

    bytes: int
    seconds: float
    bus_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective: its name, whether every rank got the right values, and its speeds."""

    name: str
    right: bool
    speeds: tuple[Speed, ...]


@dataclass(frozen=True, slots=True)
class CollectivesCheck:
    """The outcome of the check of collectives.

    Attributes:
        backend: nccl or gloo.
        library: NCCL's version; None for gloo.
        world: ranks, one a GPU.
        operations: one a collective.
        held_bytes: what the slowest rank's GPU lost to NCCL, measured by the driver's free memory;
            None without GPUs.
        counted_bytes: what NCCL itself says; None where it cannot.
        environment: NCCL's environment variables that are set.
        error: why there is no answer; empty if there is one.
    """

    backend: str
    library: str | None
    world: int
    operations: tuple[Operation, ...]
    held_bytes: int | None
    counted_bytes: int | None
    environment: dict[str, str]
    error: str = ""

    @property
    def right(self) -> bool:
        """True where there is an answer, and all values were right."""
        return not self.error and all(operation.right for operation in self.operations)

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return {**asdict(self), "right": self.right}


def check_collectives(
    world: int, backend: str = "nccl", patience_s: float = _PATIENCE_S
) -> CollectivesCheck:
    """Runs the collectives on ``world`` processes of this machine. Never raises, and ends within
    ``patience_s``.

    Args:
        world: ranks; with NCCL one a GPU.
        backend: "nccl", or "gloo" to try it without GPUs.
    """
    environment = {
        name: text
        for name, text in sorted(os.environ.items())
        if name.startswith(("NCCL_", "TORCH_NCCL"))
    }

    def failed(reason: str) -> CollectivesCheck:
        return CollectivesCheck(
            backend=backend,
            library=None,
            world=world,
            operations=(),
            held_bytes=None,
            counted_bytes=None,
            environment=environment,
            error=reason,
        )

    if world < 2:
        return failed(
            "collectives need two GPUs or more, and this process sees "
            + ("one" if world else "none")
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-c", _CODE, paths_for_child(), address]
    commands = [
        [*command, str(rank), str(world), backend, str(patience_s / 2)] for rank in range(world)
    ]
    try:
        answers = _answers_of(commands, time.monotonic() + patience_s)
    except _RankFailed as error:
        return failed(str(error))
    except subprocess.TimeoutExpired:
        return failed(f"the collectives did not end within {patience_s:.0f} s: a rank hangs")
    except (OSError, ValueError, IndexError) as error:
        return failed(f"the check could not be run: {error}")
    return _joined(answers, backend, world, environment)


class _RankFailed(Exception):
    """A rank ended with an error; the text says which and why."""


def _answers_of(commands: list[list[str]], deadline: float) -> list[dict[str, Any]]:
    """The answers that the ranks print at their end, in order.

    Raises:
        _RankFailed: one ended with an error.
        subprocess.TimeoutExpired: one did not end in time.
        Exception: one could not be started or printed something else.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    children: list[subprocess.Popen[bytes]] = []
    answers: list[dict[str, Any]] = []
    # Files, not pipes: with NCCL_DEBUG=INFO a rank says more than a pipe holds, and all would wait
    # for it.
    with contextlib.ExitStack() as files:
        outputs = [
            [files.enter_context(tempfile.TemporaryFile()) for _ in ("out", "err")]
            for _ in commands
        ]
        try:
            for command, (out, errors) in zip(commands, outputs, strict=True):
                children.append(
                    subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
                )
            for rank, (child, (out, errors)) in enumerate(zip(children, outputs, strict=True)):
                code = child.wait(timeout=max(0.1, deadline - time.monotonic()))
                if code:
                    last = (_lines(errors) or [f"exit code {code}"])[-1]
                    raise _RankFailed(f"rank {rank} failed: {last[:300]}")
                answers.append(json.loads(_lines(out)[-1]))
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                # One that hangs in the driver cannot be killed.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(2.0)
    return answers


def _lines(output: IO[bytes]) -> list[str]:
    output.seek(0)
    return output.read().decode("utf-8", "replace").strip().splitlines()


def _joined(
    answers: list[dict[str, Any]], backend: str, world: int, environment: dict[str, str]
) -> CollectivesCheck:
    first = answers[0]
    operations = tuple(
        Operation(
            row["name"],
            all(answer["operations"][place]["right"] for answer in answers),
            tuple(Speed(**speed) for speed in row["speeds"]),
        )
        for place, row in enumerate(first["operations"])
    )

    def most(key: str) -> int | None:
        return max((answer[key] for answer in answers if answer[key] is not None), default=None)

    return CollectivesCheck(
        backend=backend,
        library=first["library"],
        world=world,
        operations=operations,
        held_bytes=most("held_bytes"),
        counted_bytes=most("counted"),
        environment=environment,
    )
