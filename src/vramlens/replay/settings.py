"""The allocator's settings, read as PyTorch reads them, with PyTorch's own words where it refuses
them.

Source: c10/core/AllocatorConfig.cpp (AcceleratorAllocatorConfig::parseArgs),
    c10/cuda/CUDAAllocatorConfig.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vramlens.errors import UsageError
from vramlens.ground.allocator_sizes import LARGE_REQUEST, LARGE_SEGMENT
from vramlens.ground.conf_text import (
    NEWER_KEYS,
    OTHER_KEYS,
    conf_tokens,
    is_power_of_two,
    recorded_conf,
)
from vramlens.replay.versions import VERSIONS, Version
from vramlens.units import MIB

UNLIMITED = 2**64 - 1
_INTERVALS = 16
_MOST = UNLIMITED // MIB

_WITHOUT_EFFECT = OTHER_KEYS | NEWER_KEYS
"""Keys that change nothing that a replay simulates."""


class SettingsError(UsageError):
    """PyTorch would refuse these settings; the text holds its own words."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One set of allocator settings; names and defaults are PyTorch's.

    Attributes:
        conf: the text, as it was given.
        per_process_memory_fraction: None where not set.
    """

    conf: str = field(default="", compare=False)
    expandable_segments: bool = False
    max_split_size: int = UNLIMITED
    max_non_split_rounding_size: int = LARGE_SEGMENT
    large_segment_size: int = LARGE_SEGMENT
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    garbage_collection_threshold: float = 0.0
    per_process_memory_fraction: float | None = None
    throw_on_cudamalloc_oom: bool = False
    ignored: tuple[str, ...] = field(default=(), compare=False)

    def native(self, version: Version, **limits: int) -> dict[str, Any]:
        """The fields of vl_replay_settings (native/vramlens.h); ``limits``: allowed_maximum,
        capacity, reserve ...
        """
        return {
            "expandable_segments": self.expandable_segments,
            "tie_order": version.tie_order,
            "scope_suppresses_release": version.scope_suppresses_release,
            "max_split_size": self.max_split_size,
            "max_non_split_rounding_size": self.max_non_split_rounding_size,
            "large_segment_size": self.large_segment_size,
            "roundup_power2_divisions": self.roundup_power2_divisions,
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "allowed_maximum": UNLIMITED,
            "capacity": UNLIMITED,
            "reject_above": UNLIMITED,
            "reserve": 2**42,
        } | limits


def parse_settings(conf: str, version: Version = VERSIONS[0]) -> Settings:
    """The settings that a text such as ``expandable_segments:True,max_split_size_mb:128`` means.

    Raises:
        SettingsError: PyTorch would refuse it.
    """
    try:
        return _Parser(conf, version).parse()
    except _Refused as error:
        raise SettingsError(f"{conf!r}: PyTorch refuses it: {error}") from None


class _Refused(Exception):
    """What PyTorch says."""


class _Parser:
    def __init__(self, conf: str, version: Version) -> None:
        self._conf, self._version = conf, version
        self._tokens = conf_tokens(conf)
        self._divisions = [0] * _INTERVALS
        self._ignored: list[str] = []

    def parse(self) -> Settings:
        settings = Settings(conf=self._conf)
        tokens = self._tokens
        for at, key in enumerate(tokens):  # first of all, wherever it stands
            if key == "large_segment_size_mb" and self._version.large_segment_option:
                size = self._number(at + 2)
                if size <= LARGE_REQUEST // MIB:
                    raise _Refused(
                        "CachingAllocator option large_segment_size_mb must be >"
                        f" {LARGE_REQUEST // MIB} MB"
                    )
                settings = replace(settings, large_segment_size=min(size, _MOST) * MIB)
        settings = replace(settings, max_non_split_rounding_size=settings.large_segment_size)
        at = 0
        while at < len(tokens):
            settings, at = self._option(settings, tokens[at], at)
            at += 1
            if at < len(tokens):
                self._expect(at, ",")
                at += 1
        return replace(
            settings, roundup_power2_divisions=tuple(self._divisions), ignored=tuple(self._ignored)
        )

    def _option(self, settings: Settings, key: str, at: int) -> tuple[Settings, int]:
        """The settings with one option more, and the place of its last token."""
        value_at = at + 2
        if key in {",", ":", "[", "]"}:
            raise _Refused(f"Unrecognized key '{key}' in CUDA allocator config.")
        self._expect(at + 1, ":")
        if key == "large_segment_size_mb" and self._version.large_segment_option:
            return settings, value_at
        if key == "roundup_power2_divisions":
            return settings, self._parse_divisions(value_at)
        if key == "backend":
            self._check_backend(self._token(value_at))
            return settings, value_at
        if key in _WITHOUT_EFFECT:
            self._ignored.append(key)
            return settings, self._skip(value_at)
        return self._valued_option(settings, key, value_at), value_at

    def _valued_option(self, settings: Settings, key: str, at: int) -> Settings:
        """The settings with an option of one value."""
        if key == "max_split_size_mb":
            return replace(settings, max_split_size=self._at_least_a_segment(settings, key, at))
        if key == "max_non_split_rounding_mb":
            size = self._at_least_a_segment(settings, key, at)
            return replace(settings, max_non_split_rounding_size=size)
        if key == "garbage_collection_threshold":
            threshold = self._real(at)
            if not 0 < threshold < 1:
                raise _Refused("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
            return replace(settings, garbage_collection_threshold=threshold)
        if key == "per_process_memory_fraction":
            fraction = self._real(at)
            if not 0 <= fraction <= 1:
                raise _Refused("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
            return replace(settings, per_process_memory_fraction=fraction)
        if key == "expandable_segments":
            return replace(settings, expandable_segments=self._truth(at))
        if key == "throw_on_cudamalloc_oom":
            return replace(settings, throw_on_cudamalloc_oom=self._truth(at))
        raise _Refused(f"Unrecognized key '{key}' in CUDA allocator config.")

    def _check_backend(self, name: str) -> None:
        if name == "cudaMallocAsync":
            raise SettingsError(
                "backend:cudaMallocAsync is another allocator, inside the driver: vramlens cannot"
                " replay it"
            )
        if name != "native":
            raise _Refused("Unknown allocator backend, options are native and cudaMallocAsync")

    def _at_least_a_segment(self, settings: Settings, key: str, at: int) -> int:
        size, least_mib = self._number(at), settings.large_segment_size // MIB
        if size < least_mib:
            raise _Refused(f"CachingAllocator option {key} too small, must be >= {least_mib}")
        return min(size, _MOST) * MIB

    def _parse_divisions(self, at: int) -> int:
        """Reads roundup_power2_divisions, one number or a list by interval; the place of its
        last token.
        """
        if self._token(at) != "[":
            divisions = self._number(at)
            if not is_power_of_two(divisions):
                raise _Refused("For roundups, the divisions has to be power of 2 ")
            self._divisions = [divisions] * _INTERVALS
            return at
        is_first, last = True, 0
        at += 1
        while self._token(at) != "]":
            interval = self._token(at)
            self._expect(at + 1, ":")
            divisions = self._number(at + 2)
            if divisions and not is_power_of_two(divisions):
                raise _Refused(
                    "For roundups, the divisions has to be power of 2 or 0 to disable roundup "
                )
            if interval == ">":
                start = last if self._version.overwrites_last_interval else last + 1
                self._divisions[start:] = [divisions] * (_INTERVALS - start)
            else:
                last = self._interval(at)
                if is_first:
                    self._divisions[:last] = [divisions] * last
                    is_first = False
                self._divisions[last] = divisions
            at += 3
            if self._token(at) == ",":
                at += 1
        return at

    def _interval(self, at: int) -> int:
        """The place of the interval that begins at a boundary."""
        boundary = self._number(at)
        if not is_power_of_two(boundary):
            raise _Refused("For roundups, the intervals have to be power of 2 ")
        return min(boundary.bit_length() - 1, _INTERVALS - 1)

    def _skip(self, at: int) -> int:
        if self._token(at) == "[":
            while self._token(at) != "]":
                at += 1
        return at

    def _token(self, at: int) -> str:
        if at >= len(self._tokens):
            raise _Refused("Index out of bounds in ConfigTokenizer")
        return self._tokens[at]

    def _expect(self, at: int, token: str) -> None:
        if self._token(at) != token:
            raise _Refused(f"expected '{token}' but got '{self._tokens[at]}'")

    def _number(self, at: int) -> int:
        digits = re.match(r"[0-9]+", self._token(at))  # std::stoull
        if digits is None:
            raise _Refused(f"'{self._tokens[at]}' is not a whole number (stoull)")
        if int(digits[0]) > UNLIMITED:
            raise _Refused(f"'{self._tokens[at]}' is too large (stoull)")
        return int(digits[0])

    def _real(self, at: int) -> float:
        # As std::stod.
        digits = re.match(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", self._token(at))
        if digits is None:
            raise _Refused(f"'{self._tokens[at]}' is not a number (stod)")
        return float(digits[0])

    def _truth(self, at: int) -> bool:
        token = self._token(at)
        if token not in ("True", "False"):
            raise _Refused(
                f"Expected 'True' or 'False' at index {at} in ConfigTokenizer but got '{token}'"
            )
        return token == "True"


def recorded_settings(settings: Mapping[str, Any], version: Version) -> Settings:
    """The settings that a recording was made under: those that the allocator held, the others
    from the text.
    """
    conf = recorded_conf(settings)
    try:
        parsed = parse_settings(conf, version)
    except SettingsError:
        # Of a version with other options: what the allocator held is still known.
        parsed = Settings(conf=conf)
    changes: dict[str, Any] = {}
    size = settings.get("max_split_size")
    if isinstance(size, int):
        changes["max_split_size"] = size if size > 0 else UNLIMITED
    threshold = settings.get("garbage_collection_threshold")
    if isinstance(threshold, float):
        changes["garbage_collection_threshold"] = threshold
    expandable = settings.get("expandable_segments")
    if isinstance(expandable, bool):
        changes["expandable_segments"] = expandable
    table = settings.get("roundup_power2_divisions")
    if isinstance(table, dict):
        changes["roundup_power2_divisions"] = _recorded_divisions(table)
    return replace(parsed, **changes)


def _recorded_divisions(table: Mapping[str, Any]) -> tuple[int, ...]:
    divisions = [table.get(str(1 << slot)) for slot in range(_INTERVALS)]
    return tuple(count if isinstance(count, int) and count > 0 else 0 for count in divisions)
