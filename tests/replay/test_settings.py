"""Settings as PyTorch reads them; what the accelerator part of torch itself says, where torch is
there.
"""

from __future__ import annotations

import pytest

from vramlens.replay import SettingsError, parse_settings
from vramlens.replay.settings import UNLIMITED, recorded_settings
from vramlens.replay.versions import VERSIONS, version_named
from vramlens.units import MIB


def test_defaults() -> None:
    found = parse_settings("")
    assert not found.expandable_segments
    assert found.max_split_size == UNLIMITED
    assert found.large_segment_size == found.max_non_split_rounding_size == 20 * MIB
    assert set(found.roundup_power2_divisions) == {0}


def test_every_key() -> None:
    found = parse_settings(
        "expandable_segments:True, max_split_size_mb : 64,garbage_collection_threshold:0.6,"
        "max_non_split_rounding_mb:50,large_segment_size_mb:40,per_process_memory_fraction:0.5,"
        "throw_on_cudamalloc_oom:True,backend:native,pinned_use_background_threads:True"
    )
    assert found.expandable_segments
    assert found.throw_on_cudamalloc_oom
    assert (found.max_split_size, found.max_non_split_rounding_size) == (64 * MIB, 50 * MIB)
    assert (found.large_segment_size, found.garbage_collection_threshold) == (40 * MIB, 0.6)
    assert found.per_process_memory_fraction == 0.5
    assert found.ignored == ("pinned_use_background_threads",)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("4", dict.fromkeys(range(16), 4)),
        (
            "[256:1,512:2,1024:4,>:8]",
            {**dict.fromkeys(range(9), 1), 9: 2, 10: 4, **dict.fromkeys(range(11, 16), 8)},
        ),
        ("[4:2,64:8]", {0: 2, 1: 2, 2: 2, 3: 0, 4: 0, 5: 0, 6: 8, 7: 0}),
        ("[65536:2]", {0: 2, 15: 2}),
    ],
)
def test_divisions_by_interval(text: str, slots: dict[int, int]) -> None:
    found = parse_settings(f"roundup_power2_divisions:{text}").roundup_power2_divisions
    assert {slot: found[slot] for slot in slots} == slots


def test_older_versions_overwrite_the_last_interval() -> None:
    old = parse_settings("roundup_power2_divisions:[256:1,512:2,>:8]", version_named("2.6.0"))
    assert old.roundup_power2_divisions[8:11] == (1, 8, 8)


REFUSED = {
    "max_split_size_mb:3": "CachingAllocator option max_split_size_mb too small, must be >= 20",
    "max_split_size_mb:64,large_segment_size_mb:80": "CachingAllocator option max_split_size_mb too small, must be >= 80",
    "max_non_split_rounding_mb:19": "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20",
    "large_segment_size_mb:10": "CachingAllocator option large_segment_size_mb must be > 10 MB",
    "garbage_collection_threshold:1.0": "garbage_collect_threshold is invalid, set it in (0.0, 1.0)",
    "roundup_power2_divisions:3": "For roundups, the divisions has to be power of 2",
    "roundup_power2_divisions:[256:3]": "the divisions has to be power of 2 or 0 to disable roundup",
    "roundup_power2_divisions:[255:4]": "For roundups, the intervals have to be power of 2",
    "expandable_segments:true": "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'",
    "max_split_size_mb": "Index out of bounds in ConfigTokenizer",
    "max_split_size_mb:abc": "stoull",
    "garbage_collection_threshold:abc": "stod",
}
BY_THE_CUDA_PART = {
    "bogus:1": "Unrecognized key 'bogus' in CUDA allocator config.",
    "per_process_memory_fraction:2": "per_process_memory_fraction is invalid, set it in [0.0, 1.0]",
    "backend:other": "Unknown allocator backend, options are native and cudaMallocAsync",
}


@pytest.mark.parametrize("conf", [*REFUSED, *BY_THE_CUDA_PART])
def test_what_pytorch_refuses_is_refused_in_its_words(conf: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(conf)
    assert (REFUSED | BY_THE_CUDA_PART)[conf] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_allocator_is_no_setting() -> None:
    with pytest.raises(SettingsError, match="another allocator"):
        parse_settings("backend:cudaMallocAsync")


def test_the_recorded_table_counts_more_than_the_text() -> None:
    found = recorded_settings(
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": -1}, VERSIONS[0]
    )
    assert found.max_split_size == UNLIMITED


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2.13.0", "2.13 and newer"),
        ("2.11.0+cu130", "2.11"),
        ("2.5.1", "2.9 and older"),
        ("3.0", "2.13 and newer"),
    ],
)
def test_versions_by_number(version: str, name: str) -> None:
    assert version_named(version).name == name
