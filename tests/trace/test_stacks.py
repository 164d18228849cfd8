"""Stacks, and which line of them is the user's."""

from __future__ import annotations

import pickle
import re

import pytest

from support.recordings import event, read, snapshot
from vramlens.trace import NO_STACK, NO_TEXT, Frame, Stacks
from vramlens.trace.stacks import is_user_file


def stacks(*lists: list[tuple[str, int, str]]) -> Stacks:
    """The stacks of a recording with one event a list."""
    frames = [[{"filename": f, "line": n, "name": name} for f, n, name in one] for one in lists]
    return read(
        pickle.dumps(
            snapshot([event("alloc", i, 1, frames=one) for i, one in enumerate(frames)], [])
        )
    ).stacks


@pytest.mark.parametrize(
    "file",
    [
        "train.py", "/home/me/project/model.py", "C:\\work\\train.py", "/data/torchish/train.py",
        "src/torch_tools/loss.py",
        "<ipython-input-3-abc>", "/home/me/lib/model.py", "/tmp/ipykernel_71/123.py",
        "flash_attn_interface.py",
    ],
)  # fmt: skip
def test_the_users_files(file: str) -> None:
    assert is_user_file(file)


@pytest.mark.parametrize(
    "file",
    [
        "", "??", "<string>", "<frozen runpy>", "<eval_with_key>.5", "/usr/lib/python3.11/threading.py",
        "/opt/conda/lib/python3.12/site-packages/torch/nn/modules/module.py",
        "/usr/lib/python3/dist-packages/x.py",
        "C:\\Python311\\Lib\\threading.py", "/src/pytorch/torch/nn/functional.py",
        "/src/pytorch/torch/_tensor.py",
        "/tmp/torchinductor_me/ab/cab.py", "CUDACachingAllocator.cpp", "/x/libtorch.so", "kernel.cu",
        "module.cpp:12",
    ],
)  # fmt: skip
def test_files_of_others(file: str) -> None:
    assert not is_user_file(file)


def test_equal_stacks_are_stored_once() -> None:
    a, b = [("a.py", 1, "f")], [("a.py", 1, "f"), ("b.py", 2, "g")]
    made = stacks(a, b, a, [], b)
    assert len(made) == 3
    assert len(made.frame_file) == 2
    assert made.of(1) == [Frame("a.py", 1, "f"), Frame("b.py", 2, "g")]
    assert made.of(2) == []
    assert made.of(NO_STACK) == []
    assert str(made.of(0)[0]) == "a.py:1 in f"


def test_the_user_line_is_the_innermost() -> None:
    torch = ("/x/site-packages/torch/nn/linear.py", 9, "forward")
    made = stacks(
        [torch, ("model.py", 5, "block"), ("train.py", 2, "step")],
        [torch],
        [],
        [("train.py", 2, "step"), torch],
    )
    lines = [str(made.frame(int(row))) if row >= 0 else "" for row in made.user_frame]
    assert lines == ["model.py:5 in block", "", "", "train.py:2 in step"]


def test_marked_frames() -> None:
    made = stacks([("a.py", 1, "f"), ("a.py", 2, "g")], [("a.py", 2, "g"), ("a.py", 1, "f")], [])
    flags = made.mark_frames(re.compile(r"a\.py:[fg]"))
    assert made.first_frame(flags).tolist() == [0, 1, -1]
    assert made.last_frame(flags).tolist() == [1, 0, -1]
    assert made.any_frame(made.mark_frames(re.compile("nothing"))).tolist() == [False] * 3


def test_texts() -> None:
    texts = stacks([("a.py", 1, "f")]).strings
    assert texts[NO_TEXT] == ""
    assert "a.py" in [texts[i] for i in range(len(texts))]


def test_a_recording_without_stacks() -> None:
    made = stacks()
    assert len(made) == 0
    assert made.user_frame.tolist() == []
