"""Calls that make too much of what they are given: a wide copy, a row for each number up to the largest,
attention without a fused kernel, functions of libraries.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of

USER = "/home/user/search.py"
LIBRARY = "/usr/lib/python3/site-packages"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "load": ((USER, 5, "load"),),
    "call": ((USER, 60, "forward"),),
    "nms": ((f"{LIBRARY}/torchvision/ops/boxes.py", 48, "nms"), (USER, 60, "detect")),
    "kernel": (
        (f"{LIBRARY}/torchaudio/functional/functional.py", 1385, "_get_sinc_resample_kernel"),
        (USER, 60, "change_speed"),
    ),
}


def told(
    folder: Path,
    expression: str,
    mib: float,
    *,
    shape: str,
    size: float,
    name: str = "",
    above: str = "",
    part: str = "call",
) -> str:
    """What is said and advised of a request beside a tensor of such a shape, or "" where nothing is."""
    run = MadeRun(FRAMES)
    run.asks("load", size, name=name or f"{shape} tensor", shape=shape)
    source = {(USER, 60): expression, (USER, 59): above}
    answer = run.fails(part, int(mib), folder, expression=expression, source=source)
    finding = finding_of(answer, "costly_expression")
    return "" if finding is None else f"{finding.title} | {finding.fix}"


@pytest.mark.parametrize(
    ("expression", "mib", "shape", "is_told"),
    [
        ("self.rows * boost[:, None]", 800, "float16[1048576, 200]", True),
        ("boost.unsqueeze(1) * self.rows", 800, "bfloat16[1048576, 200]", True),
        ("self.rows * boost[:, None]", 400, "float16[1048576, 200]", False),  # as wide as it was
        ("self.rows * boost[:, None]", 800, "float32[1048576, 100]", False),
        ("self.others * boost[:, None]", 800, "float16[1048576, 200]", False),
        ("self.rows @ boost", 800, "float16[1048576, 200]", False),
    ],
)
def test_a_factor_in_float32_makes_a_copy_in_float32(
    tmp_path: Path, expression: str, mib: int, shape: str, *, is_told: bool
) -> None:
    text = told(tmp_path, expression, mib, shape=shape, size=400, name="Archive.rows")
    assert ("the type of the other operand" in text) == is_told
    assert ("@ x.T) * factor is" in text) == is_told


@pytest.mark.parametrize(
    ("above", "expression", "rows", "is_told"),
    [
        ("n = int(session.max()) + 1", "h.new_zeros(n, 256).index_add(0, session, h)", 8, True),
        ("n = session.max().item() + 1", "torch.zeros(n, d, device=h.device)", 8, True),
        ("", "torch.zeros(int(session.max()) + 1, d, device=h.device)", 8, True),
        ("n = int(session.max()) + 1", "torch.zeros(n, d, device=h.device)", 2, False),
        ("n = len(table)", "torch.zeros(n, d, device=h.device)", 8, False),
        ("n = int(session.max()) + 1", "torch.zeros(m, d, device=h.device)", 8, False),
    ],
)
def test_a_row_for_each_number_up_to_the_largest(
    tmp_path: Path, above: str, expression: str, rows: int, *, is_told: bool
) -> None:
    shape, size = "float32[102400, 256]", 100  # the rows that go in
    text = told(tmp_path, expression, size * rows, shape=shape, size=size, above=above)
    assert ("makes a row for each number up to the largest of session" in text) == is_told
    assert ("torch.unique(session, return_inverse=True)[1]" in text) == is_told


@pytest.mark.parametrize(
    ("expression", "mib", "is_told"),
    [
        ("F.scaled_dot_product_attention(q, k, v)", 1024, True),
        ("F.scaled_dot_product_attention(q, k, v, is_causal=True)", 1024, True),
        ("F.scaled_dot_product_attention(q, k, v, mask)", 1024, False),
        ("F.scaled_dot_product_attention(q, k, v, attn_mask=mask)", 1024, False),
        ("F.scaled_dot_product_attention(q, k, v)", 1021, False),  # no square of positions
        ("attend(q, k, v)", 1024, False),
    ],
)
def test_attention_without_a_fused_kernel(
    tmp_path: Path, expression: str, mib: int, *, is_told: bool
) -> None:
    text = told(tmp_path, expression, mib, shape="float32[2, 8, 1024, 64]", size=4)
    assert ("a number for each pair of 1,024 positions" in text) == is_told
    assert ("q.flatten(0, 1)" in text) == is_told


@pytest.mark.parametrize(
    ("part", "expression", "instead"),
    [
        ("nms", "nms(boxes, score, threshold)", "below the score threshold first"),
        ("kernel", "AF.resample(wave, rate, new_rate)", "a multiple of a hundredth"),
    ],
)
def test_what_a_function_of_a_library_makes(
    tmp_path: Path, part: str, expression: str, instead: str
) -> None:
    text = told(tmp_path, expression, 900, shape="float32[4096, 4]", size=64 / 1024, part=part)
    assert instead in text


@pytest.mark.parametrize(
    ("above", "statement", "is_told"),
    [
        ("order = torch.randperm(hist.shape[0], device=hist.device)", "hist = hist[order]", True),
        ("order = torch.randperm(n).to(x.device)", "hist, y = hist[order], y[order]", True),
        ("order = torch.randperm(n)[:256]", "hist = hist[order]", False),  # some of them
        ("order = torch.randperm(n)", "rays = hist[order]", False),  # beside what they were
        ("order = torch.randperm(n)", "x = lam * x + (1 - lam) * hist[order]", False),
        ("order = scores.argsort()", "hist = hist[order]", False),
        ("other = torch.randperm(n)", "hist = hist[order]", False),
        ("order = torch.randperm(n)", "hist = hist[order:]", False),
    ],
)
def test_rows_that_are_copied_in_another_order(
    tmp_path: Path, above: str, statement: str, *, is_told: bool
) -> None:
    expression = "hist[order:]" if "order:" in statement else "hist[order]"
    run = MadeRun(FRAMES)
    run.asks("load", 400, name="float32[1048576, 100] tensor")
    source = {(USER, 60): statement, (USER, 59): above}
    answer = run.fails("call", 800, tmp_path, expression=expression, source=source)
    finding = finding_of(answer, "costly_expression")
    text = "" if finding is None else str(finding.fix)
    assert ("pick each batch by the order: hist[order[i : i + batch]]" in text) == is_told


@pytest.mark.parametrize(
    ("expression", "size", "is_told"),
    [
        ("torch.fft.rfft2(stamps, s=size)", 50, True),
        ("torch.fft.rfft(x, n=n_fft, dim=-1)", 50, True),
        ("torch.fft.rfft2(stamps, s=size)", 200, False),  # with the usual padding of both sides
        ("torch.fft.rfft(x, n=2 * length)", 50, False),
        ("torch.fft.rfft2(stamps)", 50, False),
    ],
)
def test_a_transform_of_what_is_padded_far(
    tmp_path: Path, expression: str, size: float, *, is_told: bool
) -> None:
    text = told(tmp_path, expression, 800, shape="float32[4096, 64, 100]", size=size)
    assert ("needs n + m - 1" in text) == is_told


@pytest.mark.parametrize(
    ("expression", "size", "advice"),
    [
        ("torch.bincount(account * n_tracks + track)", 100, "torch.unique(x, return_counts=True)"),
        ("torch.bincount(labels)", 600, ""),  # hardly more than what goes in
        ("torch.logsumexp(alpha.unsqueeze(2) + trans, dim=1)", 100, "@ trans.exp()).log() + m"),
        ("torch.logsumexp(trans + alpha[:, :, None], dim=1)", 100, "@ trans.exp()).log() + m"),
        ("torch.logsumexp(logits, dim=1)", 100, "F.cross_entropy"),
    ],
)
def test_counts_and_sums_of_pairs(
    tmp_path: Path, expression: str, size: float, advice: str
) -> None:
    text = told(tmp_path, expression, 800, shape="int64[1000000]", size=size)
    assert advice in text if advice else not text
