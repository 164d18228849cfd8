"""The answer of an attach as text, for a terminal, and as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from vramlens.attach.attachment import Attachment
from vramlens.errors import InputError
from vramlens.foreign_text import text_of, visible
from vramlens.ground.wrapped_lines import wrapped_lines
from vramlens.read.values import as_dict
from vramlens.report.wording import quoted
from vramlens.schema import SCHEMA
from vramlens.units import counted, format_size

_MOST_NAMES = 5
_MORE_NAMES = 5
"""Times as many, in the flag that shows more of a long table."""
_OTHER = "tensor"
"""What ``names`` calls a tensor that is not a parameter, gradient, buffer or optimizer state."""
_FORESEEN = ("process", "memory", "holders", "names", "fragmentation", "leaks", "steps")


def to_dict(attachment: Attachment) -> dict[str, Any]:
    """The answer as data."""
    answer = attachment.answer
    parts = {name: answer.get(name) for name in _FORESEEN}
    return {
        "schema": SCHEMA,
        **parts,
        "names": parts["names"] or [],
        "fragmentation": parts["fragmentation"] or [],
        "installed": bool(answer.get("installed")),
        "recording": attachment.recording,
        "entry": {"way": attachment.way, "stopped_s": round(attachment.stopped_s, 6)},
        "pause": answer.get("pause"),
        "notes": attachment.notes,
    }


def story(attachment: Attachment) -> str:
    """The answer as text: what matters first, how it was come by last.

    Raises:
        InputError: it is not an answer of ours; a process of another user may say anything.
    """
    try:
        return _story(attachment)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        raise InputError("the process gave an invalid answer") from None


def _story(attachment: Attachment) -> str:
    answer = attachment.answer
    process = as_dict(answer.get("process"))
    if answer.get("installed"):
        lines = [*_in_lines(_of_installation(answer, process))]
    elif answer.get("request") == "watch":
        lines = [*_of_watch(answer, attachment.recording)]
    else:
        lines = [*_of_state(answer, process)]
    notes = [f"Note: {visible(note)}" for note in attachment.notes]
    lines += _in_lines((*notes, _of_pause(answer, attachment)))
    next_step = [*_next(answer, process, attachment.recording)]
    lines += ["", *next_step] if next_step else []
    return "\n".join(lines) + "\n"


def _in_lines(sentences: Iterable[str]) -> Iterator[str]:
    """Yields sentences in lines of a plain answer."""
    return chain.from_iterable(map(wrapped_lines, sentences))


def _of_state(answer: Mapping[str, Any], process: Mapping[str, Any]) -> Iterator[str]:
    yield _process_line(process)
    if process.get("torch") is None:
        yield "It has not imported PyTorch, so it has no tensors."
    elif answer.get("holders_text"):
        yield _its_text(answer["holders_text"])
    shown = int(answer.get("top") or _MOST_NAMES)
    for part in answer.get("names") or ():
        yield from _of_device(as_dict(part), shown)
    for part in answer.get("fragmentation") or ():
        yield from _of_fragmentation(as_dict(part))
    yield from _in_lines(_its_text(answer.get("memory_text", "")).split("\n"))


def _process_line(process: Mapping[str, Any]) -> str:
    torch = process.get("torch")
    versions = f"Python {process.get('python')}" + (f", PyTorch {torch}" if torch else "")
    command = " ".join(str(word) for word in process.get("command") or ())
    return f"Process {process.get('pid')}, {visible(versions)}: {visible(command[:200])}"


def _of_device(part: Mapping[str, Any], shown: int) -> Iterator[str]:
    """What is in tensors on a device: all of it by kind, and its largest tensors."""
    storages, size = int(part["storages"]), int(part["bytes"])
    total = f"{format_size(size)} in {counted(storages, 'tensor')}"
    yield from wrapped_lines(
        f"{_device_name(part['device'])}, {total}{_of_kinds(part)}. The largest:"
    )
    largest = list(part["tensors"])[:shown]
    for tensor in largest:
        kind = "" if tensor["kind"] == _OTHER else f" ({_kind_name(tensor['kind'])})"
        yield _tensor_line(tensor["bytes"], visible(tensor["name"] + kind))
    left_out = storages - len(largest)
    if left_out:
        more = min(_MORE_NAMES * shown, storages)
        left_out_bytes = size - sum(int(tensor["bytes"]) for tensor in largest)
        text = f"in {counted(left_out, 'further tensor')} (--top {more} shows more)"
        yield _tensor_line(left_out_bytes, text)


def _tensor_line(size: object, text: str) -> str:
    return f"  {format_size(int(str(size))):>12}  {text}"


def _of_kinds(part: Mapping[str, Any]) -> str:
    """``: 4.01 MiB in 8 parameters, 29.00 MiB in 2,000 others``: the kinds that have a name first."""
    bytes_by_kind = as_dict(part["bytes_by_kind"])
    counts = as_dict(part["storages_by_kind"])
    if set(bytes_by_kind) == {_OTHER}:
        return ", none of them a parameter, buffer, gradient or optimizer state"
    kinds = sorted(bytes_by_kind, key=lambda kind: kind == _OTHER)
    texts = (
        f"{format_size(int(bytes_by_kind[kind]))} in {_counted_kind(kind, int(counts[kind]))}"
        for kind in kinds
    )
    return f": {visible(', '.join(texts))}"


def _device_name(device: object) -> str:
    kind, _, number = visible(str(device)).partition(":")
    return f"On GPU {number}" if number else f"On the {kind.upper()}"


def _kind_name(kind: object) -> str:
    return str(kind).replace("_", " ")


def _counted_kind(kind: object, count: int) -> str:
    """``8 parameters``, ``2,000 others``, ``16 tensors of optimizer state``."""
    if kind == _OTHER:
        return counted(count, "other")
    name = _kind_name(kind)
    return (
        counted(count, "tensor") + f" of {name}" if name.endswith("state") else counted(count, name)
    )


def _of_fragmentation(part: Mapping[str, Any]) -> Iterator[str]:
    reserved, free = int(part["reserved_bytes"]), int(part["free_bytes"])
    yield (
        f"GPU {part['device']}: {format_size(reserved)} reserved in"
        f" {counted(int(part['segments']), 'segment')}, {format_size(free)} of it free, the largest"
        f" free block {format_size(int(part['largest_free_bytes']))}"
    )
    for row in list(part.get("pinned_by") or ())[:_MOST_NAMES]:
        names = ", ".join(visible(str(name)) for name in row["names"][:2])
        names = names or "tensors without a name"
        yield (
            f"  {format_size(int(row['free_bytes'])):>12}  free beside"
            f" {format_size(int(row['live_bytes']))} in {counted(int(row['blocks']), 'block')}:"
            f" {names}"
        )


def _of_watch(answer: Mapping[str, Any], recording: str | None) -> Iterator[str]:
    yield f"Watched {counted(int(answer.get('steps') or 0), 'step')} of the running program."
    text = answer.get("leaks_text")
    if text:
        yield _its_text(text)
    if recording is not None:
        yield f"Recording: {visible(recording)}"


def _of_installation(answer: Mapping[str, Any], process: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Process {process.get('pid')} is watched from now on: if its GPU memory runs out, the"
        " error says why, and a recording is written."
    )
    if not answer.get("uses_gpu", True):
        yield "It does not use a GPU yet. Until it does, there is nothing to record."


def _of_pause(answer: Mapping[str, Any], attachment: Attachment) -> str:
    pause = as_dict(answer.get("pause"))
    longest_s, total_s = float(pause.get("longest_s", 0)), float(pause.get("total_s", 0))
    stopped_ms = attachment.stopped_s * 1000
    now = "It has ended." if answer.get("has_ended") else "It is running again."
    return (
        f"The program was paused for {total_s:.2f} s in total (longest pause: {longest_s:.2f} s),"
        f" and for {stopped_ms:.1f} ms to enter it. {now}{_of_longest_step(pause)}"
    )


def _of_longest_step(pause: Mapping[str, Any]) -> str:
    """A sentence about the program's own steps; empty where too few were seen."""
    longest_s, median_s = pause.get("longest_step_s"), pause.get("median_step_s")
    if not isinstance(longest_s, float) or not isinstance(median_s, float):
        return ""
    is_of_calls = pause.get("timed") == "call"
    timed_words = "time between two calls of its model was" if is_of_calls else "of its steps took"
    return f" The longest {timed_words} {longest_s:.2f} s (median: {median_s:.2f} s)."


def _next(
    answer: Mapping[str, Any], process: Mapping[str, Any], recording: str | None
) -> Iterator[str]:
    pid = process.get("pid")
    if recording is not None:
        yield from ("Next, see what uses the memory:", f"  vramlens explain {quoted(recording)}")
    elif answer.get("installed") and answer.get("uses_gpu", True):
        yield from ("Next, write a recording at any time:", f"  vramlens dump {pid}")
    elif answer.get("installed"):
        yield from ("Next, see what keeps its memory on the CPU:", f"  vramlens attach {pid}")
    elif answer.get("request") == "look" and process.get("torch") is not None:
        yield from (
            "Next, watch its steps to see what grows:",
            f"  vramlens attach {pid} --steps 20",
        )


def _its_text(text: Any) -> str:
    """A text of the process."""
    return text_of(str(text).rstrip().split("\n"))
