"""A page as a value: shown in a notebook, written to a file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from vramlens.foreign_text import html_text, visible
from vramlens.units import format_size
from vramlens.whole_file import whole_file

_HEIGHT = 640


@dataclass(frozen=True, repr=False)
class Page:
    """One HTML file that shows recordings, with everything in it; nothing is loaded from anywhere.

    Attributes:
        title: the recordings' names.
        html: the whole page.
    """

    title: str
    html: str

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes the page, whole or not at all, and gives its path.

        Raises:
            OSError: it cannot be written.
        """
        name = os.fspath(path)
        with whole_file(name) as file:
            file.write(self.html.encode("utf-8", "backslashreplace"))
        return name

    def __repr__(self) -> str:
        size = format_size(len(self.html))
        return f"<Page {visible(self.title)}: {size}; .save('run.html') writes it>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, which cannot reach the notebook around it."""
        return (
            f'<iframe sandbox="allow-scripts" title="{html_text(self.title)}"'
            f' style="width:100%;height:{_HEIGHT}px;border:1px solid #8884"'
            f' srcdoc="{_attribute(self.html)}"></iframe>'
        )


def _attribute(page: str) -> str:
    """A page as the value of an attribute: its lines stay lines."""
    return page.replace("&", "&amp;").replace('"', "&quot;")
