"""The text of the allocator's settings, cut up as PyTorch cuts it up.

Source: ConfigTokenizer in c10/core/AllocatorConfig.h of PyTorch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The environment's variables that hold it, in the order in which PyTorch looks."""


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
