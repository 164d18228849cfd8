"""Three factors of which the wrong two are multiplied first."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding

USER = "/home/user/hotrg.py"
TORCH_FUNCTIONAL = "/opt/lib/python3.12/site-packages/torch/functional.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "site": ((USER, 5, "load"),),
    "pair": ((TORCH_FUNCTIONAL, 1358, "tensordot"), (USER, 46, "merge")),
    "then": ((TORCH_FUNCTIONAL, 1358, "tensordot"), (USER, 48, "merge")),
}
PAIR = "pair = torch.tensordot(t, t, dims=([3], [2]))"
THEN = "torch.tensordot(u, pair, dims=([0, 1], [0, 3]))"


def of_large_tensor(
    tmp_path: Path, lines: dict[int, str], expression: str, *, mib: int = 3000, beside: int = 100
) -> Finding | None:
    """Memory runs out beside a tensor of 3000 MiB that line 46 made."""
    run = MadeRun(FRAMES)
    run.asks("site", beside)
    run.asks("pair", 3000, name="float64[28, 28, 28, 28, 28, 28] tensor")
    source = {(USER, line): text for line, text in lines.items()}
    answer = run.fails("then", mib, tmp_path, expression=expression, source=source)
    finding = finding_of(answer, "contraction_order")
    assert finding is None or answer.findings[0] == finding
    assert finding is None or "double_precision" not in {one.id for one in answer.findings}
    return finding


@pytest.mark.parametrize(
    ("made", "expression", "order"),
    [
        (PAIR, THEN, "u with one t first, and the result with the other"),
        ("pair = torch.matmul(q, k.transpose(-2, -1))", "pair @ v", "v first with that of q and k"),
        ("pair = q @ k.T", "torch.matmul(pair, v)", "v first with that of q and k"),
        (
            'pair = torch.einsum("abc,cde->abde", left, right)',
            'torch.einsum("abde,bd->ae", pair, env)',
            'torch.einsum("bd,abc->dac", env, left), then torch.einsum("dac,cde->ae", part, right)',
        ),
        (
            "pair = torch.tensordot(env, site, dims=1).permute(0, 2, 1)",
            "torch.tensordot(pair.reshape(n, -1), mpo, dims=1)",
            "mpo first with that of env and site",
        ),
    ],
)
def test_a_large_product_that_the_next_one_takes_in(
    tmp_path: Path, made: str, expression: str, order: str
) -> None:
    finding = of_large_tensor(tmp_path, {46: made, 48: f"out = {expression}"}, expression)
    assert finding is not None
    assert finding.bytes == 6000 << 20
    assert finding.place is not None
    assert finding.place.line == 46
    assert "makes 2.93 GiB of factors of at most 100.00 MiB" in finding.title
    assert order in (finding.fix or "")


@pytest.mark.parametrize(
    ("lines", "expression", "mib", "beside"),
    [
        ({46: PAIR}, THEN, 3100, 100),  # a chain that is to grow
        ({46: PAIR}, THEN, 3000, 400),  # a factor is nearly as large: a gate on a state
        ({46: PAIR, 47: "pair = pair.softmax(-1)"}, THEN, 3000, 100),
        ({46: "attn = (q @ k.T).softmax(-1)"}, "attn @ v", 3000, 100),
        ({46: "pair = self.block(t)"}, THEN, 3000, 100),
        ({46: PAIR}, "torch.tensordot(u, other, dims=1)", 3000, 100),
        ({46: PAIR}, "pair.exp()", 3000, 100),
        ({46: PAIR}, "(pair * mask) @ v", 3000, 100),
        ({46: "pair = x @ x.T"}, "pair @ x", 3000, 100),  # has advice of its own
        ({}, THEN, 3000, 100),
    ],
)
def test_a_large_tensor_that_no_other_order_avoids(
    tmp_path: Path, lines: dict[int, str], expression: str, mib: int, beside: int
) -> None:
    finding = of_large_tensor(tmp_path, lines, expression, mib=mib, beside=beside)
    assert finding is None


def of_request(tmp_path: Path, lines: dict[int, str], expression: str, beside: int = 100) -> bool:
    """Whether the failing product of line 46 itself is told, a request for 3000 MiB."""
    run = MadeRun(FRAMES)
    run.asks("site", beside)
    source = {(USER, line): text for line, text in lines.items()}
    answer = run.fails("pair", 3000, tmp_path, expression=expression, source=source)
    finding = finding_of(answer, "contraction_order")
    assert finding is None or finding.bytes == 3000 << 20
    return finding is not None


@pytest.mark.parametrize(
    ("lines", "expression", "is_told"),
    [
        ({46: PAIR, 48: f"out = {THEN}"}, "torch.tensordot(t, t, dims=([3], [2]))", True),
        ({46: "out = (q @ k.mT) @ v"}, "q @ k.mT", True),
        ({46: "return torch.tensordot(u, torch.mm(a, b).view(n, n), 1)"}, "torch.mm(a, b)", True),
        ({46: "scores = q @ k.mT", 47: "y = scores.softmax(-1) @ v"}, "q @ k.mT", False),
        ({46: "y = (q @ k.mT).softmax(-1) @ v"}, "q @ k.mT", False),
        ({46: "y = x @ w", 47: "y = y.relu()", 48: "z = y @ w2"}, "x @ w", False),
        ({46: "state = torch.tensordot(a, b, 1)", 47: "return state"}, "torch.tensordot(a, b, 1)", False),
        ({46: 'y = torch.einsum("bi,bj,bk->ijk", a, b, c)'}, 'torch.einsum("bi,bj,bk->ijk", a, b, c)', False),
    ],
)  # fmt: skip
def test_the_product_that_failed(
    tmp_path: Path, lines: dict[int, str], expression: str, *, is_told: bool
) -> None:
    assert of_request(tmp_path, lines, expression) == is_told
    assert not of_request(tmp_path, lines, expression, beside=500)


@pytest.mark.parametrize(
    "between",
    [
        "pair.masked_fill_(future, 0)",
        "pair *= decay",
        "pair.tril_()",
        "pair[:, 0] = 0",
        "torch.softmax(pair, -1, out=pair)",
    ],
)
def test_a_product_that_is_written_to_is_another(tmp_path: Path, between: str) -> None:
    lines = {46: "pair = q @ k.T", 47: between, 48: "out = pair @ v"}
    assert of_large_tensor(tmp_path, lines, "pair @ v") is None


def test_a_small_product_that_a_function_returns(tmp_path: Path) -> None:
    """What is large is what the failing product makes of it."""
    run = turned(0, beside=4)
    for _ in range(5):
        run.asks("made", 1)
        run.asks("taken", 64)
    source = {(USER, 49): "return x.transpose(1, 2) @ y", (USER, 55): "outs.append(gram(x, y) @ w)"}
    answer = run.fails("taken", 64, tmp_path, expression="gram(x, y) @ w", source=source)
    assert finding_of(answer, "contraction_order") is None


@pytest.mark.parametrize(
    ("made", "expression"),
    [
        ('pair = torch.einsum("ib,bj->bij", x.T, y)', 'torch.einsum("bij,bj->bi", pair, w)'),
        ('pair = torch.einsum("abc,cde->abde", l, r)', 'torch.einsum("baed,bd->ae", pair.mT, e)'),
        ('pair = torch.einsum("abc,cde->abde", l, r).mT', 'torch.einsum("abed,bd->ae", pair, e)'),
    ],
)
def test_turned_factors_have_other_letters(tmp_path: Path, made: str, expression: str) -> None:
    finding = of_large_tensor(tmp_path, {46: made, 48: f"out = {expression}"}, expression)
    assert finding is not None
    assert "part = " not in (finding.fix or "")


def turned(turns: int, *, beside: int) -> MadeRun:
    """A loop each turn of which keeps the product that a function returned to it, and a copy."""
    run = MadeRun(
        FRAMES
        | {
            "made": ((TORCH_FUNCTIONAL, 402, "einsum"), (USER, 49, "transfer"), (USER, 55, "norm")),
            "taken": ((TORCH_FUNCTIONAL, 402, "einsum"), (USER, 55, "norm")),
        }
    )
    run.asks("site", beside)
    for _ in range(turns):
        run.asks("made", 300)
        run.asks("taken", 0.1)
    return run


@pytest.mark.parametrize(
    ("text", "expression", "beside", "is_told"),
    [
        ('return torch.einsum("asc,bsd->abcd", a, a)', 'torch.einsum("ab,abcd->cd", env, self.transfer(i))', 4, True),
        ("return torch.tensordot(a, b, 1)", "env @ self.transfer(i)", 4, True),
        ("return torch.tensordot(a, b, 1)", "env @ self.transfer(i)", 400, False),
        ("return self.sites[i]", "env @ self.transfer(i)", 4, False),
        ("return torch.tensordot(a, b, 1)", "env @ self.other(i)", 4, False),
        ("return torch.tensordot(a, b, 1)", "self.transfer(i).exp()", 4, False),
    ],
)  # fmt: skip
def test_a_large_product_that_a_function_returns(
    tmp_path: Path, text: str, expression: str, beside: int, *, is_told: bool
) -> None:
    run = turned(6, beside=beside)
    source = {(USER, 49): text, (USER, 55): f"env = {expression}"}
    answer = run.fails("taken", 300, tmp_path, expression=expression, source=source)
    finding = finding_of(answer, "contraction_order")
    assert (finding is not None) == is_told
    if finding is not None:
        assert answer.findings[0] == finding
        assert finding.bytes == 7 * 300 << 20
        assert finding.place is not None
        assert finding.place.line == 49


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("float32[3 4] tensor", "pair @ v"),
        ("bool[3 4] tensor", "(mask > 2).sum(1)"),
        ("float64[28, 28] tensor", f"({'-' * 700}x) @ y"),
    ],
)
def test_odd_names_and_deep_expressions_end_no_answer(
    tmp_path: Path, name: str, expression: str
) -> None:
    run = MadeRun(FRAMES)
    run.asks("pair", 3000, name=name)
    source = {(USER, 48): f"out = {expression}"}
    answer = run.fails("then", 3000, tmp_path, expression=expression, source=source)
    assert answer.findings
