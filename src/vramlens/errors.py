"""Every error that vramlens raises on purpose.

    VramlensError            what, where and what to do, in one line
    ├── LeakError            no_leaks() found something that grew; also an AssertionError (vramlens.live)
    ├── UsageError           the request itself is wrong            (exit code 2)
    └── InputError           the input cannot be used               (exit code 3)
        ├── NoProgram        there is no such program to run
        ├── UnsafeInput      it would run code, or exhaust memory
        └── NotARecording    readable, but nothing that vramlens knows

Only ``vramlens.cli.main`` prints them and exits.
"""

from __future__ import annotations


class VramlensError(Exception):
    """The root: its text is one line that says what, where and what to do."""

    exit_code = 3


class UsageError(VramlensError):
    """The request is wrong: an unknown option value, a missing argument."""

    exit_code = 2


class InputError(VramlensError):
    """The input cannot be read: missing, empty, truncated beyond use, not permitted."""


class NoProgram(InputError):
    """The script or module to be run does not exist; the program itself has not begun."""


class UnsafeInput(InputError):
    """The input would run code or use memory without bound if it were loaded."""


class NotARecording(InputError):
    """The input can be read but is not a recording, snapshot, error text or trace."""
