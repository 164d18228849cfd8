"""A failed run made event by event: each request has a segment of its own."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.recordings import block, event, segment, snapshot
from support.vram_files import vram
from vramlens import explain
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

Frame = tuple[str, int, str]
TORCH = "/opt/lib/python3.12/site-packages/torch"
"""Where the made programs have PyTorch."""
MAIN: Frame = ("/home/user/train.py", 9, "main")


def finding_of(answer: Explanation, name: str) -> Finding | None:
    """The finding of that id in an answer; None where it is not told."""
    return next((finding for finding in answer.findings if finding.id == name), None)


class MadeRun:
    """A program's requests, by the part of it that asks.

    Args:
        frames: by part, the innermost frames of its requests.
    """

    def __init__(self, frames: Mapping[str, tuple[Frame, ...]]) -> None:
        self.events: list[Any] = []
        self.alive: dict[int, int] = {}  # bytes by address
        self.names: list[dict[str, Any]] = []
        self._frames, self._next = frames, 1 << 30

    def frames_of(self, part: str) -> list[dict[str, Any]]:
        """The stack of a part's requests, the innermost frame first."""
        stack = (*self._frames[part], MAIN)
        return [{"filename": file, "line": line, "name": name} for file, line, name in stack]

    def asks(
        self,
        part: str,
        mib: float,
        *,
        name: str = "",
        kind: str = "tensor",
        use: str = "",
        dtype: str = "",
        kept_by: str = "",
        parts: int = 0,
        unfrozen: str = "",
        shape: str = "",
        frozen: bool = False,
        circle: str = "",
        in_graph: bool = False,
        module: str = "",
    ) -> int:
        """Asks for memory, and gives its address.

        Args:
            name: what the program calls it when it fails; "" where nobody knows.
            kind, use, dtype, kept_by, parts, unfrozen, shape, frozen, circle, in_graph: of the name.
            module: the module that runs.
        """
        size = int(mib * MIB)
        address, self._next = self._next, self._next + 2 * (size // 512 + 1) * 512
        for action in ("segment_alloc", "alloc"):
            marks = {"user_metadata": module} if module and action == "alloc" else {}
            asked = event(action, address, size, frames=self.frames_of(part))
            self.events.append(asked | marks)
        self.alive[address] = size
        if name:
            entry = {"device": 0, "address": address, "bytes": size, "name": name}
            facts = {"kind": kind, "use": use, "dtype": dtype, "kept_by": kept_by}
            facts |= {"unfrozen": unfrozen, "shape": shape, "circle": circle}
            flags = {"frozen": frozen, "in_graph": in_graph}
            self.names.append(entry | facts | {"parts": parts} | flags)
        return address

    def frees(self, *addresses: int) -> None:
        for address in addresses:
            size = self.alive.pop(address)
            for action in ("free_requested", "free_completed", "segment_free"):
                self.events.append(event(action, address, size))

    def is_refused(self, part: str, mib: int) -> None:
        """Asks in vain, and goes on."""
        failed = event("oom", size=mib * MIB, device_free=8 << 30)
        self.events.append({**failed, "frames": self.frames_of(part)})

    def ends(self, folder: Path) -> Explanation:
        """The answer where the program ends now, and nothing failed."""
        parts = {"names": {"tensors": self._named()}} if self.names else {}
        return explain(vram(folder / "made.vram", self._snapshot(), {"oom": None}, **parts))

    def _snapshot(self) -> dict[str, Any]:
        segments = [
            segment(address, size, [block(address, size, size)])
            for address, size in self.alive.items()
        ]
        return snapshot(self.events, segments)

    def fails(
        self,
        part: str,
        mib: int,
        folder: Path,
        *,
        expression: str | None = None,
        node: str | None = None,
        source: Mapping[tuple[str, int], str] | None = None,
        while_handling: bool = False,
        padded_batch: Mapping[str, int] | None = None,
        ignored_labels: Mapping[str, int] | None = None,
        idle_checkpointing: str | None = None,
        row_lengths: Sequence[Mapping[str, int]] = (),
        autocast: bool = False,
    ) -> Explanation:
        """The answer to a request of a part that fails now.

        Args:
            expression: what the program was computing, where the recording says that.
            node: the operation whose gradient was being computed, likewise.
            source: the text of lines, likewise.
            while_handling: whether another such error is being handled.
            padded_batch: how much of the batch is padding, likewise.
            ignored_labels: how many of its positions have no label, likewise.
            idle_checkpointing: the class of a layer in eval mode that has checkpointing, likewise.
            row_lengths: the lengths of rows in batches, likewise.
            autocast: whether a module was seen to run under autocast, likewise.
        """
        self.is_refused(part, mib)
        made = self._snapshot()
        read = (
            expression,
            node,
            source,
            padded_batch,
            ignored_labels,
            idle_checkpointing,
            row_lengths,
        )
        if not self.names and not any(read):
            path = folder / "made.pickle"
            path.write_bytes(pickle.dumps(made))
            return explain(path)
        lines = [
            {"file": file, "line": line, "text": text}
            for (file, line), text in (source or {}).items()
        ]
        failure = {"device": 0, "requested_bytes": mib * MIB, "expression": expression}
        failure = {
            **failure,
            "node": node,
            "source": lines,
            "while_handling": while_handling,
            "padded_batch": padded_batch,
            "ignored_labels": ignored_labels,
            "idle_checkpointing": idle_checkpointing,
            "row_lengths": row_lengths,
        }
        meta = {"oom": failure, "autocast": autocast}
        return explain(vram(folder / "made.vram", made, meta, names={"tensors": self._named()}))

    def _named(self) -> list[dict[str, Any]]:
        return [entry for entry in self.names if entry["address"] in self.alive]
