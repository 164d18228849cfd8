"""What a recording says about itself, and each device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramlens.cards.card_room import PredictionMargins
from vramlens.read.parts.entries import LATEST_US, as_texts, by_device, counts_of
from vramlens.read.values import (
    MOST_DEVICES,
    MOST_RANKS,
    as_dict,
    as_fraction,
    as_list,
    as_number,
    as_size,
    as_text,
    text_of,
)
from vramlens.trace import (
    DecisionsMeta,
    DeviceMeta,
    FailureMeta,
    GroupMeta,
    IgnoredLabels,
    Meta,
    PaddedBatch,
    RowLengths,
    WholeRunMeta,
)

_LONGEST_MESSAGE = 1 << 16
_MOST_WORDS = 1000
_MOST_DECISIONS = 1000
_MOST_SOURCE = 128
_MOST_BATCHES = 64
_MOST_STATS = 1000
_TEXTS = (
    "vramlens",
    "torch",
    "cuda",
    "driver",
    "python",
    "platform",
    "trigger",
    "step_source",
    "ending",
    "host",
    "device_name",
    "job",
)
_NUMBERS = ("pid", "max_events", "step", "attempt", "launcher_pid")
_RANKS = ("rank", "local_rank", "world_size")
_MOST_GROUPS, _MOST_SPANS, _LONGEST_NAME = 256, 1000, 100


def meta_of(part: dict[str, Any], _missing: list[str]) -> tuple[Meta, dict[int, int]]:
    """What the recording says about itself, and each device's memory."""
    devices = {device: _device(entry) for device, entry in by_device(part.get("devices"))}
    texts: dict[str, Any] = {name: as_text(part.get(name)) for name in _TEXTS}
    numbers: dict[str, Any] = {name: as_number(part.get(name)) for name in _NUMBERS}
    ranks: dict[str, Any] = {name: as_number(part.get(name), MOST_RANKS) for name in _RANKS}
    failure = part.get("oom")
    meta = Meta(
        **texts,
        **numbers,
        **ranks,
        command=tuple(as_texts(part.get("command"), _MOST_WORDS)),
        groups=group_metas(part.get("groups")),
        devices=devices,
        environment=_environment(part.get("settings")),
        wrapped={
            device: entry
            for device, entry in by_device(part.get("wrapped"))
            if isinstance(entry, bool)
        },
        module_marks=part.get("module_marks") is True,
        has_autocast=part.get("autocast") is True,
        failure=_failure(failure) if isinstance(failure, dict) else None,
        decisions=_decisions(part),
        margins=_margins(as_dict(part.get("margins"))),
        whole_run=_whole_run(as_dict(part.get("whole_run"))),
        started_us=as_number(part.get("started_us"), LATEST_US),
        written_us=as_number(part.get("written_us"), LATEST_US),
        dump_seconds=as_fraction(part.get("dump_seconds")),
    )
    return meta, _totals(devices, part.get("total_bytes"))


def _totals(devices: dict[int, DeviceMeta], listed: object) -> dict[int, int]:
    """Each device's memory: as listed, else as the device's own facts have it."""
    totals = {device: facts.total_bytes for device, facts in devices.items()}
    for device, total in by_device(listed):
        totals[device] = as_size(total) or totals.get(device)
    return {device: total for device, total in totals.items() if total is not None}


def _environment(settings: object) -> dict[str, str]:
    texts = {name: text_of(setting) for name, setting in as_dict(settings).items()}
    return {name: text for name, text in texts.items() if text}


def _device(value: object) -> DeviceMeta:
    entry = as_dict(value)
    return DeviceMeta(
        name=as_text(entry.get("name")),
        uuid=as_text(entry.get("uuid")),
        total_bytes=as_size(entry.get("total_bytes")),
        memory_fraction=as_fraction(entry.get("memory_fraction")),
        limit_bytes=as_size(entry.get("limit_bytes")),
        stats=counts_of(entry.get("stats"), _MOST_STATS),
    )


