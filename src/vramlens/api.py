"""The Python interface: open a recording, ask it questions."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.explanation import Explanation, OomVerdict
from vramlens.analyses.memory.fragmentation import Fragmentation
from vramlens.analyses.memory.heap import Heap
from vramlens.analyses.recording_explanation import (
    choose_device,
    explain_text,
    explain_trace,
    needed_device,
)
from vramlens.analyses.scene import Scene
from vramlens.argument_types import (
    device_given,
    function_given,
    number_given,
    path_given,
    settings_given,
    size_given,
    wrong_type,
)
from vramlens.cards.known_cards import card_bytes
from vramlens.errors import NotARecording, UsageError, VramlensError
from vramlens.foreign_text import visible
from vramlens.ground.verdict import Verdict
from vramlens.read.oom.oom_text import OomMessage, OomMessages, find_oom_messages
from vramlens.read.opened_source import Source, open_source
from vramlens.read.snapshot import read_snapshot
from vramlens.trace import Trace
from vramlens.units import check_limit, counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.leaks.recorded_leaks import RecordedLeakReport
    from vramlens.analyses.profile.explained_profile import Profile
    from vramlens.replay import Answer, Tuning
    from vramlens.trace.profile import ProfilerTrace

Progress = Callable[[float], None]
"""Called with the share of the file that has been read, from 0 to 1."""
_NO_RECORDING = {
    "text": "is text, not a recording; `vramlens explain` reads logs",
    "json": "is JSON, not a recording; `vramlens explain` reads profiler traces",
    "binary": "is neither a recording nor a text",
}
_NO_ERROR = _NO_RECORDING | {
    "text": "is text without an out-of-memory error; pass the log with the error, or a recording",
    "json": "is JSON but neither an out-of-memory error nor a profiler trace; pass the log "
    "with the error, a trace or a recording",
}


class Recording(Trace):
    """An opened recording: a Trace with the questions that one can ask it.

    The columns are those of ``vramlens.trace.Trace``; each method runs one analysis of
    ``vramlens.analyses``.
    """

    def peak(self, device: int | None = None) -> Heap:
        """The heap where requested bytes are highest: ``by_line``, ``by_category``, ``by_phase``
        and so on.

        Args:
            device: the device; by default the one with the highest requested peak.

        Raises:
            UsageError: the recording has no such device.
        """
        return Scene(self.attribution(device)).peak.heap

    def explain(self, at: str | None = None, device: int | None = None) -> Explanation:
        """Everything at once: peak, verdict, fragmentation, leaks, findings.

        Raises:
            UsageError: the recording has no such device or moment.
        """
        return explain_recording(self, at=_moment(at), device=device, view=self._view(device))

    def oom(self, device: int | None = None) -> OomVerdict | None:
        """The out-of-memory verdict; None when nothing failed."""
        return self.explain(device=device).oom

    def fragmentation(self, device: int | None = None) -> Fragmentation | None:
        """Free memory inside reserved segments, at the failure if there is one, else at the
        peak.
        """
        return explain_trace(self, device=device, view=self._view(device)).fragmentation

    def replay(
        self,
        conf: str | Sequence[str] | None = None,
        cap: str | int | None = None,
        *,
        device: int | None = None,
        recorded_cap: str | int | None = None,
    ) -> Answer:
        """The run again in a simulated allocator: the proof that it is right, and one answer a
        setting.

        Args:
            conf: a setting as ``PYTORCH_ALLOC_CONF`` takes it, or several to try one after another.
            cap: what the process may reserve, in bytes or as "24GiB".
            device: the device; by default the one with the highest requested peak.
            recorded_cap: the limit of the recorded run, where the recording does not say.

        Raises:
            UsageError: PyTorch would refuse the setting; there is no such device; the cap is below
                what is live.
            InputError: the recording holds no requests, or not enough to replay them.
        """
        from vramlens.replay import replay_trace

        return replay_trace(
            self,
            confs=settings_given(conf),
            cap_bytes=_limit("cap", cap),
            recorded_cap_bytes=size_given("recorded_cap", recorded_cap),
            device=device_given(device),
        )

    def tune(
        self,
        cap: str | int | None = None,
        *,
        cards: Sequence[str | int] = (),
        conf: str | Sequence[str] | None = None,
        device: int | None = None,
        recorded_cap: str | int | None = None,
    ) -> Tuning:
        """The settings worth trying, each tried on this run: the best first, and the one to use.

        Args:
            cap: what the process may reserve, in bytes or as "24GiB".
            cards: cards, by size or as "H100": on which of them the run fits, by setting; not together
                with ``cap``.
            conf: settings to try beside the usual ones.
            device: the device; by default the one with the highest requested peak.
            recorded_cap: the limit of the recorded run, where the recording does not say.

        Raises:
            UsageError: as for ``replay``; ``cap`` and ``cards`` were both given.
            InputError: the recording holds no requests, or not enough to replay them.
        """
        from vramlens.replay import WORTH_TRYING, tune_trace

        if cap is not None and cards:
            raise UsageError("use either cap or cards: a card's size is the driver's limit")
        return tune_trace(
            self,
            cap_bytes=_limit("cap", cap),
            cards=[_card_bytes(card) for card in _cards(cards)],
            confs=(*WORTH_TRYING, *settings_given(conf)),
            recorded_cap_bytes=size_given("recorded_cap", recorded_cap),
            device=device_given(device),
        )

    def leaks(
        self,
        *,
        device: int | None = None,
        total_bytes: str | int | None = None,
        at_least_bytes: str | int | None = None,
    ) -> RecordedLeakReport:
        """What grows with every step, the line that asks for it, and when memory will run out.

        Args:
            device: only this one; by default every one that was recorded.
            total_bytes: the device's memory, in bytes or as "80GiB".
            at_least_bytes: what a step has to leave behind to matter.

        Raises:
            UsageError: the recording has no such device.
        """
        from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace

        return leaks_of_trace(
            self,
            device=device_given(device),
            total_bytes=size_given("total_bytes", total_bytes),
            at_least_bytes=size_given("at_least_bytes", at_least_bytes),
        )

    def __repr__(self) -> str:
        events = sum(len(device.events) for device in self.devices.values())
        return f"<Recording {self.source}: {events:,} events, devices {list(self.devices)}>"

    def __str__(self) -> str:
        lines = [visible(self.source)]
        for number, device in self.devices.items():
            peak = format_size(device.requested.peak_bytes)
            reserved = format_size(device.reserved.peak_bytes)
            lines.append(
                f"  device {number}: {counted(len(device.events), 'event')},"
                f" {counted(len(device.allocations), 'allocation')};"
                f" at most {peak} requested, {reserved} reserved"
            )
        lines += [f"  Missing: {visible(text)}" for text in self.missing]
        return "\n".join([*lines, "Next: .explain(), .leaks(), .tune(), vramlens.view(...)"])

    def _repr_html_(self) -> str:
        from vramlens.report.forms import html_box

        return html_box(str(self))

    def attribution(self, device: int | None = None) -> Attribution:
        """For every allocation of a device its step, phase, user line, category and region."""
        chosen = needed_device(self, device_given(device))
        if chosen.device not in self._attributions:
            self._attributions[chosen.device] = attribute(self, chosen)
        return self._attributions[chosen.device]

    def _view(self, device: int | None) -> Attribution | None:
        """The attribution, made once for all questions; None of a recording that holds nothing."""
        return (
            None if choose_device(self, device_given(device)) is None else self.attribution(device)
        )

    @cached_property
    def _attributions(self) -> dict[int, Attribution]:
        return {}


def explain_recording(
    recording: Trace,
    *,
    at: str | None = None,
    device: int | None = None,
    messages: Sequence[OomMessage] = (),
    total_bytes: int | None = None,
    events_to_replay: int | None = None,
    view: Attribution | None = None,
) -> Explanation:
    """The explanation of a recording, with what its replay proves: ``analyses.explain_trace``, then
    ``with_replay``.

    Args:
        events_to_replay: bounds the time that replay may take; None is about a second.
        view: the device's attribution, where it is at hand.

    Raises:
        UsageError: there is no such device or moment, or no message fits.
    """
    from vramlens.replay.explained import EVENTS_TO_REPLAY, with_replay

    chosen = choose_device(recording, device)
    if view is None and chosen is not None:
        view = attribute(recording, chosen)
    explanation = explain_trace(
        recording, at=at, device=device, messages=messages, total_bytes=total_bytes, view=view
    )
    events = EVENTS_TO_REPLAY if events_to_replay is None else events_to_replay
    return with_replay(explanation, recording, events, view=view)


def load(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Recording:
    """Opens a recording: a ``.vram`` file or a PyTorch memory snapshot, compressed (xz, gz, zst) or
    not.

    Nothing in the file is executed. What is whole in a truncated file is there; ``missing`` says
    what is not.

    Raises:
        InputError: the file cannot be read.
        UnsafeInput: loading it would run code or use memory without bound.
        NotARecording: it is something else.
    """
    function_given("progress", progress)
    with open_source(path_given("path", path)) as source:
        profiled = _profiler_trace(source, progress)
        if profiled is not None and not isinstance(profiled, io.BufferedIOBase):
            return _recording_of_profile(profiled)
        if source.kind != "pickle":
            raise NotARecording(f"{source.name}: {_NO_RECORDING[source.kind]}")
        return _read_recording(source, progress)


def explain(
    path: str | os.PathLike[str],
    *,
    at: str | None = None,
    device: int | None = None,
    log: str | os.PathLike[str] | None = None,
    total_bytes: str | int | None = None,
    progress: Progress | None = None,
) -> Explanation | Profile:
    """Explains whatever the file is: a recording, a log with an out-of-memory error in it, or a
    profiler trace.

    Args:
        path: the file; ``-`` is standard input.
        at: the moment that the heap is shown at: "peak", "oom", "end" or an event's number; None is
            the failure that ended the program, else the peak.
        device: the device; by default the one with the highest requested peak.
        log: a file with the text of the error, to close the ledger of a recording.
        total_bytes: the device's memory, for the ledger, in bytes or as "80GiB".

    Raises:
        TypeError: an argument is of another type.
        InputError, UnsafeInput, NotARecording: as for ``load``.
        UsageError: the recording has no such device or moment.

    Returns:
        A Profile for a profiler trace (an Explanation of its memory where ``at`` names another
        moment than the peak), an Explanation for all else.
    """
    function_given("progress", progress)
    device, total = device_given(device), size_given("total_bytes", total_bytes)
    at = _moment(at)
    with open_source(path_given("path", path)) as source:
        if source.kind == "pickle":
            recording = _read_recording(source, progress)
            messages = () if log is None else _messages(log)
            return explain_recording(
                recording, at=at, device=device, messages=messages, total_bytes=total
            )
        stream = source.stream
        profiled = _profiler_trace(source, progress)
        if isinstance(profiled, io.BufferedIOBase):
            stream = profiled
        elif profiled is not None:
            if log is not None or total is not None:
                raise UsageError(f"{source.name}: is a profiler trace: log and total do not apply")
            return _explained_trace(profiled, at, device)
        if device is not None or log is not None or at not in (None, "peak", "oom"):
            raise UsageError(
                f"{source.name}: is not a recording: device, moment and log do not apply"
            )
        return _explained_log(source, stream, total)


def _explained_log(source: Source, stream: BinaryIO, total: int | None) -> Explanation:
    messages = find_oom_messages(stream)
    if not messages:
        raise NotARecording(f"{source.name}: {_NO_ERROR[source.kind]}")
    message, count = _telling(messages)
    if total is not None:
        message = replace(message, total_bytes=total)
    return explain_text(message, source.name, count, messages)


def example_path() -> Path:
    """The recording that ships with the package: a real fine-tuning run that filled an H200 and
    ran out of memory at a batch of long sequences.
    """
    return Path(__file__).with_name("example.vram")


def _moment(at: str | int | None) -> str | None:
    """The moment ``at`` as text; an event's number may be given as one."""
    accepted_words = "peak, oom, end or an event number"
    return at if at is None or isinstance(at, str) else str(number_given("at", at, accepted_words))


