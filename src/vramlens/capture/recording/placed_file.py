"""A written recording on its way to its name: what another process has put there stays."""

from __future__ import annotations

import os

from vramlens.capture.recording.output_path import Places


class PlacedFile:
    """A recording's way to its place, beside what another process has put there meanwhile.

    Attributes:
        path: where it is.
    """

    def __init__(self, places: Places, path: str) -> None:
        self._places, self.path = places, path
        self._is_named = path != places.next()  # by whoever asked for it

    def put(self, partial: str, target: str) -> None:
        """Gives the written file its place; a failure's recording keeps its own."""
        while True:
            try:
                os.link(partial, target)  # unlike a rename it replaces nothing
            except FileExistsError:
                if self._is_named or self._places.may_replace(target):
                    os.replace(partial, target)
                    return
                target = self.path = self._places.next()
            except OSError:  # no links here
                os.replace(partial, target)
                return
            else:
                os.unlink(partial)
                return


def keep(path: str, previous: str) -> None:
    """Keeps a file under another name while it is replaced: at every moment both are whole."""
    try:
        link = f"{previous}.{os.getpid()}.partial"
        os.link(path, link)
        os.replace(link, previous)
    except OSError:  # no links here
        os.replace(path, previous)
