"""What a recording says about itself, and what it does not."""

from __future__ import annotations

from vramlens.trace.meta import DeviceMeta, Meta


def test_what_nothing_is_said_of_is_empty() -> None:
    assert Meta().is_empty
    assert not Meta(rank=0).is_empty
    assert Meta(devices={0: DeviceMeta(name="H200")}).device(1) == DeviceMeta()
    assert Meta(devices={0: DeviceMeta(name="H200")}).device(0).name == "H200"
