"""PyTorch's debug server (``torch.distributed.debug``, as in 2.13): a page with every rank's memory
right now.

    from torch.distributed.debug import start_debug_server
    from vramlens.integrations.debug_server import handlers

    start_debug_server(handlers=handlers())         # on every rank; then http://localhost:25999/memory

The server answers while the ranks hang: its threads need none of the program's. PyTorch asks for
Jinja2, tabulate and aiohttp.
"""

from __future__ import annotations

import ctypes
import html
import json
from typing import Any

from vramlens.errors import UsageError
from vramlens.units import format_size

_WORKER = "vramlens_memory"
_MARGIN = 1.02
_TEMPLATE = """
{% extends "base.html" %}
{% block header %}<h1>{% block title %}Memory of every rank{% endblock %}</h1>{% endblock %}
{% block content %}<pre>{{ text }}</pre>{% endblock %}
"""


def handlers() -> list[Any]:
    """PyTorch's own handlers and the page ``/memory``; to be called on every rank, which then
    answers for itself.

    Raises:
        UsageError: this PyTorch has no debug server that takes handlers, or Jinja2 is missing.
    """
    try:
        from torch.distributed.debug._debug_handlers import default_handlers
    except ImportError as error:
        raise _no_server(error) from None
    return [*default_handlers(), __getattr__("MemoryHandler")()]


def __getattr__(name: str) -> Any:
    """``MemoryHandler``, a DebugHandler of the page ``/memory`` alone: made when asked for, since
    it needs torch.

    Raises:
        UsageError: as for ``handlers``.
    """
    if name != "MemoryHandler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = (
        _memory_handler()
    )  # one class: it may be pickled for the server's process
    return found


def _no_server(error: ImportError) -> UsageError:
    return UsageError(f"torch.distributed.debug takes no handlers here ({error})")


def _memory_handler() -> type[Any]:
    try:
        from torch._C._distributed_c10d import _register_handler
        from torch.distributed.debug._frontend import DebugHandler, NavLink, Route, fetch_all
    except ImportError as error:
        raise _no_server(error) from None
    base: Any = DebugHandler

    class MemoryHandler(base):  # type: ignore[misc]
        """Every rank's memory: the verdict across ranks first, then each rank's own ledger."""

        def __init__(self) -> None:
            # PyTorch lets go of it when the interpreter is gone, and the process would abort: it
            # must outlive that.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_answer))
            _register_handler(_WORKER, _answer)

        def routes(self) -> list[Any]:
            return [Route("/memory", self._handle)]

        def nav_links(self) -> list[Any]:
            return [NavLink("/memory", "Memory")]

        def templates(self) -> dict[str, str]:
            return {"vramlens_memory.html": _TEMPLATE}

        def dump(self) -> str | None:
            _, answers = fetch_all(_WORKER, timeout=self.fetch_timeout)
            return page_text([one.text if one.status_code == 200 else None for one in answers])

        def dump_filename(self) -> str:
            return "memory"

        def _handle(self, request: Any) -> bytes:
            text: bytes = request.frontend.render_template(
                "vramlens_memory.html", text=html.escape(self.dump() or "")
            )
            return text

    MemoryHandler.__qualname__ = "MemoryHandler"
    return MemoryHandler


def _answer(request: Any, response: Any) -> None:
    """A rank's own memory, as JSON; runs on a thread of the debug server, whatever the program
    does.
    """
    try:
        from vramlens.capture.memory.memory_now import memory

        now = memory()
        found = {"text": str(now), "figures": now.to_dict()}
        status = 200
    except Exception as error:  # the program must not notice
        found, status = {"text": f"{type(error).__name__}: {error}"}, 500
    response.set_content(json.dumps(found, default=str).encode(), "application/json")
    response.set_status(status)


def page_text(answers: list[str | None]) -> str:
    """The page of some ranks' answers, in order of rank; None where a rank did not answer.

    Figures are what each rank says of itself; whoever holds 2 % more than the usual rank is named
    first.
    """
    ranks = {
        rank: value
        for rank, text in enumerate(answers)
        if text and (value := _read(text)) is not None
    }
    used = {rank: size for rank, value in ranks.items() if (size := _allocated(value)) is not None}
    lines = []
    if used:
        usual = sorted(used.values())[(len(used) - 1) // 2]
        odd = sorted(
            (rank for rank, size in used.items() if size > _MARGIN * usual),
            key=lambda rank: -used[rank],
        )
        if odd and len(used) > 1:
            most = (
                f"rank {odd[0]} holds {format_size(used[odd[0]] - usual)} more than the usual rank"
            )
            lines.append(
                f"{most} ({format_size(usual)} live in PyTorch); {len(odd)} of {len(used)} ranks hold more."
            )
        else:
            lines.append(f"{len(used)} ranks, about {format_size(usual)} each live in PyTorch.")
    silent = [rank for rank in range(len(answers)) if rank not in ranks]
    if silent:
        lines.append(
            f"No answer from rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent[:20]))}."
        )
    for rank, value in ranks.items():
        lines += ["", f"=== rank {rank} ===", str(value.get("text", ""))]
    return "\n".join(lines)


def _read(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _allocated(value: dict[str, Any]) -> int | None:
    """Live bytes of PyTorch on the GPUs of a rank; None where it uses none."""
    figures = value.get("figures")
    gpus = figures.get("gpus") if isinstance(figures, dict) else None
    sizes = [
        row["bytes"]
        for gpu in (gpus if isinstance(gpus, list) else [])
        if isinstance(gpu, dict)
        for row in gpu.get("rows", [])
        if isinstance(row, dict)
        and row.get("kind") == "pytorch_allocated"
        and isinstance(row.get("bytes"), int)
    ]
    return sum(sizes) if sizes else None
