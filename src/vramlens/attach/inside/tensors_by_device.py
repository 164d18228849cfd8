"""What is in tensors on each device: bytes by kind, and the largest tensors by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from vramlens.capture.names.tensor_names import NamedTensor
from vramlens.live.heap.tensors import Storage
from vramlens.live.holder_table import HeldNow

_UNNAMED_KIND = "tensor"
_CPU = "cpu"


def tensors_by_device(
    held: HeldNow, named: Mapping[str, Iterable[NamedTensor]], most: int
) -> list[dict[str, Any]]:
    """A part of the answer for each device, GPUs first: ``device``, ``bytes`` and ``storages`` of
    all tensors, the same by kind, and the largest with their names.

    Args:
        held: all there is; every storage counts once.
        named: those of it that have a name, by kind of device.
        most: how many of the largest are told.
    """
    names = {
        (_device_name(kind, tensor.device), tensor.address, tensor.bytes): tensor
        for kind, tensors in named.items()
        for tensor in tensors
    }
    devices: dict[str, list[Storage]] = {}
    for storage in held.storages:
        devices.setdefault(storage.device, []).append(storage)
    return [
        _of_device(device, devices[device], names, held.looks, most)
        for device in sorted(devices, key=lambda name: (name == _CPU, name))
    ]


def _device_name(kind: str, index: int) -> str:
    return kind if index < 0 else f"{kind}:{index}"


def _of_device(
    device: str,
    storages: list[Storage],
    names: Mapping[tuple[str, int, int], NamedTensor],
    looks: Mapping[Storage, str],
    most: int,
) -> dict[str, Any]:
    bytes_by_kind: Counter[str] = Counter()
    storages_by_kind: Counter[str] = Counter()
    for storage in storages:
        kind = names[storage].kind if storage in names else _UNNAMED_KIND
        bytes_by_kind[kind] += storage.size_bytes
        storages_by_kind[kind] += 1
    largest = sorted(storages, key=lambda storage: -storage.size_bytes)[:most]
    return {
        "device": device,
        "bytes": sum(bytes_by_kind.values()),
        "storages": len(storages),
        "bytes_by_kind": dict(bytes_by_kind.most_common()),
        "storages_by_kind": dict(storages_by_kind),
        "tensors": [_row(storage, names.get(storage), looks) for storage in largest],
        "named_tensors": sum(storage in names for storage in storages),
    }


def _row(
    storage: Storage, named: NamedTensor | None, looks: Mapping[Storage, str]
) -> dict[str, Any]:
    return {
        "name": looks.get(storage, "") if named is None else named.name,
        "kind": _UNNAMED_KIND if named is None else named.kind,
        "bytes": storage.size_bytes,
    }
