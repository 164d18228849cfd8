"""A file that is loaded to the GPU as a whole, beside loads of what is used there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/resume.py"
READS: Frame = (f"{TORCH}/serialization.py", 1540, "load")
SAFETENSORS = "safetensors/torch.py"
INSTALLED = "/opt/lib/python3.12/site-packages"
OF_DEBIAN = "/usr/local/lib/python3.12/dist-packages"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "build"),),
    "load": ((f"{TORCH}/serialization.py", 2100, "persistent_load"), READS, (USER, 30, "resume")),
    "old format": (
        (f"{TORCH}/serialization.py", 1700, "_legacy_load"),
        READS,
        (USER, 31, "resume"),
    ),
    "safetensors": ((f"{INSTALLED}/{SAFETENSORS}", 380, "load_file"), (USER, 32, "resume")),
    "Debian's": ((f"{OF_DEBIAN}/{SAFETENSORS}", 380, "load_file"), (USER, 32, "resume")),
    "earlier load": (
        (f"{TORCH}/serialization.py", 2100, "persistent_load"),
        READS,
        (USER, 9, "begin"),
    ),
    "save": ((f"{TORCH}/serialization.py", 1000, "_save"), (USER, 40, "checkpoint")),
    "own module": ((f"/home/user/{SAFETENSORS}", 12, "load_file"), (USER, 41, "convert")),
    "own folder": (("/home/user/safetensors/convert.py", 12, "convert"),),
}


@pytest.mark.parametrize("part", ["load", "old format", "safetensors", "Debian's"])
def test_what_a_load_has_read_so_far(tmp_path: Path, part: str) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.weight", kind="parameter")
    for _ in range(4):
        run.asks(part, 50)
    finding = finding_of(run.fails(part, 50, tmp_path), "loaded_whole")
    assert finding is not None
    assert finding.bytes == 5 * 50 * MIB
    assert finding.place is not None
    assert finding.place.function == "resume"
    assert 'map_location="cpu"' in (finding.fix or "")


@pytest.mark.parametrize("part", ["save", "own folder", "own module"])
def test_what_reads_no_file(tmp_path: Path, part: str) -> None:
    """PyTorch saves with the same module, and a folder may be called like a library."""
    run = MadeRun(FRAMES)
    for _ in range(4):
        run.asks(part, 50)
    assert finding_of(run.fails(part, 50, tmp_path), "loaded_whole") is None


def test_an_earlier_load_of_the_same_script_is_in_use(tmp_path: Path) -> None:
    """A table of embeddings that the program goes on with, say."""
    run = MadeRun(FRAMES)
    run.asks("earlier load", 400)
    assert finding_of(run.fails("load", 50, tmp_path), "loaded_whole") is None


def test_models_that_are_loaded_whole_are_no_copies(tmp_path: Path) -> None:
    """``models = [torch.load(path) for path in paths]``: what was read is the models themselves."""
    run = MadeRun(FRAMES)
    for number in range(3):
        run.asks("load", 100, name=f"Net_{number}.weight", kind="parameter")
        run.asks("load", 50, name=f"Net_{number}.running_mean", kind="buffer")
    assert finding_of(run.fails("load", 50, tmp_path), "loaded_whole") is None
