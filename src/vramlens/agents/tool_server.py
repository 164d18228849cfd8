"""The server: vramlens's questions as tools of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

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


TOOLS = ("explain", "leaks", "tune", "diff", "ranks", "who_holds", "predict")


class Tools:
    """The tools; each answers in a process of its own.

    Args:
        sources: the folder below which the program's code lies, where a question names none.
    """

    def __init__(self, sources: str = ".") -> None:
        self._sources = sources

    async def explain(
        self,
        path: str,
        at: str | None = None,
        log: str | None = None,
        total: str | None = None,
        device: int | None = None,
        sources: str | None = None,
    ) -> str:
        """Where GPU memory is, why it ran out, and what to change, from one file.

        Args:
            path: a recording (.vram), a PyTorch memory snapshot, a log with an out-of-memory error, or
                a torch.profiler trace.
            at: the moment: peak, oom, end or an event's number.
            log: a file with the error's text, to complete a bare snapshot.
            total: the GPU's memory, such as 80GiB.
            device: the GPU's number.
            sources: the program's folder, whose code is quoted; by default the server's.
        """
        return await _answer(
            "explain",
            path=path,
            at=at,
            log=log,
            total=total,
            device=device,
            sources=sources or self._sources,
        )

    async def leaks(
        self,
        path: str,
        total: str | None = None,
        device: int | None = None,
        sources: str | None = None,
    ) -> str:
        """What grows with every step of a recording, which line allocates it, what keeps it, and
        when memory runs out.

        Args:
            path: a recording, a snapshot, or a torch.profiler trace.
            total: the GPU's memory, such as 80GiB.
            device: the GPU's number.
            sources: the program's folder, whose code is quoted; by default the server's.
        """
        return await _answer(
            "leaks", path=path, total=total, device=device, sources=sources or self._sources
        )

    async def tune(
        self,
        path: str,
        cap: str | None = None,
        cards: list[str] | None = None,
        device: int | None = None,
    ) -> str:
        """The best allocator settings for a recorded run, each simulated on its requests.

        Args:
            path: a recording or a snapshot.
            cap: what the process may reserve, such as 24GiB.
            cards: card sizes: on which of them the run fits.
            device: the GPU's number.
        """
        return await _answer("tune", path=path, cap=cap, cards=cards or [], device=device)

    async def diff(
        self, before: str, after: str, device: int | None = None, sources: str | None = None
    ) -> str:
        """What a change did to memory: failure, growth, peak and lines, before and after.

        Args:
            before: the recording (or trace) before the change.
            after: the recording after it.
            device: the GPU's number.
            sources: the program's folder, whose code is quoted; by default the server's.
        """
        return await _answer(
            "diff", before=before, after=after, device=device, sources=sources or self._sources
        )

    async def ranks(self, paths: list[str], sources: str | None = None) -> str:
        """Which rank of a distributed job differs from its peers in memory, why, and who failed first.

        Args:
            paths: a folder of the ranks' recordings and NCCL flight records, or the files.
            sources: the program's folder, whose code is quoted; by default the server's.
        """
        return await _answer("ranks", paths=paths, sources=sources or self._sources)

    async def who_holds(
        self,
        path: str,
        name: str = "",
        at: str | None = None,
        device: int | None = None,
        sources: str | None = None,
    ) -> str:
        """What uses the recorded memory: objects that were seen to keep it (run --leaks), and lines.

        Args:
            path: a recording or a snapshot.
            name: only what has this in its name or in its file:line.
            at: the moment: peak, oom, end or an event's number.
            device: the GPU's number.
            sources: the program's folder, whose code is quoted; by default the server's.
        """
        return await _answer(
            "who_holds",
            path=path,
            name=name,
            at=at,
            device=device,
            sources=sources or self._sources,
        )

    async def predict(
        self,
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
    """The server, ready to run.

    Raises:
        UsageError: the package ``mcp`` is not installed.
    """
    mcp_server: Any = _server_class()(name="vramlens", instructions=INSTRUCTIONS, log_level="ERROR")
    tools = Tools(sources)
    for name in TOOLS:
        mcp_server.tool(structured_output=False)(getattr(tools, name))
    return mcp_server


def _server_class() -> Any:
    """The class for servers, by the name that it has in the installed version."""
    return _of_package("", ("MCPServer", "FastMCP"))


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


async def _answer(tool: str, **arguments: object) -> str:
    request = json.dumps({"tool": tool, "arguments": arguments})
    return await _output_of(["-m", "vramlens.agents.worker", request])


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
