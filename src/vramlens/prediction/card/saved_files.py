"""Checkpoints that a predicted program saves: kept in memory, as shapes, and never on disk.

A predicted program has no weights: a file of it would take the place of a checkpoint that has.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.prediction.card.older_files import OlderFiles
from vramlens.prediction.card.open_tensors import OpenTensors
from vramlens.prediction.card.patched_tensors import after_import
from vramlens.prediction.card.saved_paths import SavedFiles, show_saved_files

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import OperatorRunner
else:
    from vramlens.ground.late_torch import torch

_SAVED_ON = "vramlens_saved_on"
"""Of a tensor's copy: the device that it was saved from, where a load puts it back."""


def put_saved_files(runner: OperatorRunner) -> None:
    """Makes ``torch.save`` and its like keep shapes, and ``torch.load`` give them back."""
    import torch  # the module itself: it is changed

    files = SavedFiles()
    load = torch.load

    def save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        files.keep(f, _copied(obj, _Once(lambda tensor: _on_host(runner, tensor), _memory_of)))

    def load_saved(f: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        saved = files.of(f)
        if saved is not None:
            return _copied(saved.content, _Once(lambda tensor: _at(tensor, map_location), id))
        read = _ReadFile(map_location)
        content = load(f, read.on_host, *args, **options)
        return _copied(content, _Once(read.placed, _memory_of))

    code = getattr(load, "__code__", None)
    if code is not None:  # the program may have put something else in its place
        frame = {"filename": code.co_filename, "line": code.co_firstlineno, "name": code.co_name}
        runner.log.stack_table.stand_ins[load_saved.__code__] = frame
    torch.save, torch.load = save, load_saved
    OlderFiles().keep()
    show_saved_files(files)
    _put_safetensors(files, save)
    _put_distributed_checkpoints()
    after_import("lightning.fabric.utilities.cloud_io", _put_lightning)
    after_import("lightning_fabric.utilities.cloud_io", _put_lightning)


class _ReadFile:
    """A file on disk whose tensors are read on the CPU, and moved as ``torch.load`` would."""

    def __init__(self, map_location: Any) -> None:
        self._map_location = map_location
        self._saved_on: dict[int, str] = {}

    def on_host(self, storage: Any, location: str) -> Any:
        """The storage itself; notes where it was saved."""
        self._saved_on[storage._cdata] = location
        return storage

    def placed(self, tensor: Any) -> Any:
        """A tensor where the program wants it."""
        if tensor.layout is not torch.strided:
            return tensor
        location = self._saved_on.get(tensor.untyped_storage()._cdata, "cpu")
        return _moved(tensor, location, self._map_location)


def _at(tensor: Any, map_location: Any) -> Any:
    """A saved tensor where ``torch.load`` puts it."""
    return _moved(tensor, getattr(tensor, _SAVED_ON, "cpu"), map_location)


def _moved(tensor: Any, saved_on: str, map_location: Any) -> Any:
    if isinstance(map_location, dict):
        map_location = map_location.get(saved_on, saved_on)
    elif callable(map_location):
        map_location = "cpu"  # lambda storage, place: storage
    return tensor.to(saved_on if map_location is None else map_location)


def _put_safetensors(files: SavedFiles, save: Callable[..., None]) -> None:
    if importlib.util.find_spec("safetensors") is None:
        return
    safetensors: Any = importlib.import_module("safetensors")
    of_torch: Any = importlib.import_module("safetensors.torch")
    open_file = safetensors.safe_open

    def open_saved(filename: Any, framework: str, *args: Any, **options: Any) -> Any:
        saved = files.of(filename)
        if saved is None:
            return open_file(filename, framework, *args, **options)
        device = args[0] if args else options.get("device")
        return OpenTensors(saved.content, device or "cpu")

    for module in (safetensors, of_torch):
        module.safe_open = open_saved
    of_torch.save_file = lambda tensors, filename, *args, **options: save(tensors, filename)
    of_torch.save_model = lambda model, filename, *args, **options: save(
        model.state_dict(), filename
    )


def _put_lightning(cloud_io: Any) -> None:
    """Has Lightning save and load as a script does: it writes the bytes of a checkpoint itself,
    over the one that is there.
    """
    load = cloud_io._load

    def load_saved(path: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        is_path = isinstance(path, (str, os.PathLike))
        if is_path and os.path.exists(path) and not os.path.lexists(path):  # kept in memory only
            return torch.load(path, map_location)
        return load(path, map_location, *args, **options)

    cloud_io._atomic_save = lambda checkpoint, filepath: torch.save(checkpoint, filepath)
    cloud_io._load = load_saved


def _put_distributed_checkpoints() -> None:
    if not torch.distributed.is_available():
        return
    checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")
    checkpoint.save = lambda *args, **options: None
    checkpoint.async_save = lambda *args, **options: None


def _on_host(runner: OperatorRunner, tensor: Any) -> Any:
    """A tensor as a file keeps it, with the name of the device that it was on."""
    tensor = tensor.detach()
    if not isinstance(tensor, runner.fake_tensor):
        return tensor.clone()
    if tensor.fake_device.type == "cpu":
        return tensor
    copied = tensor.cpu()
    setattr(copied, _SAVED_ON, "cuda:0")
    return copied


class _Once:
    """A function of tensors that is called once for those with one key: tied weights stay tied."""

    def __init__(self, function: Callable[[Any], Any], key: Callable[[Any], Any]) -> None:
        self._function, self._key = function, key
        self._results: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, tensor: Any) -> Any:
        key = self._key(tensor)
        if key not in self._results:
            self._results[key] = self._function(tensor), tensor  # which keeps its key its own
        return self._results[key][0]


def _memory_of(tensor: Any) -> Any:
    if tensor.layout is not torch.strided:
        return id(tensor)
    address = tensor.untyped_storage()._cdata
    return address, tensor.storage_offset(), tuple(tensor.shape), tensor.dtype


def _copied(value: Any, of_tensor: Callable[[Any], Any]) -> Any:
    """A copy of nested containers and modules, each tensor replaced."""
    if isinstance(value, torch.nn.Parameter):
        return _parameter(of_tensor(value), requires_grad=value.requires_grad)
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, OrderedDict):
        return _same_kind(value, of_tensor)
    if type(value) is dict:
        return {key: _copied(part, of_tensor) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(part, of_tensor) for part in value)
    if isinstance(value, torch.nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
        return copy.deepcopy(value, {id(tensor): _copied(tensor, of_tensor) for tensor in tensors})
    return value


def _parameter(tensor: Any, *, requires_grad: bool) -> Any:
    """A parameter of a tensor, with the device that it was saved from."""
    parameter = torch.nn.Parameter(tensor, requires_grad)
    saved_on = getattr(tensor, _SAVED_ON, None)
    if saved_on is not None:
        setattr(parameter, _SAVED_ON, saved_on)
    return parameter


def _same_kind(value: Any, of_tensor: Callable[[Any], Any]) -> Any:
    """An ordered dictionary with the metadata of a state."""
    ordered = OrderedDict((key, _copied(part, of_tensor)) for key, part in value.items())
    metadata = getattr(value, "_metadata", None)
    if metadata is not None:
        ordered._metadata = metadata  # type: ignore[attr-defined]
    return ordered
