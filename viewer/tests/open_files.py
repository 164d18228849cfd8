"""Writes the page that opens files, the files that its tests drop onto it, and what must come of them.

    python viewer/tests/open_files.py FOLDER

``files.json`` has, by file, the bytes at the peak as ``explain`` gives them, or what the page must say of it.
Beside each of some recordings lies ``NAME.view``: the data that ``vramlens view`` makes of it.
"""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "view")]
if any((ROOT / "src" / "vramlens").glob("libvramlens.*")):
    sys.path.insert(0, str(ROOT / "src"))
if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from test_page import hostile  # noqa: E402

from support.recordings import DATA, block, dump_slowly, event, segment, snapshot  # noqa: E402
from vramlens import api  # noqa: E402
from vramlens.view.file_opener import file_opener_page  # noqa: E402
from vramlens.view.page import data_of  # noqa: E402

MADE = ("endless_lines.pickle",)
"""Recordings that are made here and compared as those of the checkout are."""
COMPARED = (
    "recordings/streams.pickle.xz",
    "recordings/graphs.pickle.xz",
    "recordings/gpt_annotated.pickle.xz",
    "recordings/leak_outputs.pickle.xz",
    "found/gan.pickle.xz",
    "found/inference_kv.pickle.xz",
    "recordings/oom_train_expandable.pickle.xz",
    "found/compiled_fx.pickle.xz",
    "found/cpp_stacks.pickle.xz",
    "found/late_start.pickle.xz",
    "captured/steps.vram",
    "captured/ddp-rank1.vram",
    "captured/oom_really_full.vram",
)
"""Recordings of different kinds, whose prepared data are compared column by column."""


def main() -> None:
    """Every file, and what is expected."""
    folder = Path(sys.argv[1])
    (folder / "open.html").write_text(file_opener_page(), encoding="utf-8")
    expected = {**readable(folder), **refused(folder)}
    (folder / "files.json").write_text(json.dumps(expected))
    for name in COMPARED:
        path = DATA / name
        shutil.copy(path, folder / path.name)
        (folder / f"{path.name}.view").write_bytes(data_of([api.load(path)]))
    for name in MADE:
        (folder / f"{name}.view").write_bytes(data_of([api.load(folder / name)]))


def readable(folder: Path) -> dict[str, Any]:
    """One failed run in every form, two devices, and a file that ends early."""
    packed = (DATA / "recordings" / "oom_train.pickle.xz").read_bytes()
    content = lzma.decompress(packed)
    (folder / "plain.pickle").write_bytes(content)
    (folder / "packed.pickle.xz").write_bytes(packed)
    (folder / "packed.pickle.gz").write_bytes(gzip.compress(content, 1))
    (folder / "packed.pickle.zst").write_bytes(zstd.compress(content))
    for name, method in (("deflated", zipfile.ZIP_DEFLATED), ("stored", zipfile.ZIP_STORED)):
        with zipfile.ZipFile(folder / f"{name}.vram", "w", method) as archive:
            archive.writestr("snapshot.pickle", content)
            archive.writestr("meta.json", json.dumps({"torch": "2.13.0", "rank": 3}))
    (folder / "cut.pickle").write_bytes(content[: len(content) // 2])
    (folder / "hostile.pickle").write_bytes(dump_slowly(hostile()))
    two = [
        segment(
            device << 21, 1 << 20, [block(device << 21, 1 << 20, 512 * (device + 1))], device=device
        )
        for device in (0, 1)
    ]
    (folder / "two.pickle").write_bytes(dump_slowly(snapshot([], two)))
    (folder / "endless_lines.pickle").write_bytes(pickle.dumps(endless_lines()))
    names = [path.name for path in folder.iterdir() if path.suffix != ".html"]
    return {name: {"peaks": peaks_of(folder / name)} for name in names}


def endless_lines() -> dict[str, Any]:
    """A frame of compiled code that names 64 lines of the user's, 3,000 times in one stack."""
    text = "".join(f'  File "a.py", line {line}, in f\n' for line in range(1, 65))
    generated = {"filename": "fx.py", "line": 1, "name": "f", "fx_original_trace": text}
    own = {"filename": "train/run.py", "line": 7, "name": "step"}
    allocation = event("alloc", 4096, 512, frames=[*[generated] * 3000, own])
    return snapshot([allocation], [])


def peaks_of(path: Path) -> list[int]:
    """The bytes at the peak of each device as ``explain`` gives them, the fullest device first."""
    trace = api.load(path)
    explained = [api.explain_recording(trace, device=device).peak for device in trace.devices]
    return sorted((peak.requested_bytes for peak in explained if peak is not None), reverse=True)


def refused(folder: Path) -> dict[str, Any]:
    """Files that are damaged, foreign or evil, and what the page says of each."""
    packed = (DATA / "recordings" / "oom_train.pickle.xz").read_bytes()
    with zipfile.ZipFile(folder / "other.zip", "w") as archive:
        archive.writestr("data.pkl", b"")
    files = {
        "empty.pickle": (b"", "it is empty"),
        "text.txt": (b"CUDA out of memory", "not a PyTorch memory snapshot"),
        "evil.pickle": (b"\x80\x02cos\nsystem\n.", "would import or call something"),
        "list.pickle": (b"\x80\x02]q\x00K\x01a.", "not a PyTorch memory snapshot"),
        "nothing.pickle": (b"\x80\x02}q\x00", "ends at byte"),
        "damaged.pickle.xz": (packed[:64] + bytes(64), "damaged from the start"),
        "damaged.pickle.gz": (b"\x1f\x8b" + bytes(60), "damaged from the start"),
        "damaged.pickle.zst": (b"\x28\xb5\x2f\xfd" + bytes(60), "damaged from the start"),
        "bomb.pickle.gz": (
            gzip.compress(b"\x80\x02" + bytes(64 << 20), 9),
            "expands more than 100",
        ),
        "cut.vram": (b"PK\x03\x04" + bytes(100), "cut off"),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    told = {name: {"problem": words} for name, (_, words) in files.items()}
    return {**told, "other.zip": {"problem": "not a vramlens recording"}}


if __name__ == "__main__":
    main()
