"""The failure of a predicted program on a card, as the recording that a real run would have left."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from vramlens.capture.failure_facts.source_lines import source_at_failure
from vramlens.capture.triggers.ending_line import is_users
from vramlens.prediction.requests.served_requests import first_refused

if TYPE_CHECKING:
    from vramlens.prediction.full_cards.card_watch import FullCard, Room
    from vramlens.prediction.requests.request_log import RequestLog
    from vramlens.trace import WholeRunMeta


@dataclass(frozen=True, slots=True)
class CardFailure:
    """The failure on a card that is too small, or within the program's own limit.

    Attributes:
        snapshot: up to the request that failed, as ``torch.cuda.memory._snapshot`` gives it.
        meta, names: the recording's ``meta.json`` and ``names.json``.
    """

    snapshot: dict[str, Any]
    meta: dict[str, Any]
    names: dict[str, Any]


def card_failure(
    log: RequestLog,
    full_card: FullCard,
    meta: Mapping[str, Any],
    *,
    step_rows: Sequence[int],
    whole_run: WholeRunMeta,
    conf: str,
    outside_bytes: int,
) -> CardFailure | None:
    """The failure of a program on a card; None where the allocator refuses nothing.

    Args:
        log: all of the program's requests.
        full_card: the one that failed, and what the program held.
        meta: of the whole prediction's recording.
        step_rows: of each optimizer step, the row that followed it.
        whole_run: what the program needs to its end.
        conf: the allocator's settings.
        outside_bytes: what the process takes of a card beside the allocator.
    """
    room = full_card.room
    refused = None
    for last_row in (full_card.row, len(log.sizes) - 1):  # a compiled program gets there later
        refused = refused or first_refused(log, last_row, conf, meta["torch"], room.free_bytes)
    if refused is None:
        return None
    snapshot, stack = refused.snapshot, log.stacks[refused.row]
    requested_bytes = log.sizes[refused.row]
    reserved_bytes = sum(segment["total_size"] for segment in snapshot["segments"])
    device = _device(meta["devices"]["0"], room)
    free_bytes = max(0, device["total_bytes"] - outside_bytes - reserved_bytes)
    (events,) = snapshot["device_traces"]
    events.append(
        {
            "action": "oom",
            "device_free": free_bytes,
            "size": requested_bytes,
            "stream": log.streams[refused.row],
            "time_us": len(events) + 1,
            "compile_context": "N/A",
            "user_metadata": log.marks[refused.row],
            "frames": log.stack_table.stacks[stack],
        }
    )
    request = replace(
        full_card.request, requested_bytes=requested_bytes, device_free_bytes=free_bytes
    )
    source = source_at_failure(snapshot)
    step, noted_step = (bisect(step_rows, row) for row in (refused.row, full_card.row))
    if stack != log.stacks[full_card.row]:
        request = replace(request, expression=_line(events[-1]["frames"], source), node=None)
    if step != noted_step:  # it had another batch
        request = replace(request, padded_batch=None, ignored_labels=None, row_lengths=[])
    return CardFailure(
        snapshot=snapshot,
        meta={
            **meta,
            "total_bytes": {"0": device["total_bytes"]},
            "devices": {"0": device},
            "step": step,
            "whole_run": asdict(whole_run),
            "oom": {**request.to_dict(), "source": source},
        },
        names={"tensors": list(_at_addresses(full_card.tensors, refused.addresses))},
    )


def _at_addresses(
    tensors: Iterable[Mapping[str, Any]], addresses: Mapping[int, int]
) -> Iterator[dict[str, Any]]:
    """Yields the tensors of rows that have an address, with that."""
    for tensor in tensors:
        address = addresses.get(tensor["address"] - 1)
        if address is not None:
            yield {**tensor, "address": address}


def _line(frames: Sequence[Mapping[str, Any]], source: Sequence[Mapping[str, Any]]) -> str | None:
    """The innermost line of the program's own that asked, as its file has it."""
    texts = {(line["file"], line["line"]): line["text"] for line in source}
    places = ((frame["filename"], frame["line"]) for frame in frames)
    return next((texts[place] for place in places if is_users(place[0]) and place in texts), None)


def _device(card: Mapping[str, Any], room: Room) -> dict[str, Any]:
    """The device of a failure: the predicted card under the program's limit, or a smaller card."""
    if not room.is_own_limit:
        return {**card, "total_bytes": room.total_bytes}
    return {
        **card,
        "memory_fraction": room.total_bytes / card["total_bytes"],
        "limit_bytes": room.total_bytes,
    }