def _cards(cards: Sequence[str | int]) -> tuple[str | int, ...]:
    if isinstance(cards, Sequence) and not isinstance(cards, (str, bytes)):
        return tuple(cards)
    raise wrong_type("cards", 'a list of cards such as ["16GiB", "H100"]', cards)


def _card_bytes(card: str | int) -> int:
    """The memory of a card, of its size or its name.

    Raises:
        UsageError: it is neither, or less than 1 MiB.
    """
    if isinstance(card, str):
        return card_bytes(card)
    return check_limit(
        number_given("cards", card, 'a number of bytes or a card such as "H100"'), card
    )


def _limit(name: str, size: str | int | None) -> int | None:
    """Bytes that a process or a card may have.

    Raises:
        UsageError: it is not a size, or less than 1 MiB.
    """
    try:
        limit = size_given(name, size)
        return None if limit is None else check_limit(limit, size)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _telling(messages: Sequence[OomMessage]) -> tuple[OomMessage, int]:
    """The last of the messages that say most, and how many of its kind there are.

    A launcher's "received SIGKILL" often follows the error that matters.
    """

    def rank(message: OomMessage) -> tuple[bool, bool]:
        return message.verdict == Verdict.PROVEN, message.tried_bytes is not None

    best = max(map(rank, messages))
    telling = [message for message in messages if rank(message) == best][-1]
    return telling, sum(message.count for message in messages if message.kind == telling.kind)


