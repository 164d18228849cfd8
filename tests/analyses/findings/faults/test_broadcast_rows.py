"""A column and a vector that meet in one expression."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of

USER = "/home/user/metric.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "state": ((USER, 5, "update"),),
    "all": ((USER, 9, "compute"),),
    "squares": ((USER, 10, "compute"),),
}
ROWS = 2048


@pytest.mark.parametrize(
    ("expression", "column", "vector", "mib", "is_told"),
    [
        ("true - pred", "float32[2048, 1]", "float32[2048]", 16, True),
        ("F.mse_loss(pred, true)", "float32[2048, 1]", "float32[2048]", 16, True),
        ("true - pred", "float32[2048, 1]", "float32[2048, 1]", 16, False),
        ("true - pred", "float32[2048, 2]", "float32[2048]", 16, False),
        ("true - pred", "float32[2048, 1]", "float32[2048]", 20, False),
        ("torch.cdist(pred, true[:, None])", "float32[2048, 1]", "float32[2048]", 16, False),
        ("norms + norms.t() - 2 * x @ x.T", "float32[2048, 1]", "float32[2048]", 16, False),
        ("((true - pred) ** 2).mean()", "float32[2048, 1]", "float32[2048]", 16, False),
        ("(true - pred) ** 2", "float32[2048, 1]", "float32[2048]", 16, True),
        ("self.criterion(out, batch['y'])", "float32[2048, 1]", "float32[2048]", 16, True),
        ("self.kernel(x1, x2)", "float32[2048, 1]", "float32[2048]", 16, False),
        ("to_dense_adj(edge_index)", "float32[2048, 1]", "float32[2048]", 16, False),
        ("1 - torch.eye(n)", "float32[2048, 1]", "float32[2048]", 16, False),
        ("rate + batch['exposure'].log()", "float32[2048, 1]", "float32[2048]", 16, True),
        ("reward + gamma * value * alive - old", "float32[2048, 1]", "float32[2048]", 16, True),
        ("rate + self.head(x)", "float32[2048, 1]", "float32[2048]", 16, False),
        ("x * mask[:, None] + y", "float32[2048, 1]", "float32[2048]", 16, False),
    ],
)
def test_all_pairs_of_a_column_and_a_vector(
    tmp_path: Path, expression: str, column: str, vector: str, mib: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    for shape in (column, vector):
        run.asks("state", ROWS * 4 / (1 << 20), name=f"{shape} tensor")
    answer = run.fails("all", mib, tmp_path, expression=expression)
    finding = finding_of(answer, "broadcast_rows")
    assert (finding is not None) == is_told
    if finding is not None:
        assert answer.findings[0].id == "broadcast_rows"
        assert "2,048 x 2,048" in finding.title
        assert "8.00 KiB then" in (finding.fix or "")


@pytest.mark.parametrize(
    ("expression", "first", "second", "mib", "is_told"),
    [
        ("F.cosine_similarity(pred, goal, dim=-1)", "[512, 1, 64]", "[512, 64]", 64, True),
        ("F.mse_loss(pred, mask)", "[64, 1, 64, 64]", "[64, 64, 64]", 64, True),
        ("pred - goal", "[512, 1, 64]", "[512, 64]", 64, True),
        ("pred - goal", "[512, 1, 64]", "[512, 1, 64]", 64, False),
        ("pred - goal", "[512, 1, 64]", "[512, 64]", 32, False),
        ("pred - goal", "[8, 1, 64]", "[8, 64]", 16 / 1024, False),
        ("pred[:, None] - goal", "[512, 1, 64]", "[512, 64]", 64, False),
        ("F.scaled_dot_product_attention(q, k, v)", "[512, 1, 64]", "[512, 64]", 64, False),
    ],
)
def test_all_pairs_of_rows(
    tmp_path: Path, expression: str, first: str, second: str, mib: float, *, is_told: bool
) -> None:
    """A prediction with an axis of its own, or a mask without the axis of channels."""
    run = MadeRun(FRAMES)
    for shape in (first, second):
        run.asks("state", 1, name=f"float32{shape} tensor")
    answer = run.fails("all", mib, tmp_path, expression=expression)
    finding = finding_of(answer, "broadcast_rows")
    assert (finding is not None) == is_told
    if finding is not None:
        assert f"squeeze(1) the {first} tensor where it is made" in (finding.fix or "")


@pytest.mark.parametrize(
    ("expression", "shapes", "is_told"),
    [
        ("pred - self.target", ("float32[2048, 1]", "float32[2048]"), True),
        ("pred - self.target", ("float32[2048]", "float32[2048]"), False),
        ("pred - self.target", ("", ""), True),  # by their bytes
        ("pred - self.target", ("",), False),
        ("pred - self.target.T", ("", ""), False),
    ],
)
def test_columns_that_the_program_keeps_by_a_name_of_their_own(
    tmp_path: Path, expression: str, shapes: tuple[str, ...], *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    for number, shape in enumerate(shapes):
        run.asks("state", ROWS * 4 / (1 << 20), name=f"Scorer.column{number}", shape=shape)
    answer = run.fails("all", 16, tmp_path, expression=expression)
    assert (finding_of(answer, "broadcast_rows") is not None) == is_told


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("return torch.sqrt(((pred - target) ** 2).mean() + 1e-8)", True),
        ("errors = pred - target", True),
        ("return torch.cdist(pred, target)", False),
        ("gaps = pred - target.T", False),
    ],
)
def test_all_pairs_that_were_made_before(tmp_path: Path, text: str, *, is_told: bool) -> None:
    """Memory runs out in the backward pass."""
    run = MadeRun(FRAMES)
    for shape in ("float32[2048, 1]", "float32[2048]"):
        run.asks("state", ROWS * 4 / (1 << 20), name=f"{shape} tensor")
    run.asks("all", 16, name="float32[2048, 2048] tensor")
    answer = run.fails("all", 16, tmp_path, node="PowBackward0", source={(USER, 9): text})
    finding = finding_of(answer, "broadcast_rows")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.title.startswith("pred - target broadcasts float32[2048, 1]")
        assert finding.place is not None
        assert finding.place.line == 9


@pytest.mark.parametrize("is_there", [True, False])
def test_a_matrix_that_is_centered_is_no_broadcast(tmp_path: Path, *, is_there: bool) -> None:
    """It is as large as the matrix that it was made of, which is in use."""
    run = MadeRun(FRAMES)
    for shape in ("float32[2048, 1]", "float32[2048]"):
        run.asks("state", ROWS * 4 / (1 << 20), name=f"{shape} tensor")
    older = run.asks("state", 16, name="float32[2048, 2048] tensor")
    if not is_there:
        run.frees(older)
    run.asks("all", 16, name="float32[2048, 2048] tensor")
    source = {(USER, 9): "centered = kernel - means"}
    answer = run.fails("all", 16, tmp_path, node="PowBackward0", source=source)
    assert (finding_of(answer, "broadcast_rows") is None) == is_there


@pytest.mark.parametrize("is_there", [True, False])
def test_a_matrix_whose_centering_fails_is_no_broadcast(tmp_path: Path, *, is_there: bool) -> None:
    run = MadeRun(FRAMES)
    for shape in ("float32[2048, 1]", "float32[2048]"):
        run.asks("state", ROWS * 4 / (1 << 20), name=f"{shape} tensor")
    kernel = run.asks("state", 16, name="float32[2048, 2048] tensor")
    if not is_there:
        run.frees(kernel)
    answer = run.fails("all", 16, tmp_path, expression="kernel - means")
    assert (finding_of(answer, "broadcast_rows") is None) == is_there


@pytest.mark.parametrize("expression", ["", "pred - target"])
@pytest.mark.parametrize("is_matrix", [True, False])
def test_a_loop_that_still_has_the_pairs_of_its_last_turn(
    tmp_path: Path, expression: str, *, is_matrix: bool
) -> None:
    """Each turn's are made while those of the turn before are bound, and so are their squares."""
    run = MadeRun(FRAMES)
    for shape in ("float32[2048, 1]", "float32[2048]"):
        run.asks("state", ROWS * 4 / (1 << 20), name=f"{shape} tensor")
    if is_matrix:
        run.asks("state", 16, name="float32[2048, 2048] tensor")
    bound: list[int] = []
    for _ in range(2 if expression else 3):
        errors = run.asks("all", 16, name="float32[2048, 2048] tensor")
        squares = run.asks("squares", 16, name="float32[2048, 2048] tensor")
        run.frees(*bound)
        bound = [errors, squares]
    node = None if expression else "PowBackward0"
    source = {(USER, 9): "errors = pred - target"}
    answer = run.fails("all", 16, tmp_path, expression=expression, node=node, source=source)
    finding = finding_of(answer, "broadcast_rows")
    assert (finding is None) == is_matrix
    if finding is not None:
        assert finding.title.startswith("pred - target broadcasts")


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("errors = target - preds[:, i]", True),
        ("errors = target - preds[:, None]", False),
        ("errors = target - preds", False),
    ],
)
def test_a_column_that_is_too_small_for_a_shape(
    tmp_path: Path, text: str, *, is_told: bool
) -> None:
    """A small tensor is known by its bytes, where the other is one column of a table."""
    run = MadeRun(FRAMES)
    run.asks("state", ROWS * 4 / (1 << 20), name="tuple[1]")
    run.asks("all", 16, name="float32[2048, 2048] tensor")
    answer = run.fails("all", 16, tmp_path, expression="q * errors", source={(USER, 9): text})
    finding = finding_of(answer, "broadcast_rows")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.title.startswith("target - preds[:, i] makes 2,048 x 2,048 numbers")


