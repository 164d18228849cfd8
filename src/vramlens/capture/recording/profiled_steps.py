"""A PyTorch profiler trace of some steps, with the options that make it useful, and marks for
Nsight Systems.

PyTorch's profiler belongs to the thread that started it: its end on another one crashes the process,
and so does the thread's end before the profiler's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from threading import local
from typing import Any

from vramlens.capture.names.module_hooks import after_each_module, before_each_module
from vramlens.capture.process.own_thread import get_ident
from vramlens.capture.recording.output_path import RecordingPaths, rank_of_process
from vramlens.capture.torch_api import loaded_torch
from vramlens.capture.warn import harmless, say
from vramlens.units import format_size
from vramlens.whole_file import whole_file


class ProfiledSteps:
    """The profiler, from one step to another; its file lies in a folder a rank, where
    TensorBoard finds it.
    """

    def __init__(self, paths: RecordingPaths, first_step: int) -> None:
        self._paths, self._first_step = paths, first_step
        self._profiler: Any = None
        self._thread = 0
        self._of_thread = local()

    @property
    def is_tracing(self) -> bool:
        """Whether a trace has begun and not ended."""
        return self._profiler is not None

    @harmless("starting the profiler")
    def start(self) -> None:
        """Begins to trace."""
        torch = loaded_torch()
        profiler = torch.profiler.profile(
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
            schedule=lambda _: (
                torch.profiler.ProfilerAction.RECORD
            ),  # with a schedule it marks the steps
        )
        profiler.step_num = self._first_step  # its ranges are named as the program's steps
        profiler.start()
        self._profiler, self._thread = profiler, get_ident()
        self._of_thread.end = _ThreadsEnd(self.stop)

    @harmless("starting the profiler")
    def start_with_the_first_module(self) -> None:
        """Begins to trace when the first module is called: by then the program has chosen its
        device.
        """

        def begin(_module: Any, _args: Any) -> None:
            handle.remove()
            self.start()

        handle = before_each_module(begin)

    @harmless("marking a step")
    def step(self) -> None:
        """Marks the end of a step in the trace."""
        if self._profiler is not None and self._thread == get_ident():
            self._profiler.step()

    @harmless("writing the profiler trace")
    def stop(self) -> None:
        """Ends the trace and writes it; on another thread than it began on, nothing."""
        profiler = self._profiler
        if profiler is None or self._thread != get_ident():
            return
        self._profiler = None
        profiler.stop()
        path = self._path()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        written = f"{path}.writing.json"  # PyTorch writes it piece by piece
        try:
            profiler.export_chrome_trace(written)
            with open(written, "rb") as source, whole_file(path, is_private=True) as file:
                while block := source.read(1 << 20):
                    file.write(block)
        finally:
            if os.path.exists(written):
                os.unlink(written)
        say(f"wrote {path} ({format_size(os.path.getsize(path))}); vramlens explain reads it")

    def _path(self) -> str:
        folder = os.path.join(self._paths.folder, f"rank{rank_of_process() or 0:05d}")
        # The name that TensorBoard's plugin looks for: worker, then its suffix.
        return os.path.join(folder, f"{socket.gethostname()}_{os.getpid()}.pt.trace.json")


class _ThreadsEnd:
    """What a thread does at its end, where it is kept among the thread's own variables."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def __del__(self) -> None:
        self._action()


class NvtxMarks:
    """Ranges for Nsight Systems: one a module, named by its class, and one an operator."""

    @harmless("marking ranges for Nsight Systems")
    def start(self) -> None:
        """Begins to mark, for as long as the program runs."""
        torch = loaded_torch()
        torch.autograd.profiler.emit_nvtx(record_shapes=True).__enter__()
        nvtx = torch.cuda.nvtx
        is_compiling = torch.compiler.is_compiling

        @harmless("marking ranges for Nsight Systems")
        def entering(module: Any, _args: Any) -> None:
            if not is_compiling():
                nvtx.range_push(type(module).__name__)

        @harmless("marking ranges for Nsight Systems")
        def leaving(_module: Any, _args: Any, _output: Any) -> None:
            if not is_compiling():
                nvtx.range_pop()

        before_each_module(entering)
        after_each_module(leaving)
