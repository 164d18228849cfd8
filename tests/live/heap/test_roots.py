"""What is the user's own, and what is a library's."""

from __future__ import annotations

import sys
import types

import pytest

pytest.importorskip("torch")

from vramlens.live.heap.roots import all_roots


def test_what_a_library_makes_by_hand_is_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.ops`` has no file, as a notebook's modules have none; it holds 34,531 objects."""
    monkeypatch.setitem(sys.modules, "by_hand", types.ModuleType("by_hand"))
    tiers = {root.name: root.tier for root in all_roots() if root.kind == "module"}
    assert tiers["torch.ops"] == 1
    assert tiers["by_hand"] == 0