def _messages(path: str | os.PathLike[str]) -> OomMessages:
    with open_source(path_given("log", path)) as source:
        messages = find_oom_messages(source.stream)
    if not messages:
        raise NotARecording(f"{source.name}: contains no out-of-memory error")
    return messages


def _reporter(source: Source, progress: Progress | None) -> Callable[[], None] | None:
    """The function that tells how much of a source has been read."""
    size = source.size_bytes
    if progress is None or not size:
        return None
    return lambda: progress(min(1.0, source.position() / size))


def _profiler_trace(
    source: Source, progress: Progress | None
) -> ProfilerTrace | io.BufferedReader | None:
    """The trace of a profiler; the stream from its first byte where it is some other JSON; None
    where it is neither.
    """
    # Only what may be a trace pays for its readers.
    if source.kind == "binary":
        from vramlens.read.nsight_export import looks_like_export, read_nsight_export

        return read_nsight_export(source.name) if looks_like_export(source.stream) else None
    if source.kind != "json":
        return None
    from vramlens.read.profiler_trace import read_profiler_trace

    return read_profiler_trace(source.stream, source.name, _reporter(source, progress))


def _explained_trace(
    trace: ProfilerTrace, at: str | None, device: int | None
) -> Explanation | Profile:
    """What a profiler's trace says; at another moment than its peak, what its memory says then."""
    if at not in (None, "peak"):
        return explain_recording(_recording_of_profile(trace), at=at, device=device)
    from vramlens.analyses.profile.explained_profile import explain_profile

    return explain_profile(trace, device)


def _recording_of_profile(trace: ProfilerTrace) -> Recording:
    from vramlens.analyses.profile.as_recording import recording_of

    return _recording(recording_of(trace))


def _recording(trace: Trace) -> Recording:
    return Recording(**{field.name: getattr(trace, field.name) for field in fields(trace)})


def _read_recording(source: Source, progress: Progress | None) -> Recording:
    def report(_bytes: int) -> None:
        if progress is not None and source.size_bytes:
            progress(min(1.0, source.position() / source.size_bytes))

    try:
        trace = read_snapshot(
            source.stream,
            source.name,
            progress=report if progress else None,
            members=source.members,
        )
    except VramlensError as error:
        damage = " (the compressed data is damaged or cut short)" if source.damaged else ""
        text = str(error)
        raise type(error)(
            (text if text.startswith(source.name) else f"{source.name}: {text}") + damage
        ) from None
    return _recording(trace)