@pytest.mark.parametrize(
    ("beside", "name", "kind"),
    [
        (4, "int8", "buffer"),  # x * scale of quantized weights
        (32, "chunk", "tensor"),  # value * gate of one projection
        (0, "model.norm.bias", "parameter"),
    ],
)
def test_an_operand_with_as_many_numbers_makes_no_pairs(
    tmp_path: Path, beside: int, name: str, kind: str
) -> None:
    run = MadeRun(FRAMES)
    for number in range(2):
        vector = name if kind == "parameter" else f"Scale.rows{number}"
        run.asks("state", ROWS * 4 / (1 << 20), name=f"{vector}", kind=kind)
    if beside:
        run.asks("state", beside, name=name, kind=kind)
    answer = run.fails("all", 16, tmp_path, expression="self.weight * self.scale")
    assert finding_of(answer, "broadcast_rows") is None


@pytest.mark.parametrize(
    ("text", "vector", "is_told"),
    [
        ("loss = 0.5 * (returns - policy.critic(batch.obs)).pow(2).mean()", "float32[2048]", True),
        ("loss = (model(x) - y).square().mean()", "float32[2048]", True),
        (
            "loss = 0.5 * (returns - policy.critic(batch.obs)).pow(2).mean()",
            "float32[64, 32]",
            False,
        ),
        ("gaps = (times - times.unsqueeze(1)).abs()", "float32[2048]", False),
        ("gaps = (times - grid.view(n, 1)).abs()", "float32[2048]", False),
    ],
)
def test_a_column_that_a_model_computes_and_nobody_keeps(
    tmp_path: Path, text: str, vector: str, *, is_told: bool
) -> None:
    """A vector that is known makes a square only with a column."""
    run = MadeRun(FRAMES)
    run.asks("state", ROWS * 4 / (1 << 20), name="Rollout.returns", shape=vector)
    run.asks("all", 16, name="float32[2048, 2048] tensor")
    answer = run.fails("all", 16, tmp_path, node="PowBackward0", source={(USER, 9): text})
    assert (finding_of(answer, "broadcast_rows") is not None) == is_told


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("delta = rewards[t] + gamma * next_value * alive - values[t]", True),
        ("delta = self.critic(rewards)", False),
        ("delta = rewards[:, None] - values", False),
    ],
)
def test_a_line_that_goes_on_with_all_pairs_of_another(
    tmp_path: Path, text: str, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    for shape in ("float32[2048, 1]", "float32[2048]"):
        run.asks("state", ROWS * 4 / (1 << 20), name=f"{shape} tensor")
    run.asks("squares", 16)
    source = {(USER, 10): text}
    answer = run.fails("all", 16, tmp_path, expression="delta + gamma * running", source=source)
    finding = finding_of(answer, "broadcast_rows")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.title.startswith("rewards[t] + gamma * next_value")
        assert finding.place is not None
        assert finding.place.line == 10


@pytest.mark.parametrize("above", ["kx = torch.fft.fftfreq(n)[:, None]", "x = x.unsqueeze(1)"])
def test_a_grid_that_is_meant(tmp_path: Path, above: str) -> None:
    run = MadeRun(FRAMES)
    for shape in ("float32[2048, 1]", "float32[2048]"):
        run.asks("state", ROWS * 4 / (1 << 20), name=f"{shape} tensor")
    source = {(USER, 9): "field = a * kx + b * ky", (USER, 8): above}
    answer = run.fails("all", 16, tmp_path, expression="a * kx + b * ky", source=source)
    assert finding_of(answer, "broadcast_rows") is None


def test_a_matrix_in_another_type_is_no_pairs_of_vectors(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for shape in ("float32[2048, 1]", "float32[2048]"):
        run.asks("state", ROWS * 4 / (1 << 20), name=f"{shape} tensor")
    run.asks("state", 8, name="float16[2048, 2048] tensor")
    answer = run.fails("all", 16, tmp_path, expression="weight * (sim - lse)")
    assert finding_of(answer, "broadcast_rows") is None


@pytest.mark.parametrize(
    ("text", "operands", "is_told"),
    [
        ('td = self.target(b) - self.min_q(self.q, b["obs"], b["act"])', 2, True),
        ('td = self.target(b) - self.min_q(self.q, b["obs"], b["act"])', 1, False),
        ("td = self.target(b)[:, None] - self.min_q(self.q)", 2, False),
        ("td = self.target(b) @ self.min_q(self.q)", 2, False),
    ],
)
def test_operands_that_are_gone_once_the_pairs_are_there(
    tmp_path: Path, text: str, operands: int, *, is_told: bool
) -> None:
    """What two calls computed for a difference; the next line fails with the difference."""
    run = MadeRun(FRAMES)
    run.asks("state", 1, name="Agent.weight", kind="parameter")
    results = [run.asks("state", ROWS * 4 / (1 << 20)) for _ in range(operands)]
    run.asks("all", 16, name="float32[2048, 2048] tensor")
    run.frees(*results)
    source = {(USER, 9): text}
    answer = run.fails("squares", 16, tmp_path, expression="td.pow(2)", source=source)
    finding = finding_of(answer, "broadcast_rows")
    assert (finding is not None) == is_told
