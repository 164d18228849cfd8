"""Single operators: the most that each holds, against the same ones run on an H200 with PyTorch
2.11 (figures from the allocator's history).
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

PROGRAM = """
import torch
import torch.nn.functional as F
from vramlens.cards.known_cards import card_named
from vramlens.prediction.predicted_run import PredictedRun

run = PredictedRun(card_named("h200"))


def normal(*shape, **options):
    return torch.randn(*shape, device="cuda", **options)


def whole(count):
    return torch.randint(0, 1000, (count,), device="cuda")


def enlarged(image, **how):
    result = F.interpolate(image.requires_grad_(), scale_factor=2, **how)
    result.sum().backward()
    return result


def last(*shape):
    return normal(*shape).to(memory_format=torch.channels_last)


def transposed_attention():
    # 12 x 4 heads, 1,024 words of 48 numbers whose rows lie apart: in 32 bits, whatever autocast says
    rows = normal(12, 4, 48, 1024).half().transpose(-1, -2)
    begin = len(run.log.kinds)
    with torch.autocast("cuda", torch.float16):
        F.scaled_dot_product_attention(rows, rows, rows)
    sizes = [run.log.sizes[row] for row in run.log.rows[begin:]]
    return max(sizes) / (1 << 20)


def largest_with_bias(bias):
    # 8 x 10 heads, 512 words of 64 numbers, and a bias for each pair of words that takes a gradient
    rows = [normal(8, 512, 10, 64).transpose(1, 2) for _ in range(3)]
    begin = len(run.log.kinds)
    F.scaled_dot_product_attention(*rows, attn_mask=bias.requires_grad_(), dropout_p=0.1)
    return max(run.log.sizes[row] for row in run.log.rows[begin:]) / (1 << 20)


def peak(operator, *inputs):
    begin, older = len(run.log.kinds), len(run.log.sizes)
    result = operator(*inputs)
    live = most = 0
    for kind, row in zip(run.log.kinds[begin:], run.log.rows[begin:]):
        if row >= older:
            live += run.log.sizes[row] if kind == 0 else -run.log.sizes[row]
            most = max(most, live)
    return most / (1 << 20)


with run.going():
    rows = normal(64, 64).requires_grad_()
    F.linear(rows, rows, rows[0]).sum().backward()  # both threads ask for cuBLAS' workspace
    symmetric = {n: normal(n, n) + normal(n, n).t() for n in (1024, 2048)}
    for name, operator, *inputs in (
        ("sort_short", torch.sort, normal(100_000)),
        ("sort_long", torch.sort, normal(4_000_000)),
        ("sort_whole", torch.sort, whole(4_000_000)),
        ("sort_rows", lambda x: x.sort(-1), normal(4096, 2000)),
        ("sort_long_rows", lambda x: x.sort(-1, descending=True), normal(512, 30000)),
        ("sort_columns", lambda x: x.sort(0), normal(9000, 100)),
        ("sort_halves", torch.sort, normal(1_000_000).half()),
        ("inverse_fft_line", lambda x: torch.fft.irfft(x, 32768),
         torch.fft.rfft(normal(128, 32768))),
        ("eigenvalues_double", torch.linalg.eigh, normal(3000, 3000, dtype=torch.float64)),
        ("few_classes", lambda x: F.interpolate(x, scale_factor=3, mode="bilinear").softmax(1),
         last(8, 5, 100, 100)),
        ("to_channels_last", lambda x: x.to("cuda", memory_format=torch.channels_last),
         torch.randn(16, 3, 200, 200)),
        ("to_half", lambda x: x.to("cuda", torch.half), torch.randn(16, 3, 200, 200)),
        ("to_half_meanwhile", lambda x: x.to("cuda", torch.half, non_blocking=True),
         torch.randn(16, 3, 200, 200)),
        ("back_in_part", lambda x: x[:, :1000].cpu(), normal(1000, 3000)),
        ("argsort", lambda x: x.argsort(stable=True), whole(4_000_000)),
        ("shuffle_short", lambda: torch.randperm(100_000, device="cuda")),
        ("shuffle_long", lambda: torch.randperm(4_000_000, device="cuda")),
        ("inverse_fft", lambda x: torch.fft.irfft2(x, s=(128, 128)),
         torch.fft.rfft2(normal(8, 64, 128, 128))),
        ("eigenvalues_short", torch.linalg.eigh, symmetric[1024]),
        ("eigenvalues", torch.linalg.eigh, symmetric[2048]),
        ("enlarged", lambda x: enlarged(x, mode="bilinear"), normal(8, 32, 96, 96)),
        ("enlarged_channels_last", lambda x: enlarged(x, mode="nearest"), last(8, 32, 96, 96)),
        ("enlarged_3d", lambda x: enlarged(x, mode="trilinear"), normal(2, 16, 24, 48, 48)),
    ):
        print(name, round(peak(operator, *inputs), 1))
    print("largest_of_attention", transposed_attention())
    print("largest_with_bias", largest_with_bias(normal(1, 10, 512, 512)))
    print("largest_with_bias_by_head",
          largest_with_bias(normal(512, 512, 10).permute(2, 0, 1).unsqueeze(0)))

    pointwise = torch.nn.Conv2d(512, 12, 1).cuda().to(memory_format=torch.channels_last)
    classes = pointwise(normal(4, 512, 96, 96))
    print("pointwise", classes.is_contiguous(memory_format=torch.channels_last))
"""

MEASURED_MIB = {
    "sort_short": 3.1,
    "sort_long": 122.8,
    "sort_whole": 153.5,
    "sort_rows": 93.8,
    "sort_long_rows": 468.8,
    "sort_columns": 51.7,
    "sort_halves": 26.9,
    "inverse_fft_line": 32.0,
    "eigenvalues_double": 346.5,
    "few_classes": 41.2,
    "to_channels_last": 14.6,
    "to_half": 3.7,
    "to_half_meanwhile": 11.0,
    "back_in_part": 3.8,
    "argsort": 153.5,
    "shuffle_short": 4.6,
    "shuffle_long": 184.0,
    "inverse_fft": 64.5,
    "eigenvalues_short": 20.6,
    "eigenvalues": 81.1,
    "enlarged": 81.0,
    "enlarged_channels_last": 81.0,
    "enlarged_3d": 114.8,
}
_TOLERANCE = 0.03
"""CUB's and cuSOLVER's own workspaces are within it."""


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", MEASURED_MIB)
def test_an_operator_holds_what_it_held_on_a_card(told: dict[str, str], name: str) -> None:
    assert float(told[name]) == pytest.approx(MEASURED_MIB[name], rel=_TOLERANCE)


def test_plain_attention_computes_in_32_bits(told: dict[str, str]) -> None:
    """As on the card: 12 x 4 x 1,024 x 1,024 scores of 4 bytes."""
    assert told["largest_of_attention"] == "192.0"


def test_a_bias_whose_rows_lie_apart_is_for_plain_attention(told: dict[str, str]) -> None:
    """As on the card, where T5's lies by head: 8 x 10 x 512 x 512 scores of 4 bytes."""
    assert told["largest_with_bias"] == "10.0"
    assert told["largest_with_bias_by_head"] == "80.0"


def test_a_pointwise_weight_with_channels_last_decides_where_channels_lie(
    told: dict[str, str],
) -> None:
    assert told["pointwise"] == "True"
