"""Redaction: a recording to hand to others tells no folders, arguments, host or user."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

# What everybody has is kept from here on, so that the reader can tell libraries from the user's own code.
_LIBRARY = re.compile(r"(?:site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\].*$")
_COMPILED = re.compile(r"torchinductor_[^/\\]*(?P<rest>[/\\].*)$")  # the folder has the user's name in it
_PRIVATE_META = ("command", "ending", "host", "folder")
# Within a text: what begins at a root or a drive, and relative paths of Python files.
_PATH = re.compile(r"(?<![\w.+@~-])(?:[A-Za-z]:)?[/\\][\w.+@~-][\w.+@~/\\-]*|[\w.+@~-]+(?:[/\\][\w.+@~-]+)+\.pyw?\b")


def redact(snapshot: dict[str, Any], meta: dict[str, Any]) -> None:
    """Takes paths out of every frame (a file's name stays) and what is private out of the meta data, in place."""
    done: set[int] = set()
    shorter: dict[str, str] = {}
    for frames in _frame_lists(snapshot):
        if id(frames) in done:
            continue
        done.add(id(frames))
        for frame in frames:
            if id(frame) not in done:  # PyTorch shares one dict among all stacks with the same frame
                done.add(id(frame))
                path = frame.get("filename", "")
                if path not in shorter:
                    shorter[path] = redacted_path(path)
                frame["filename"] = shorter[path]
    for key in _PRIVATE_META:
        meta.pop(key, None)
    meta["redacted"] = True


def redacted_part(part: Any) -> Any:
    """Another part of the recording (names, owners) with no folder in any of its texts."""
    files = sorted(set(_files(part)), key=len, reverse=True)  # whole paths, in which spaces may be

    def without_folders(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_folders(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [each if type(each) is int else without_folders(each) for each in value]
        if not isinstance(value, str):
            return value
        for path in files:
            value = value.replace(path, redacted_path(path))
        return _PATH.sub(lambda found: redacted_path(found[0]), value)

    return without_folders(part)


def _files(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("file"), str) and value["file"]:
            yield value["file"]
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for each in value:
        if type(each) is not int:
            yield from _files(each)


def redacted_path(path: str) -> str:
    """A path without the folders that are the user's."""
    library = _LIBRARY.search(path)
    if library is not None:
        return "/" + library[0]
    compiled = _COMPILED.search(path)
    if compiled is not None:
        return "/torchinductor_" + compiled["rest"]
    return path if path.startswith("<") else os.path.basename(path.replace("\\", "/"))


def _frame_lists(snapshot: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for segment in snapshot.get("segments", ()):
        yield segment.get("frames", [])
        for block in segment.get("blocks", ()):
            yield block.get("frames", [])
    for name in ("device_traces", "host_traces"):
        for trace in snapshot.get(name, ()):
            for event in trace:
                yield event.get("frames", [])
