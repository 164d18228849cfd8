"""The allocator's settings in the environment, as PyTorch's parser takes them."""

from __future__ import annotations

import pytest

from vramlens.capture.alloc_conf import read_settings

CUDA, HIP, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "expandable_segments:True",
        " max_split_size_mb : 128 , garbage_collection_threshold:0.8 ",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],expandable_segments:False",
        "roundup_power2_divisions:4",
        "backend:cudaMallocAsync",
        "pinned_num_register_threads:8,pinned_use_cuda_host_register:True",
        "per_process_memory_fraction:0.5",
    ],
)
def test_what_pytorch_takes(text: str) -> None:
    assert read_settings({NEW: text}).faults == ()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("max_split_size_mb=40", "key:value"),
        ("expandable_segments", "no value"),
        ("expandable_segments:true", "capital"),
        ("max_split_size_mb:5", "at least 20"),
        ("garbage_collection_threshold:1.5", "between 0 and 1"),
        ("garbage_collection_threshold:nan", "between 0 and 1"),
        ("roundup_power2_divisions:3", "powers of two"),
        ("roundup_power2_divisions:[256:3]", "powers of two"),
        ("roundup_power2_divisions:[256:2", "powers of two"),
        ("backend:mine", "native"),
        ("bogus:1", "not a setting"),
        ("max_split_size_mb:40;expandable_segments:True", "refused"),
    ],
)
def test_what_pytorch_refuses(text: str, word: str) -> None:
    faults = read_settings({CUDA: text}).faults
    assert len(faults) == 1
    assert word in faults[0]


def test_which_variable_is_read() -> None:
    both = {NEW: "max_split_size_mb:40", CUDA: "max_split_size_mb:50"}
    new = read_settings(both, (2, 11))
    assert (new.variable, new.values["max_split_size_mb"]) == (CUDA, "50")
    assert "PYTORCH_CUDA_ALLOC_CONF wins" in new.notes[0]
    assert "depends" in read_settings(both, (2, 9)).notes[0]
    old = read_settings({NEW: "max_split_size_mb:40"}, (2, 8))
    assert old.variable is None
    assert "not read by PyTorch 2.8" in old.notes[0]
    assert read_settings({NEW: "a:1", CUDA: "a:1"}).notes == ()


def test_amd() -> None:
    assert read_settings({HIP: "expandable_segments:True"}, (2, 11), is_rocm=True).variable == HIP
    found = read_settings({HIP: "expandable_segments:True"}, (2, 11))
    assert found.variable is None
    assert "AMD" in found.notes[0]
    assert read_settings({HIP: "backend:hipMallocAsync"}, is_rocm=True).backend == "cudaMallocAsync"


def test_doubts() -> None:
    notes = read_settings(
        {CUDA: "backend:cudaMallocAsync,max_split_size_mb:40,max_split_size_mb:50"}
    ).notes
    assert any("given twice" in note for note in notes)
    assert any("ignores max_split_size_mb" in note for note in notes)
