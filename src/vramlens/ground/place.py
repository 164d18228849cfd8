"""Places in programs: a line of the user's, and which files are the user's, by their names on
whichever system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST_NAME = 1000
PACKAGES = r"(?:site|dist)-packages"
"""The folder that packages are installed in, as a pattern: Debian's and Ubuntu's own Pythons call it
dist-packages.
"""
# Not the user's: synthetic files (but a notebook's cells are), installed packages, the standard
# library, torch from its source tree, code that torch.compile or PyTorch Geometric wrote, and C++.
NOT_THE_USERS = re.compile(
    r"^<(?!ipython-input)"
    r"|^$|^\?\?"
    rf"|[/\\]{PACKAGES}[/\\]"
    r"|[/\\](?:lib|Lib|lib64)[/\\]python3?(?:\.\d+)?t?[/\\]"
    r"|[/\\]Python3\d*[/\\][Ll]ib[/\\]"
    r"|[/\\]torch[/\\](?:nn|optim|autograd|cuda|utils|distributed|_dynamo|_inductor|_functorch|_ops|amp|fx|func|fft"
    r"|linalg|library|serialization|storage|functional|_tensor|_refs|_prims|_decomp|export|ao|profiler|testing"
    r"|random|backends|accelerator|nested|sparse|special|masked|jit|multiprocessing|_C)(?:[/\\]|\.py)"
    r"|torchinductor_|[/\\]torch_compile_debug[/\\]|__compiled_fn|(?:^|[/\\])fx_generated_"
    r"|[/\\]torch_geometric\.nn\.[\w.]+_propagate_\w+\.py"
    r"|\.(?:cpp|cc|c|cu|cuh|h|hpp|cxx|so|pyx)(?:$|[.:])"
)

_PACKAGES_FOLDER = re.compile(rf"[/\\]{PACKAGES}[/\\]")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's program: the file as the recording names it, the line (from 1; 0:
    unknown), the function ("": unknown).
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        function = f" in {self.function}" if self.function else ""
        return f"{self.file}{line}{function}"


def base_name(file: str) -> str:
    """The last part of a path, of whichever system it is."""
    return re.split(r"[/\\]", file)[-1]


def path_in_packages(file: str) -> str:
    """The part of a path that an installed package's files have wherever it is installed: from the package on;
    "" of other files.
    """
    _, *inside = _PACKAGES_FOLDER.split(file)
    return inside[-1] if inside else ""


def is_user_file(file: str) -> bool:
    """Whether a file is the user's own: not torch, an installed package, the standard library or
    synthetic.
    """
    return NOT_THE_USERS.search(file[-LONGEST_NAME:]) is None
