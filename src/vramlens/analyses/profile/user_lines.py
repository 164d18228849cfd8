"""Lines of a profiler trace: the user's innermost Python function at a moment, and at whose behest
a backward ran.

The profiler names a function by the line that it begins at (``PyFrameState``,
torch/csrc/autograd/profiler_python.cpp; those that ran when the trace began by the line they were
at, which says nothing about what came later), and files relative to wherever Python found them, so
that ``torch/nn/modules/linear.py`` and ``train.py`` look alike.
"""

from __future__ import annotations

import re
import sys
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Place
from vramlens.analyses.profile.nesting import Nesting, nest
from vramlens.trace.profile import NONE, Kind, ProfilerTrace
from vramlens.trace.stacks import is_user_file

_FUNCTION = re.compile(r"(.+?)\(([0-9]{1,9})\): (.*)", re.DOTALL)
# Installed packages that training programs call into; a file of one is named from the package on.
_PACKAGES = frozenset(
    {
        *(
            "torch",
            "torchvision",
            "torchaudio",
            "torchtune",
            "torchao",
            "torchrec",
            "functorch",
            "triton",
            "numpy",
        ),
        *(
            "scipy",
            "pandas",
            "sklearn",
            "PIL",
            "cv2",
            "einops",
            "transformers",
            "accelerate",
            "datasets",
            "peft",
        ),
        *(
            "trl",
            "diffusers",
            "timm",
            "tokenizers",
            "safetensors",
            "huggingface_hub",
            "evaluate",
            "bitsandbytes",
        ),
        *(
            "sentence_transformers",
            "lightning",
            "pytorch_lightning",
            "lightning_fabric",
            "torchmetrics",
            "ignite",
        ),
        *(
            "deepspeed",
            "megatron",
            "fairscale",
            "composer",
            "apex",
            "xformers",
            "flash_attn",
            "vllm",
            "ray",
        ),
        *(
            "wandb",
            "tensorboard",
            "mlflow",
            "tqdm",
            "rich",
            "omegaconf",
            "hydra",
            "psutil",
            "threadpoolctl",
        ),
        *("IPython", "ipykernel", "pytest", "_pytest", "pluggy", "vramlens"),
    }
)


def is_user_function(file: str) -> bool:
    """Whether a file, as the profiler names it, is the user's: not Python's, torch's or an
    installed package's.
    """
    if not is_user_file(file):
        return False
    parts = re.split(r"[/\\]", file)
    top = parts[0].removesuffix(".py")
    if top in _PACKAGES:
        return False
    # A module of the standard library lies at the top, or in a package of it; a file of the user's
    # may share its name only in a folder of its own.
    return top not in sys.stdlib_module_names


class Lines:
    """The user's lines of a trace.

    Args:
        trace: the trace.
        cpu: how its operators, regions and calls lie in each other.
    """

    def __init__(self, trace: ProfilerTrace, cpu: Nesting) -> None:
        self._trace, self._cpu = trace, cpu
        self._places: dict[int, Place | None] = {}

    @cached_property
    def known(self) -> bool:
        """Whether the trace holds Python functions (``with_stack=True``)."""
        return bool((self._trace.spans.kind == Kind.PYTHON).any())

    @cached_property
    def _python(self) -> Nesting:
        return nest(self._trace, (Kind.PYTHON,))

    @cached_property
    def _user(self) -> NDArray[np.int64]:
        """One element a row of ``Spans``: itself or the nearest around it that is the user's
        function.
        """
        spans = self._trace.spans
        names = [self._place(name) is not None for name in range(len(self._trace.names))]
        return self._python.above(np.array(names, np.bool_)[spans.name])

    def _place(self, name: int) -> Place | None:
        if name not in self._places:
            self._places[name] = self._read_place(name)
        return self._places[name]

    def _read_place(self, name: int) -> Place | None:
        """The user's function that a span is named after; None where it is not a user's."""
        match = _FUNCTION.fullmatch(self._trace.names[name])
        if match is None or not is_user_function(match[1]):
            return None
        line = 0 if name in self._running_at_the_start else int(match[2])
        return Place(match[1], line, match[3])

    @cached_property
    def _running_at_the_start(self) -> set[int]:
        """The names of the functions that each thread was in when the trace began: before its
        first operator.
        """
        spans = self._trace.spans
        python = spans.kind == Kind.PYTHON
        threads, thread_of_span = np.unique(spans.thread, return_inverse=True)
        first = np.full(len(threads), np.iinfo(np.int64).max)
        np.minimum.at(first, thread_of_span[~python], spans.start_ns[~python])
        return set(spans.name[python & (spans.start_ns < first[thread_of_span])].tolist())

    def place(self, row: int) -> Place | None:
        """The function of a row; None for NONE."""
        return None if row < 0 else self._place(int(self._trace.spans.name[row]))

    def at(self, thread: NDArray[np.int64], time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of the user's innermost function on each thread at each moment; NONE."""
        if not self.known:
            return np.full(len(thread), NONE, np.int64)
        rows = self._python.innermost(thread, time_ns)
        return np.where(rows >= 0, self._user[rows], NONE)

    def innermost(self, thread: NDArray[np.int64], time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of the innermost Python function, whoever's, on each thread at each moment."""
        if not self.known:
            return np.full(len(thread), NONE, np.int64)
        return self._python.innermost(thread, time_ns)

    def caller(self, row: int) -> int:
        """The row of the Python function that called one; NONE."""
        return int(self._python.parent[row])

    def function(self, row: int) -> tuple[str, int, str, bool]:
        """File, line, name of the function of a row, and whether it is the user's.

        What was running when the trace began has no line; what is not a Python function, no file.
        """
        name = int(self._trace.spans.name[row])
        place = self._place(name)
        if place is not None:
            return place.file, place.line, place.function, True
        match = _FUNCTION.fullmatch(self._trace.names[name])
        if match is None:
            return "", 0, self._trace.names[name], False
        return match[1], int(match[2]), match[3], False

    def behind(self, operators: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of the user's function that ran the forward of each backward operator; NONE.

        Args:
            operators: rows of ``Spans``, NONE where there is none.
        """
        spans = self._trace.spans
        nothing = np.full(len(operators), NONE, np.int64)
        if not self.known or not len(self._forward[0]):
            return nothing
        sequences, forward_user = self._forward
        backward = np.where(operators >= 0, self._backward[operators], NONE)
        forward_sequence = np.where(backward >= 0, spans.sequence[backward], NONE)
        place = np.minimum(np.searchsorted(sequences, forward_sequence), len(sequences) - 1)
        return np.where(
            (forward_sequence >= 0) & (sequences[place] == forward_sequence),
            forward_user[place],
            nothing,
        )

    @cached_property
    def _backward(self) -> NDArray[np.int64]:
        spans = self._trace.spans
        return self._cpu.above(spans.backward & (spans.sequence >= 0))

    @cached_property
    def _forward(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sequence numbers, and the user's function of the last forward operator that had each
        (kineto links that).
        """
        spans = self._trace.spans
        rows = np.flatnonzero((spans.sequence >= 0) & ~spans.backward)[::-1]
        sequences, first = np.unique(spans.sequence[rows], return_index=True)
        rows = rows[first]
        return sequences, self.at(spans.thread[rows], spans.start_ns[rows])
