"""Answers print themselves: in a program, in a notebook, in a debugger."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_FORMS = "vramlens.report.forms"


class PrintedAnswer:
    """An answer whose text is what the command line prints for it.

    How it is drawn is ``report``'s business, which lies above all analyses: it is looked up by name
    when somebody wants to see the answer, so that an analysis needs no report.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return str(_forms().text_form(self))

    def __repr__(self) -> str:
        return str(_forms().text_form(self)).rstrip("\n")

    def _repr_html_(self) -> str:
        return str(_forms().html_form(self))


def _forms() -> Any:
    return import_module(_FORMS)
