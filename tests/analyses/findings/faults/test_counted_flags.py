"""Flags and narrow numbers of which a sum makes a wide copy first."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of

USER = "/home/user/gwas.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "load": ((USER, 5, "load"),),
    "count": ((USER, 60, "rates"),),
}
BYTES = "uint8[16384, 65536] tensor"
FLAGS = "bool[16384, 65536] tensor"
SHORTS = "int16[16384, 32768] tensor"
FLOATS = "float32[16384, 16384] tensor"
MIB = 1024
"""Of each of them."""


def told(
    tmp_path: Path, name: str, expression: str, statement: str, times: int
) -> tuple[str, str] | None:
    run = MadeRun(FRAMES)
    run.asks("load", MIB, name=name)
    answer = run.fails(
        "count", MIB * times, tmp_path, expression=expression, source={(USER, 60): statement}
    )
    finding = finding_of(answer, "costly_expression")
    if finding is None or "add up a part" not in (finding.fix or ""):
        return None
    assert finding.bytes == (MIB * times) << 20
    return finding.title, finding.fix or ""


@pytest.mark.parametrize(
    ("name", "expression", "times", "instead"),
    [
        (
            BYTES,
            "(geno == MISSING).sum(dim=1)",
            8,
            "torch.cat([(part == MISSING).sum(dim=1) for part in geno.split(512)])",
        ),
        (BYTES, "(geno > 2).sum()", 8, "sum((part > 2).sum() for part in geno.split(512))"),
        (FLAGS, "self.mask.sum(1)", 8, "torch.cat([part.sum(dim=1) for part in self.mask.split(512)])"),
        (FLAGS, "torch.count_nonzero(mask, dim=0)", 8, "sum(part.sum(dim=0) for part in mask.split(512))"),
        (FLAGS, "torch.sum(seen & ~valid, dim=-1)", 8, "make what is added up for that part alone (x.split(512)"),
        (FLAGS, "torch.isnan(x).sum()", 8, "make what is added up for that part alone"),
        (FLAGS, "mask.sum(1, dtype=torch.int32)", 4, "torch.cat([part.sum(dim=1)"),
        (SHORTS, "counts.sum(dim=1)", 4, "part in counts.split(1024)"),
        (SHORTS, "counts.sum(dim=1)", 4, "convert nothing: sum(1, dtype=torch.int16); else add up a part"),
        (SHORTS, "torch.stack([a, b]).sum(0)", 4, "convert nothing: sum(0, dtype=torch.int16)"),
        (FLOATS, "x.sum(1, dtype=torch.float64)", 2, "part in x.split(2048)"),
        (FLOATS, "x.mean(1, dtype=torch.float64)", 2, "then divide by their number"),
        ("store", "(geno == MISSING).sum(dim=1)", 8, "part in geno.split(256)"),
        (FLAGS, "self.mask.sum(-2)", 8, "make what is added up for that part alone"),
        (FLAGS, "self.mask.sum(dim=(0, 1))", 8, "make what is added up for that part alone"),
        (SHORTS, "counts.sum(dim=1, keepdim=True)", 4, "make what is added up for that part alone"),
    ],
)  # fmt: skip
def test_a_sum_that_converts_first(
    tmp_path: Path, name: str, expression: str, times: int, instead: str
) -> None:
    advice = told(tmp_path, name, expression, f"rates = {expression}", times)
    assert advice is not None
    title, fix = advice
    assert "converts all that it adds up first, to" in title
    assert instead in fix
    assert "torch.count_nonzero make a wide copy of all, too" in fix


@pytest.mark.parametrize(
    ("expression", "statement", "times"),
    [
        ("geno == MISSING", "missing = (geno == MISSING).sum(dim=1)", 1),
        ("(geno == MISSING).float()", "rate = (geno == MISSING).float().mean(1)", 4),
        ("pred == labels", "return (pred == labels).float().mean()", 1),
    ],
)
def test_flags_that_are_made_whole_to_be_counted(
    tmp_path: Path, expression: str, statement: str, times: int
) -> None:
    advice = told(tmp_path, BYTES, expression, statement, times)
    assert advice is not None
    assert f"{expression} is made whole only to be added up" in advice[0]


@pytest.mark.parametrize(
    ("name", "expression", "times"),
    [
        (FLOATS, "x.sum(dim=1)", 2),
        (FLAGS, "mask.any(dim=1)", 8),  # asks for no copy
        (FLAGS, "mask.cumsum(dim=1)", 8),  # the sums are as many
        (FLAGS, "mask.long()", 8),
        (FLAGS, "sum(masks)", 8),
        (FLAGS, "mask.sum(1)", 3),
        (BYTES, "geno.float().sum(1)", 8),
        ("store", "x.sum(1)", 8),
        (BYTES, "geno == MISSING", 1),
        (FLAGS, "mask.sum(", 8),
    ],
)
def test_what_makes_no_wide_copy_to_add_it_up(
    tmp_path: Path, name: str, expression: str, times: int
) -> None:
    assert told(tmp_path, name, expression, f"rates = {expression}", times) is None


def test_all_pairs_need_another_edit(tmp_path: Path) -> None:
    expression = "(pos[:, None] > neg[None, :]).sum(1)"
    assert told(tmp_path, FLAGS, expression, f"rank = {expression}", 8) is None
