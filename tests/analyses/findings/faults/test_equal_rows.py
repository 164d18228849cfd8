"""Calls that compute one and the same row again and again, because expand() repeated it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of

USER = "/home/user/towers.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "load": ((USER, 5, "load"),),
    "draw": ((USER, 60, "forward"),),
}


def advice(tmp_path: Path, *lines: str, expression: str, mib: int = 4000) -> str:
    """What is said of a request whose line is the last of these; "" where nothing is."""
    run = MadeRun(FRAMES)
    run.asks("load", 100)
    source = {(USER, 61 - len(lines) + number): text for number, text in enumerate(lines)}
    answer = run.fails("draw", mib, tmp_path, expression=expression, source=source)
    finding = finding_of(answer, "costly_expression")
    if finding is None or "the same row" not in finding.title:
        return ""
    assert finding.bytes == mib << 20
    return finding.fix or ""


@pytest.mark.parametrize(
    ("above", "expression", "instead"),
    [
        (
            "rows = self.weights.expand(batch_size, -1)",
            "torch.multinomial(rows, k, replacement=True)",
            "torch.multinomial(self.weights, batch_size * k, replacement=True).view(batch_size, k)",
        ),
        (
            "p = noise.unsqueeze(0).expand(len(users), -1)",
            "p.multinomial(5, True)",
            "torch.multinomial(noise, len(users) * 5, replacement=True).view(len(users), 5)",
        ),
        (
            "p = noise[None].expand(2 * n, -1)",
            "torch.multinomial(p, num_samples=k, replacement=True)",
            "torch.multinomial(noise, (2 * n) * k, replacement=True).view((2 * n), k)",
        ),
        (
            "",
            "torch.multinomial(self.w.expand(b, -1), k, replacement=True)",
            "torch.multinomial(self.w, b * k, replacement=True).view(b, k)",
        ),
        (
            "p = torch.broadcast_to(w, (b, len(w)))",
            "torch.multinomial(p, k, replacement=True)",
            "torch.multinomial(w, n * k, replacement=True).view(n, k)",
        ),
        (
            "rows = self.weights.expand(batch_size, -1)",
            "torch.multinomial(rows, k)",  # each row draws without its own again
            "torch.cat([torch.multinomial(part, k) for part in rows.split(64)])",
        ),
        (
            "",
            "D.Categorical(probs=self.weights.expand(b, -1))",
            "make the distribution of the one row, self.weights, and draw as many",
        ),
        (
            "order = prior.expand(len(x), -1)",
            "order.argsort(dim=1)",
            "call argsort on the one row, prior, and expand() its result",
        ),
        (
            "bias = self.bias.expand_as(logits)",
            "F.log_softmax(bias, dim=-1)",
            "call log_softmax on the one row, self.bias",
        ),
    ],
)
def test_one_row_is_enough(tmp_path: Path, above: str, expression: str, instead: str) -> None:
    assert instead in advice(tmp_path, above, f"idx = {expression}", expression=expression)


@pytest.mark.parametrize(
    ("lines", "expression"),
    [
        (("rows = logits.softmax(-1)",), "torch.multinomial(rows, k, replacement=True)"),
        (
            ("rows = w.expand(b, -1)", "rows = rows * allowed"),
            "torch.multinomial(rows, k, replacement=True)",
        ),
        (
            ("rows = w.expand(b, -1)", "rows *= allowed"),
            "torch.multinomial(rows, k, replacement=True)",
        ),
        (
            ("rows = w.expand(b, -1).masked_fill(seen, 0)",),
            "torch.multinomial(rows, k, replacement=True)",
        ),
        (
            ("rows = w.expand(b, -1)", "def forward(self, rows, k):"),
            "torch.multinomial(rows, k, replacement=True)",
        ),
        (("p = w.expand(b, -1)",), "torch.bernoulli(p)"),  # each row draws its own
        (("p = w.expand(b, -1)",), "p + noise"),
        (("h = self.h0.expand(b, -1)",), "self.rnn(x, h)"),
        ((), "torch.multinomial(self.weights, b * k, replacement=True)"),
        ((), "torch.multinomial(rows, k"),
    ],
)
def test_rows_that_differ(tmp_path: Path, lines: tuple[str, ...], expression: str) -> None:
    assert not advice(tmp_path, *lines, f"idx = {expression}", expression=expression)


def test_a_small_request_failed_for_what_was_there(tmp_path: Path) -> None:
    expression = "torch.multinomial(w.expand(b, -1), k, replacement=True)"
    assert not advice(tmp_path, f"idx = {expression}", expression=expression, mib=20)
