"""Restarting a program that ran out of memory, with the split that its guard has learned."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from vramlens.capture.warn import say
from vramlens.recovery.splitting.learned_splits import (
    MICRO_BATCH,
    SPLIT_FILE,
    read_split,
    write_split,
)


def note_ending(error: BaseException) -> None:
    """Leaves word for whoever restarts this program that out of memory ended it; does nothing
    where nobody asked.
    """
    from vramlens.recovery.memory_errors import OUT_OF_MEMORY, kind_of

    if os.environ.get(SPLIT_FILE) and kind_of(error) == OUT_OF_MEMORY:
        write_split(out_of_memory=True)


def run_with_restarts(command: Sequence[str], times: int) -> int:
    """The exit code of a command that is restarted, at most so many times, after it ran out of
    memory.

    The program's guard leaves the size of its parts in the file that VRAMLENS_SPLIT_FILE names; the
    next run has it in VRAMLENS_MICRO_BATCH. A run in which no guard has learned anything new is not
    restarted: it would fail again.
    """
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="vramlens-") as folder:
        path = os.path.join(folder, "split.json")
        environment[SPLIT_FILE] = path
        for attempt in range(times + 1):
            code = subprocess.call(list(command), env=environment)
            facts = read_split(path)
            if code == 0 or not facts.get("out_of_memory"):
                return code
            size = facts.get("micro_batch")
            last_size = environment.get(MICRO_BATCH)
            if not isinstance(size, int) or size < 1 or str(size) == last_size:
                say(
                    "not restarted: no guard has learned a smaller split (loss = guard.step(batch,"
                    " loss_fn))"
                )
                return code
            if attempt == times:
                say(f"out of memory again after {times} restarts")
                return code
            environment[MICRO_BATCH] = str(size)
            os.unlink(path)
            say(f"out of memory: restart {attempt + 1} of {times} with {MICRO_BATCH}={size}")
    return code


def without_option(arguments: Sequence[str], option: str) -> list[str]:
    """Arguments of ``vramlens run`` without an option and its value, up to where the program's
    own begin.
    """
    before_option: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if word == option:
            return [*before_option, *waiting[1:]]
        if word.startswith(f"{option}="):
            return [*before_option, *waiting]
        before_option.append(word)
    return before_option


def supervised(arguments: Sequence[str], times: int) -> int:
    """``vramlens run --restart-on-oom N ...`` as a parent: runs the same without the option, and
    restarts it.
    """
    own_arguments = without_option(arguments, "--restart-on-oom")
    return run_with_restarts([sys.executable, "-m", "vramlens", *own_arguments], times)
