"""One measurement in a process of its own, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any


def answer_of_fork(measure: Callable[[], dict[str, Any]], patience_s: int) -> dict[str, Any]:
    """What a measurement gives; ``error`` where it fails, ends, or is not done in time."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(send, measure))
    process.start()
    send.close()
    try:
        answer: dict[str, Any] = {"error": f"{patience_s} s"}
        if receive.poll(patience_s):
            answer = receive.recv()
    except EOFError:
        answer = {"error": "ended"}
    process.kill()
    process.join()
    return answer


def _work(send: Any, measure: Callable[[], dict[str, Any]]) -> None:
    import torch

    torch.set_num_threads(1)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        send.send(measure())
    except BaseException as error:
        first_line = str(error).partition("\n")[0][:120]
        send.send({"error": f"{type(error).__name__}: {first_line}"})
