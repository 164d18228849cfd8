"""The native core as ``ctypes`` loads it; what its functions take is said where they are called.

Without NumPy, so that it may be loaded in the user's program too.
"""

from __future__ import annotations

import ctypes
import os
import sys

import vramlens
from vramlens.errors import VramlensError

_INTERFACE = 6


def load_core() -> ctypes.CDLL:
    """The library that was installed with the package; its interface is native/vramlens.h.

    Raises:
        VramlensError: it is missing, or of another version.
    """
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    paths = [os.path.join(place, "libvramlens" + suffix) for place in vramlens.__path__]
    path = next(filter(os.path.exists, paths), None)
    if path is None:
        raise VramlensError(
            "the native core of vramlens is missing: install the package with `pip install .`"
        )
    library = ctypes.CDLL(path)
    if library.vl_interface() != _INTERFACE:
        raise VramlensError(f"{path} is of another version: install vramlens again")
    return library
