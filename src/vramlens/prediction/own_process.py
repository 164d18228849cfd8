"""A prediction in a process of its own: PyTorch is changed for good in it, and nowhere else.

A forked process has the caller's functions as they are, closures and notebooks included. Where
this process has run a backward pass or used the GPU, a fork of it cannot predict (autograd's
threads and the driver's context do not survive): then the functions are sent to a fresh
interpreter, as cloudpickle or pickle writes them.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.prediction.refusals import failure_words

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_PATIENCE_S = 3600
_ENGINE_HAS_BEGUN = "device_ready_queues_"
"""In autograd's own words: its threads for devices are made once, with the first backward pass."""


def in_a_process(run: Callable[[], Any]) -> Any:
    """What a function returns that changes PyTorch for good: it runs in a process of its own.

    Raises:
        UsageError: it failed there, or cannot be sent there; the text says why.
    """
    is_forkable = "fork" in multiprocessing.get_all_start_methods()
    if not is_forkable or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return _value(*_in_a_fresh_interpreter(run))
    kind, value_or_text = _in_a_fork(run)
    if kind == "error" and _ENGINE_HAS_BEGUN in str(value_or_text):
        return _value(*_in_a_fresh_interpreter(run))
    return _value(kind, value_or_text)


def _value(kind: str, value_or_text: Any) -> Any:
    if kind == "error":
        raise UsageError(f"predict: {value_or_text}")
    return value_or_text


class EndedEarly(Exception):
    """A process ended without an answer; the text is its exit code."""


def answer_of_process(
    context: Any, work: Callable[..., None], arguments: tuple[Any, ...], patience_s: int
) -> Any:
    """What a function sends from a daemon process of its own.

    Args:
        context: of ``multiprocessing``: how the process is started.
        work: called there with the connection to send by, and the arguments.

    Raises:
        TimeoutError: it sent nothing in time.
        EndedEarly: it ended without sending anything.
    """
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(send, *arguments), daemon=True)
    process.start()
    send.close()
    try:
        if receive.poll(patience_s):
            return receive.recv()
        raise TimeoutError(f"no answer within {patience_s} s")
    except EOFError:
        process.join(10)
        raise EndedEarly(process.exitcode) from None
    finally:
        process.join(10)
        if process.is_alive():
            process.kill()


def _in_a_fork(run: Callable[[], Any]) -> tuple[str, Any]:
    try:
        kind, value_or_text = answer_of_process(
            multiprocessing.get_context("fork"), _forked, (run,), _PATIENCE_S
        )
    except TimeoutError as error:
        return "error", str(error)
    except EndedEarly as exit_code:
        return "error", f"the process ended with code {exit_code}"
    return kind, value_or_text


def _forked(send: Any, run: Callable[[], Any]) -> None:
    torch.set_num_threads(1)  # threads do not survive the fork
    send.send(_outcome(run))
    send.close()


def _outcome(run: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "done", run()
    except Exception as error:
        return "error", failure_words(error)


def _in_a_fresh_interpreter(run: Callable[[], Any]) -> tuple[str, Any]:
    """The outcome in an interpreter that has done nothing yet.

    Raises:
        UsageError: the functions cannot be sent there.
    """
    payload = _written(run)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "outcome.pickle")
        command = [sys.executable, "-m", "vramlens.prediction.own_process", path]
        done = subprocess.run(
            command, input=payload, timeout=_PATIENCE_S, check=False, stdout=subprocess.DEVNULL
        )
        try:
            with open(path, "rb") as file:
                kind, value_or_text = pickle.load(file)  # written by our own process
        except (OSError, EOFError):
            return "error", f"the process ended with code {done.returncode}"
    return kind, value_or_text


def _written(run: Callable[[], Any]) -> bytes:
    """A function and where its modules are found, as bytes."""
    pickler: Any = pickle
    with contextlib.suppress(ImportError):
        pickler = importlib.import_module("cloudpickle")
    try:
        return pickle.dumps((sys.path, pickler.dumps(run)))
    except Exception as error:
        raise UsageError(
            "predict: this process has run a backward pass or used the GPU, and its functions"
            f" cannot be sent to another ({error}): install cloudpickle, or call predict first"
        ) from None


def _sent(path: str) -> None:
    sys.path[:], written = pickle.load(sys.stdin.buffer)

    def run() -> Any:
        return pickle.loads(written)()

    with open(path, "wb") as file:
        pickle.dump(_outcome(run), file)


if __name__ == "__main__":
    _sent(sys.argv[1])