def _failure(entry: dict[str, Any]) -> FailureMeta:
    return FailureMeta(
        device=as_number(entry.get("device"), MOST_DEVICES),
        requested_bytes=as_number(entry.get("requested_bytes")),
        device_free_bytes=as_number(entry.get("device_free_bytes")),
        message=as_text(entry.get("message"), _LONGEST_MESSAGE),
        expression=as_text(entry.get("expression")),
        node=as_text(entry.get("node")),
        source=_source(as_list(entry.get("source"))[:_MOST_SOURCE]),
        while_handling=entry.get("while_handling") is True,
        padded_batch=_padded_batch(as_dict(entry.get("padded_batch"))),
        ignored_labels=_ignored_labels(as_dict(entry.get("ignored_labels"))),
        row_lengths=tuple(_row_lengths(as_list(entry.get("row_lengths"))[:_MOST_BATCHES])),
        idle_checkpointing=as_text(entry.get("idle_checkpointing")),
    )


def _padded_batch(entry: dict[str, Any]) -> PaddedBatch | None:
    rows, columns, used = (
        as_number(entry.get(name)) for name in ("rows", "columns", "used_columns")
    )
    if not rows or not columns or used is None or not 0 <= used < columns:
        return None
    return PaddedBatch(rows, columns, used)


def _ignored_labels(entry: dict[str, Any]) -> IgnoredLabels | None:
    rows, columns, ignored = (as_number(entry.get(name)) for name in ("rows", "columns", "ignored"))
    if not rows or not columns or not ignored or ignored > rows * columns:
        return None
    return IgnoredLabels(rows, columns, ignored)


def _row_lengths(entries: list[Any]) -> Iterator[RowLengths]:
    for entry in map(as_dict, entries):
        rows, longest, total = (as_number(entry.get(name)) for name in ("rows", "longest", "total"))
        if rows and longest and total and total <= rows * longest:
            yield RowLengths(rows, longest, total)


def _source(entries: list[Any]) -> dict[tuple[str, int], str]:
    """Texts by file and line."""
    lines = map(as_dict, entries)
    return {
        (text_of(line.get("file")), as_number(line.get("line")) or 0): text_of(line.get("text"))
        for line in lines
    }


def _decisions(part: dict[str, Any]) -> DecisionsMeta | None:
    entries = map(as_dict, as_list(part.get("made_up_decisions"))[:_MOST_DECISIONS])
    places = tuple(
        (text_of(entry.get("file")), as_number(entry.get("line")) or 0) for entry in entries
    )
    if not places:
        return None
    is_open = part.get("turns_are_open") is True
    return DecisionsMeta(places, as_size(part.get("sure_bytes")), is_open)


def _margins(entry: dict[str, Any]) -> PredictionMargins | None:
    share = as_fraction(entry.get("share"))
    outside = [as_size(size) for size in as_list(entry.get("outside_bytes"))[:2]]
    if share is None or len(outside) < 2 or None in outside:
        return None
    low, high = (size or 0 for size in outside)
    return PredictionMargins(share, (low, high), as_size(entry.get("not_modelled_bytes")) or 0)


def _whole_run(entry: dict[str, Any]) -> WholeRunMeta | None:
    peak, low, high, floor = (
        as_size(entry.get(f"{name}_bytes")) for name in ("peak_reserved", "low", "high", "floor")
    )
    if peak is None or low is None or floor is None or not low <= peak <= (high or peak):
        return None
    return WholeRunMeta(peak, low, high, floor)


def group_metas(value: object) -> tuple[GroupMeta, ...]:
    """The groups; each one's ranks are spans ``[first, count, step]``, or single numbers."""
    groups = []
    spans_left = _MOST_SPANS
    for group in as_list(value)[:_MOST_GROUPS]:
        if not isinstance(group, dict):
            continue
        read_spans = map(_span, as_list(group.get("ranks"))[:spans_left])
        spans = tuple(span for span in read_spans if span is not None)
        spans_left -= len(spans)
        if sum(count for _, count, _ in spans) <= MOST_RANKS:
            name = text_of(group.get("name"), _LONGEST_NAME)
            description = text_of(group.get("description"), _LONGEST_NAME)
            groups.append(GroupMeta(name, description, spans))
    return tuple(groups)


def _span(value: object) -> tuple[int, int, int] | None:
    """The first rank, how many and how far apart; one number is one rank."""
    parts = value if isinstance(value, list) and len(value) == 3 else (value, 1, 1)
    first, count, step = (as_number(part, MOST_RANKS) for part in parts)
    if first is None or not count or not step:
        return None
    return first, count, step
