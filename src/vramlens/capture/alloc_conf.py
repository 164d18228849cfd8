"""The allocator's settings in the environment: which variable PyTorch reads, and what in it PyTorch
would refuse.

Names, keys and rules: c10/core/AllocatorConfig.{h,cpp} and c10/cuda/CUDAAllocatorConfig.{h,cpp} of
PyTorch 2.11 and 2.13. There the first of the three variables that is set is read alone: nothing is
merged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vramlens.ground.conf_text import NEW_NAME, VARIABLES, conf_options, is_power_of_two


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The allocator's settings in the environment.

    Attributes:
        variable: the variable that this PyTorch reads; None where none is set that it would.
        text: its value.
        values: key and value as written.
        faults: why PyTorch would refuse it, one sentence each.
        notes: what is probably not meant.
    """

    variable: str | None
    text: str
    values: Mapping[str, str]
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def backend(self) -> str:
        """``native`` or ``cudaMallocAsync``, as the settings ask for it."""
        return self.values.get("backend", "native").replace("hip", "cuda")


def read_settings(
    environment: Mapping[str, str], version: tuple[int, int] | None = None, *, is_rocm: bool = False
) -> AllocatorSettings:
    """The settings that the allocator of a PyTorch version takes from an environment.

    Args:
        version: major and minor; None is taken for the newest.
        is_rocm: whether it is built for AMD GPUs, which alone reads PYTORCH_HIP_ALLOC_CONF.
    """
    settings = {name: environment[name] for name in VARIABLES if name in environment}
    read = [name for name in settings if _is_read(name, version, is_rocm)]
    notes = [_why_unread(name, version) for name in settings if name not in read]
    if len({settings[name] for name in read}) > 1:
        notes.append(_note_on_two(read, version))
    variable = next(iter(read), None)
    text = settings.get(variable or "", "")
    values, faults, doubts = _checked(text)
    return AllocatorSettings(
        variable=variable,
        text=text,
        values=values,
        faults=tuple(faults),
        notes=(*notes, *doubts),
    )


def _note_on_two(variables: list[str], version: tuple[int, int] | None) -> str:
    winner = "which one wins depends on the PyTorch version"
    if version is None or version > NEW_NAME:
        winner = f"{variables[0]} wins"
    return (
        f"{' and '.join(variables)} are both set to different values and are not merged: {winner}."
    )


def _is_read(name: str, version: tuple[int, int] | None, is_rocm: bool) -> bool:
    if name == "PYTORCH_ALLOC_CONF":
        return version is None or version >= NEW_NAME
    return is_rocm or name == "PYTORCH_CUDA_ALLOC_CONF"


def _why_unread(name: str, version: tuple[int, int] | None) -> str:
    if name == "PYTORCH_ALLOC_CONF" and version is not None:
        return (
            f"{name} is not read by PyTorch {version[0]}.{version[1]}: use PYTORCH_CUDA_ALLOC_CONF."
        )
    return f"{name} is for PyTorch built for AMD GPUs: use PYTORCH_CUDA_ALLOC_CONF."


def _checked(text: str) -> tuple[dict[str, str], list[str], list[str]]:
    values: dict[str, str] = {}
    faults: list[str] = []
    notes: list[str] = []
    for option in conf_options(text):
        key, _, setting = option.partition(":")
        if not setting:
            hint = " (write key:value, not key=value)" if "=" in option else ""
            faults.append(f"'{option}' has no value{hint}.")
            continue
        if key in values:
            notes.append(f"{key} is given twice; the last one counts.")
        values[key] = setting
        rule = _RULES.get(key)
        if rule is None:
            faults.append(f"'{key}' is not a setting of PyTorch 2.13.")
        elif not rule[0](setting):
            faults.append(f"{key}:{setting} is refused: {rule[1]}.")
    if values.get("backend", "native") != "native" and set(values) & _NATIVE_ONLY:
        ignored = ", ".join(sorted(set(values) & _NATIVE_ONLY))
        notes.append(f"{values['backend']} ignores {ignored}.")
    return values, faults, notes


def _is_flag(value: str) -> bool:
    return value in ("True", "False")


def _is_number_from(least: int) -> Callable[[str], bool]:
    return lambda value: re.fullmatch(r"[0-9]{1,18}", value) is not None and int(value) >= least


def _is_fraction(value: str) -> bool:
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and 0 < number < 1


def _is_share(value: str) -> bool:
    return value in ("0", "0.0", "1", "1.0") or _is_fraction(value)


def _is_power_of_two(value: str) -> bool:
    return re.fullmatch(r"[0-9]{1,18}", value) is not None and is_power_of_two(int(value))


def _is_division(value: str) -> bool:
    if not value.startswith("["):
        return _is_power_of_two(value)
    if not value.endswith("]"):
        return False
    for entry in filter(None, value[1:-1].split(",")):
        size, colon, parts = entry.partition(":")
        if (
            not colon
            or not (size == ">" or _is_power_of_two(size))
            or not (parts == "0" or _is_power_of_two(parts))
        ):
            return False
    return True


_FLAG = (_is_flag, "write True or False, with a capital letter")
_POSITIVE = (_is_number_from(1), "it must be a whole number of MiB")
_FROM_20 = (_is_number_from(20), "it must be at least 20 (MiB)")
_THREADS = (_is_power_of_two, "it must be a power of two")
_NATIVE = (
    lambda value: value in ("native", "cudaMallocAsync", "hipMallocAsync"),
    "use native or cudaMallocAsync",
)
_RULES: dict[str, tuple[Callable[[str], bool], str]] = {
    "backend": _NATIVE,
    "expandable_segments": _FLAG,
    "garbage_collection_threshold": (_is_fraction, "it must be between 0 and 1"),
    "graph_capture_record_stream_reuse": _FLAG,
    "large_segment_size_mb": _POSITIVE,
    "max_non_split_rounding_mb": _FROM_20,
    "max_split_size_mb": _FROM_20,
    "per_process_memory_fraction": (_is_share, "it must be between 0 and 1"),
    "pinned_free_catch_all": _FLAG,
    "pinned_max_cached_size_mb": _POSITIVE,
    "pinned_max_round_threshold_mb": _POSITIVE,
    "pinned_num_register_threads": _THREADS,
    "pinned_reserve_segment_size_mb": _POSITIVE,
    "pinned_use_background_threads": _FLAG,
    "pinned_use_cuda_host_register": _FLAG,
    "pinned_use_hip_host_register": _FLAG,
    "release_lock_on_cudamalloc": _FLAG,
    "release_lock_on_hipmalloc": _FLAG,
    "roundup_power2_divisions": (
        _is_division,
        "use powers of two, as in 4 or [256:1,512:2,>:4]",
    ),
    "throw_on_cudamalloc_oom": _FLAG,
}
_NATIVE_ONLY = {
    "expandable_segments",
    "garbage_collection_threshold",
    "max_split_size_mb",
    "roundup_power2_divisions",
}
