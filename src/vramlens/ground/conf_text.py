"""The text of the allocator's settings, cut up as PyTorch cuts it up; the keys that it may hold.

Source: ConfigTokenizer in c10/core/AllocatorConfig.h of PyTorch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The environment's variables that hold it, in the order in which PyTorch looks."""
NEW_NAME = (2, 9)
"""The first version of PyTorch that reads PYTORCH_ALLOC_CONF; which one comes first was settled
in the next.
"""

SIMULATED_KEYS = (
    "backend", "expandable_segments", "garbage_collection_threshold", "large_segment_size_mb",
    "max_non_split_rounding_mb", "max_split_size_mb", "per_process_memory_fraction", "roundup_power2_divisions",
    "throw_on_cudamalloc_oom",
)  # fmt: skip
"""Keys of PyTorch 2.13 that have an effect on what a replay simulates."""
OTHER_KEYS = frozenset((
    "graph_capture_record_stream_reuse", "pinned_free_catch_all", "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb", "pinned_num_register_threads", "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads", "pinned_use_cuda_host_register", "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
))  # fmt: skip
"""Its other keys."""
NEWER_KEYS = frozenset(("expandable_segments_reserve", "expandable_segments_reserve_by_class"))
"""Keys that only newer versions know, without such an effect."""


def variable_of(version: str | None) -> str:
    """The variable to set for a version of PyTorch: its present name where that is surely read."""
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    is_new = numbers is not None and (int(numbers[1]), int(numbers[2])) >= NEW_NAME
    return "PYTORCH_ALLOC_CONF" if is_new else "PYTORCH_CUDA_ALLOC_CONF"


def installed_variable() -> str:
    """The variable to set for the PyTorch that is installed, by its metadata: nothing is imported."""
    import importlib.metadata

    try:
        return variable_of(importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return variable_of(None)


def conf_tokens(conf: str) -> list[str]:
    """The tokens of a text: separators are tokens of their own, white space is dropped."""
    return re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"[ \t\n\v\f\r]", "", conf))


def conf_options(conf: str) -> list[str]:
    """The options of a text: the pieces between commas, those in brackets kept together."""
    options = [""]
    is_in_brackets = False
    for token in conf_tokens(conf):
        if token in ("[", "]"):
            is_in_brackets = token == "["
        if token == "," and not is_in_brackets:
            options.append("")
        else:
            options[-1] += token
    return [option for option in options if option]


def is_power_of_two(number: int) -> bool:
    """True for 1, 2, 4 and so on."""
    return number.bit_count() == 1 and number > 0


def recorded_conf(settings: Mapping[str, Any]) -> str:
    """The text of the settings that a recording was made under, as its snapshot gives it."""
    for key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        if isinstance(value := settings.get(key), str) and value:
            return value
    return ""
