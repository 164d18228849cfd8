"""Checkpoints that a predicted program saves: kept in memory, as shapes, and never on disk.

A predicted program has no weights: a file of it would take the place of a checkpoint that has.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import OperatorRunner
else:
    from vramlens.ground.late_torch import torch

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


class _NotPlain(Exception):
    """An object that is more than tensors, numbers and containers."""


def put_saved_files(runner: OperatorRunner) -> None:
    """Makes ``torch.save`` and its like keep shapes, and ``torch.load`` give them back."""
    import torch  # the module itself: it is changed

    saved: dict[str, Any] = {}
    load = torch.load

    def save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        path = _path_of(f)
        if path is None:
            return
        try:
            saved[path] = _copied(obj, lambda tensor: _on_host(runner, tensor))
        except _NotPlain:
            saved.pop(path, None)

    def load_saved(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        path = _path_of(f)
        if path not in saved:
            return load(f, map_location, *args, **options)
        if isinstance(map_location, (str, torch.device)):
            return _copied(saved[path], lambda tensor: tensor.to(map_location))
        return _copied(saved[path], lambda tensor: tensor)

    torch.save, torch.load = save, load_saved
    _show_saved_files(saved)
    _put_safetensors(saved, save, load_saved)
    _put_distributed_checkpoints()


def _show_saved_files(saved: dict[str, Any]) -> None:
    """Makes files that were saved be there for a program that looks before it loads them."""

    def shown(plain: Callable[..., bool]) -> Callable[..., bool]:
        @functools.wraps(plain)
        def is_there(path: Any, *args: Any, **options: Any) -> bool:
            if plain(path, *args, **options):
                return True
            return bool(saved) and _path_of(path) in saved

        return is_there

    for place, names in ((os.path, ("exists", "isfile")), (Path, ("exists", "is_file"))):
        for name in names:
            setattr(place, name, shown(getattr(place, name)))


def _put_safetensors(
    saved: dict[str, Any], save: Callable[..., None], load: Callable[..., Any]
) -> None:
    if importlib.util.find_spec("safetensors") is None:
        return
    safetensors: Any = importlib.import_module("safetensors.torch")
    load_file = safetensors.load_file

    def save_file(tensors: Any, filename: Any, *args: Any, **options: Any) -> None:
        save(tensors, filename)

    def load_saved_file(filename: Any, device: Any = "cpu", *args: Any, **options: Any) -> Any:
        if _path_of(filename) in saved:
            return load(filename, str(device))
        return load_file(filename, device, *args, **options)

    safetensors.save_file = save_file
    safetensors.load_file = load_saved_file
    safetensors.save_model = lambda model, filename, *args, **options: save(
        model.state_dict(), filename
    )


def _put_distributed_checkpoints() -> None:
    if not torch.distributed.is_available():
        return
    checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")
    checkpoint.save = lambda *args, **options: None
    checkpoint.async_save = lambda *args, **options: None


def _path_of(file: Any) -> str | None:
    """A file's full path; None where it is none of the file system's."""
    if isinstance(file, (str, os.PathLike)):
        return os.path.realpath(file)
    return None


def _on_host(runner: OperatorRunner, tensor: Any) -> Any:
    """A tensor as a file keeps it: without the device that it was on."""
    tensor = tensor.detach()
    if not isinstance(tensor, runner.fake_tensor):
        return tensor.clone()
    return tensor if tensor.fake_device.type == "cpu" else tensor.cpu()


def _copied(value: Any, of_tensor: Callable[[Any], Any]) -> Any:
    """A copy of nested containers, each tensor replaced.

    Raises:
        _NotPlain: something is in it that is neither.
    """
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, dict):
        copies = {key: _copied(part, of_tensor) for key, part in value.items()}
        return type(value)(copies) if type(value) is dict else _same_kind(value, copies)
    if isinstance(value, (list, tuple)):
        parts = [_copied(part, of_tensor) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, _PLAIN):
        return value
    raise _NotPlain(type(value).__name__)


def _same_kind(value: Any, copies: dict[Any, Any]) -> Any:
    """An ordered dictionary with the metadata of a state."""
    from collections import OrderedDict

    if not isinstance(value, OrderedDict):
        raise _NotPlain(type(value).__name__)
    ordered = OrderedDict(copies)
    metadata = getattr(value, "_metadata", None)
    if metadata is not None:
        ordered._metadata = metadata  # type: ignore[attr-defined]
    return ordered
