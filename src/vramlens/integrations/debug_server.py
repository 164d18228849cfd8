"""PyTorch's debug server (``torch.distributed.debug``, as in 2.13): a page with every rank's memory
right now.

    from torch.distributed.debug import start_debug_server
    from vramlens.integrations.debug_server import handlers

    start_debug_server(handlers=handlers())     # on every rank; then http://localhost:25999/memory

The server answers while the ranks hang: its threads need none of the program's. PyTorch asks for
Jinja2, tabulate and aiohttp.
"""

from __future__ import annotations

import ctypes
import html
import json
from typing import Any

from vramlens.errors import UsageError
from vramlens.units import agreeing, format_size

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
    # One class: it may be pickled for the server's process.
    handler = globals()[name] = _memory_handler()
    return handler


def _no_server(error: ImportError) -> UsageError:
    return UsageError(f"torch.distributed.debug does not accept handlers here ({error})")


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
            return page_text(
                [answer.text if answer.status_code == 200 else None for answer in answers]
            )

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
        answer = {"text": str(now), "figures": now.to_dict()}
        status = 200
    except Exception as error:  # the program must not notice
        answer, status = {"text": f"{type(error).__name__}: {error}"}, 500
    response.set_content(json.dumps(answer, default=str).encode(), "application/json")
    response.set_status(status)


def page_text(answers: list[str | None]) -> str:
    """The page of some ranks' answers, in order of rank; None where a rank did not answer.

    Figures are what each rank says of itself; whoever holds 2% more than the usual rank is named
    first.
    """
    read = {rank: _read(text) for rank, text in enumerate(answers)}
    answered = {rank: answer for rank, answer in read.items() if answer is not None}
    silent = [str(rank) for rank, answer in read.items() if answer is None]
    lines = _verdict(answered)
    if silent:
        noun = agreeing(len(silent), "rank", "ranks")
        lines.append(f"No answer from {noun} {', '.join(silent[:20])}.")
    for rank, answer in answered.items():
        lines += ["", f"=== rank {rank} ===", str(answer.get("text", ""))]
    return "\n".join(lines)


def _verdict(answers: dict[int, dict[str, Any]]) -> list[str]:
    """One sentence on who holds more than the usual rank; none where nobody uses a GPU."""
    sizes = {rank: _allocated(answer) for rank, answer in answers.items()}
    used = {rank: size for rank, size in sizes.items() if size is not None}
    if not used:
        return []
    usual = sorted(used.values())[(len(used) - 1) // 2]
    above = [rank for rank, size in used.items() if size > _MARGIN * usual]
    if not above or len(used) == 1:
        return [f"{len(used)} ranks, each with about {format_size(usual)} in use by PyTorch."]
    fullest = max(above, key=lambda rank: used[rank])
    return [
        f"rank {fullest} uses {format_size(used[fullest] - usual)} more than a typical rank"
        f" ({format_size(usual)} in use by PyTorch); {len(above)} of {len(used)} ranks use more."
    ]


def _read(text: str | None) -> dict[str, Any] | None:
    try:
        answer = json.loads(text or "")
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _allocated(answer: dict[str, Any]) -> int | None:
    """Live bytes of PyTorch on the GPUs of a rank; None where it uses none."""
    sizes: list[int] = []
    for gpu in _dicts_in(answer.get("figures"), "gpus"):
        for row in _dicts_in(gpu, "rows"):
            size_bytes = row.get("bytes")
            if row.get("kind") == "pytorch_allocated" and isinstance(size_bytes, int):
                sizes.append(size_bytes)
    return sum(sizes) if sizes else None


def _dicts_in(answer: Any, key: str) -> list[dict[str, Any]]:
    """The dictionaries in a list of an answer that anybody may have sent."""
    entries = answer.get(key) if isinstance(answer, dict) else None
    return (
        [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )
