"""Extras: packages that an integration needs, and the message where one is not installed."""

from __future__ import annotations

import importlib
from typing import Any

from vramlens.errors import UsageError


def need(module: str, extra: str, tool: str) -> Any:
    """The module.

    Raises:
        UsageError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = f" ({error})" if error.name and not module.startswith(error.name) else ""
        raise UsageError(
            f"{tool} is not installed{missing}: pip install 'vramlens[{extra}]'"
        ) from None
