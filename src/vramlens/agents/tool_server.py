"""The server: vramlens's questions as tools of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

from vramlens.agents.tool_answers import ANSWERS
from vramlens.foreign_text import without_controls
from vramlens.ground.own_session import end_with_children
from vramlens.integrations.shared.extras import need

INSTRUCTIONS = (
    "vramlens explains GPU memory of PyTorch programs from recordings: vramlens run -o run.vram"
    " train.py makes one; PyTorch's memory snapshots (.pickle), logs with an out-of-memory error"
    " and traces of torch.profiler work as well. Begin with explain; use leaks where memory grows"
    " with the steps, tune for allocator settings, diff to prove a fix. Answers name file:line and"
    " quote code that is below `sources`. Numbers are exact unless an answer says otherwise."
)
_WITHIN_S = 600.0
_PREFIX = "vramlens: "


async def predict(
    script: str,
    arguments: list[str] | None = None,
    cards: list[str] | None = None,
    steps: int = 2,
) -> str:
    """The memory peak of a training script before its first run, without a GPU. This runs the
    script with fake tensors, which have shapes and no data.

    Args:
        script: the script, unchanged.
        arguments: the script's own arguments.
        cards: card sizes, such as 24GiB: on which of them it fits.
        steps: after how many optimizer steps it ends.
    """
    sizes = ["--cards", ",".join(cards)] if cards else []
    command = ["-m", "vramlens", "predict", "--steps", str(steps), *sizes, script]
    return await _output_of([*command, *(arguments or [])])


def serve(sources: str) -> None:
    """Answers on standard input and output until the other side closes them.

    Raises:
        UsageError: the package ``mcp`` is not installed.
    """
    server(sources).run("stdio")


def server(sources: str) -> Any:
    """The server, ready to run; each tool answers in a process of its own.

    Args:
        sources: the folder below which the program's code lies, where a question names none.

    Raises:
        UsageError: the package ``mcp`` is not installed.
    """
    mcp_server: Any = _of_package("", ("MCPServer", "FastMCP"))(
        name="vramlens", instructions=INSTRUCTIONS, log_level="ERROR"
    )
    for tool in (*(_in_worker(name, sources) for name in ANSWERS), predict):
        mcp_server.tool(structured_output=False)(tool)
    return mcp_server


def _in_worker(name: str, default_sources: str) -> Callable[..., Awaitable[str]]:
    """A tool that agents see as the function of this name, and that has a process of its own
    answer.
    """

    @wraps(ANSWERS[name])
    async def tool(**arguments: Any) -> str:
        if "sources" in arguments:
            arguments["sources"] = arguments["sources"] or default_sources
        request = json.dumps({"tool": name, "arguments": arguments})
        return await _output_of(["-m", "vramlens.agents.worker", request])

    return tool


def _refusal(line: str) -> Exception:
    """The error that reaches the agent as it is."""
    error: Exception = _of_package(".exceptions", ("ToolError", "ToolError"))(line)
    return error


def _of_package(module: str, names: tuple[str, str]) -> Any:
    """A class by its name from mcp 2.0 on, else by the one before."""
    need("mcp", "mcp", "The package mcp")
    with contextlib.suppress(ImportError):
        return getattr(import_module(f"mcp.server.mcpserver{module}"), names[0])
    return getattr(need(f"mcp.server.fastmcp{module}", "mcp", "The package mcp"), names[1])


async def _output_of(arguments: Sequence[str]) -> str:
    """What a process of this Python prints.

    Raises:
        ToolError: it refused; one line says why.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # so that the workers of a predicted script end with it
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(), _WITHIN_S)
    except asyncio.TimeoutError:
        raise _refusal(f"no answer within {_WITHIN_S:.0f} s") from None
    finally:
        end_with_children(child)
    if child.returncode != 0:
        raise _refusal(_last_line(err, child.returncode))
    return without_controls(out.decode("utf-8", "replace"))


def _last_line(err: bytes, code: int | None) -> str:
    lines = err.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1].removeprefix(_PREFIX) if lines else f"ended with code {code}"
    return without_controls(last)
