"""Calls that make more than is often needed, told by the expression that failed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.made_failures import MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    use_of_expression,
)
from vramlens.analyses.findings.faults.expressions.uses.gradient_uses import (
    use_of_node,
    use_of_statement,
)
from vramlens.replay.need.advice_order import order_of_advice

FILE = "/home/user/rank.py"
FRAMES = {
    "data": ((FILE, 20, "load"),),
    "keys": ((FILE, 30, "forward"),),
    "values": ((FILE, 31, "forward"),),
    "rank": ((FILE, 60, "rank"),),
}
CALLS = {
    "torch.linalg.svd(fields - mean)": "full_matrices=False",
    "torch.linalg.qr(a)": 'mode="reduced"',
    "scores.argsort(dim=1, descending=True)": "torch.topk",
    "torch.sort(pnl, dim=1)": "torch.topk",
    "F.one_hot(baskets, items)": "class numbers",
    "k.repeat_interleave(groups, 1)": "expand()",
    "pixels.repeat(30, 1, 1, 1)": "expand()",
    "F.interpolate(logits, size=(h, w))": "one sample",
    "maps = [F.interpolate(level, size=size) for level in levels]": "smaller maps",
    "reference = copy.deepcopy(policy).eval()": "disable_adapter()",
    "torch.zeros(nodes, nodes, device=device)": "torch.sparse_coo_tensor",
    "torch.zeros((self.n, self.n), device=device)": "torch.sparse_coo_tensor",
    "torch.zeros(n, n, n, device=device)": 'device="cpu"',
    "torch.zeros(rows, rows_of_text)": 'device="cpu"',
    "torch.stack([x[i:i + n] for i in range(m)])": "x.unfold(",
    "adj.to_dense()": "sparse",
    "pairs = torch.cat([left, right], dim=1)": "split the weight",
    "torch.cat([rows[k].flatten(1) for k in names], dim=1)": "x @ x.T",
    "logits.log_softmax(-1)": "logits_to_keep=N",
    "F.log_softmax(logits, dim=-1)": "a part of the rows",
    "torch.diag_embed(d)": "x * d[:, None]",
    "MultivariateNormal(loc, scale_tril=torch.diag_embed(scale))": "Independent(Normal(loc, scale)",
    "self.teacher = copy.deepcopy(self).eval()": "set that to None before this line",
    "self.rays = self.rays[torch.randperm(n)]": "x[order[i : i + batch]]",
    "a, n = torch.where(~same)": "torch.where(mask, x, 0)",
    "torch.linalg.inv(k)": "torch.linalg.solve",
    "adj + torch.eye(n, device=adj.device)": "in place",
    "K + 1e-6 * torch.eye(n)": "in place",
    "adj = normalize(to_dense_adj(edge_index, max_num_nodes=n))": "the batch vector",
    "x.float() / 255": "crop or resize",
    "torch.zeros(classes, *volume.shape, device=device)": 'device="cpu"',
    "a[:, None, :] - b[None, :, :]": "torch.cdist",
    "x.unsqueeze(1) - y.unsqueeze(0)": "torch.cdist",
    "users[batch] @ self.items.weight.t()": "a part of the rows",
    "z @ z.T": "(x[i] * x[j]).sum(-1)",
    "x[src]": "layer(x)[index]",
    "rows = x.index_select(0, src)": "layer(x)[index]",
    "candidates = target[sample, index]": "one matrix product",
    "messages = x[g.src] * g.weight[:, None]": "torch.sparse.mm",
    "return weight * x[src]": "torch.sparse.mm",
    "x[:, None] * y[None]": "torch.einsum",
    "dA = torch.exp(delta.unsqueeze(-1) * A)": "as a scan over time steps does",
    "(delta * u).unsqueeze(-1) * B.unsqueeze(2)": "as a scan over time steps does",
    "torch.eye(classes, device=device)[labels]": "class numbers",
    'torch.einsum("bi,bj,bk->ijk", a, b, c)': "opt_einsum",
    "x.unsqueeze(1).expand(-1, n, -1).contiguous()": "leave it a view",
    "c.expand_as(near).reshape(-1, d)": "leave it a view",
    "torch.block_diag(*blocks)": "multiply them as a batch",
    "F.unfold(x, kernel_size=7, padding=3)": "F.conv2d",
    "torch.fft.fft2(u)": "rfft2",
    "torch.fft.fftn(u, dim=(-2, -1))": "rfft2",
    "torch.tril(torch.ones(t, t, device=x.device))": "is_causal=True",
    "torch.triu(torch.full((t, t), float('-inf')), 1)": "is_causal=True",
    "edge = F.leaky_relu(self.bn(self.conv(edge)), 0.2)": "inplace=True",
    "torch.linalg.pinv(a)": "lstsq",
    "k = torch.cat([self.k[layer], k], dim=2)": "write each piece to its place",
    "torch.cat((self.queue, keys))": "write each piece to its place",
    "A = X @ X.T": "x @ (x.T @ x)",
    "b * A + c * (A @ A)": "x @ (x.T @ x)",
    "gram = feats @ feats.mT": "x @ (x.T @ x)",
    "(pos[:, None] == neg[None, :]).float()": "torch.searchsorted",
    "wins = (pos[:, None] > neg[None, :]).float()": "torch.searchsorted",
    "a.unsqueeze(1) != b.unsqueeze(0)": "torch.searchsorted",
    "torch.kron(eye, d)": "d @ x + x @ d.T",
    "self.lap = torch.kron(d, eye) + torch.kron(eye, d)": "d @ x + x @ d.T",
    "weight = self.base.weight + self.scaling * (self.B @ self.A)": "F.linear(F.linear(x, a), b)",
    "self.ready[key] = weight + scale * (b @ a)": "F.linear(F.linear(x, a), b)",
    "stacked = torch.stack(list(states), dim=0)": "add them up one after the other",
    "w = self.weight[graph.etype]": "x[kind == k] @ weight[k]",
    "self.relation_weights[r]": "x[kind == k] @ weight[k]",
    "self.emb.weight[ids]": "layer(x)[index]",
    "self.item_table.weight[ids]": "layer(x)[index]",
}
HARMLESS = (
    "",
    "torch.linalg.svd(a, full_matrices=False)",
    "to_dense_adj(edge_index, data.batch)",
    "x.float().div_(255)",
    "scores.float() / 2560",
    "scale * (q.float() / 127)",
    "to_dense_adj(edges(d), batch)",
    'torch.linalg.qr(a, mode="reduced")',
    "scores.topk(10)",
    "model(x)",
    "loss.backward()",
    "a @ b",
    'torch.zeros(4, device="cpu")',
    "self.repeat",
    "torch.where(mask, x, 0)",
    "parts.cat()",
    "table[0:4]",
    "resort(x)",
    "x[src] + x[dst]",
    "x[2:n] * y",
    "total == x[src]",
    "x @ self.weight",
    "q @ k.transpose(-2, -1)",
    "softmax(q @ k.T)",
    "y = x @ self.weight + self.bias",
    "y = x * self.weight + q @ k",
    "A @ A.B",
    'torch.einsum("bid,bjd->bij", q, k)',
    "x.unfold(1, n, 1)",
    "torch.fft.rfft2(u)",
    "scores[:, None] > limit",
    "torch.fft.irfft2(u)",
    "F.leaky_relu(x, 0.2, inplace=True)",
    "x.expand(-1, n, -1)",
    "total_weight + x",
    "self.weight[0:4]",
)
NODES = {
    "GatherBackward0": "x.flatten(0, 1)[index + n * sample]",
    "LogSoftmaxBackward0": "a part of the rows",
    "UpsampleBilinear2DBackward0": "smaller maps",
    "SelectBackward0": "x.unbind(dim)",
    "SparseAddmmBackward0": "index_add_",
    "SliceBackward0": "labels that the loss ignores (-100)",
}
OTHER_NODES = ("", "MmBackward0", "IndexSelectBackward0", "Gather", "GatherNd", "MySelectBackward")


def told(
    tmp_path: Path, expression: str | None, *, mib: int = 600, node: str | None = None
) -> Finding | None:
    run = MadeRun(FRAMES)
    run.asks("data", 1000)
    answer = run.fails("rank", mib, tmp_path, expression=expression, node=node)
    return finding_of(answer, "costly_expression")


@pytest.mark.parametrize(("expression", "instead"), CALLS.items())
def test_what_to_do_instead_of_a_call(expression: str, instead: str) -> None:
    use = use_of_expression(expression)
    assert use is not None
    assert instead in use.fix


@pytest.mark.parametrize("expression", HARMLESS)
def test_a_call_that_makes_what_is_needed(expression: str) -> None:
    assert use_of_expression(expression) is None


@pytest.mark.parametrize(("node", "instead"), NODES.items())
def test_what_to_do_instead_of_a_gradient(node: str, instead: str) -> None:
    use = use_of_node(node)
    assert use is not None
    assert instead in use.fix


@pytest.mark.parametrize("node", OTHER_NODES)
def test_a_gradient_that_is_needed(node: str) -> None:
    assert use_of_node(node) is None


def test_the_operation_of_a_backward_pass_is_told_where_no_expression_is(tmp_path: Path) -> None:
    finding = told(tmp_path, None, node="GatherBackward0")
    assert finding is not None
    assert finding.title == (
        "GatherBackward0 makes a gradient as large as all that it picks from, expanded dimensions"
        " written out: 600.00 MiB at once"
    )
    assert told(tmp_path, "loss.backward()", node="MmBackward0") is None


def test_an_expression_comes_before_the_operation(tmp_path: Path) -> None:
    finding = told(tmp_path, "scores.argsort(dim=1)", node="GatherBackward0")
    assert finding is not None
    assert finding.title.startswith("scores.argsort(dim=1) sorts all entries")


def test_the_call_that_failed_is_told_with_its_bytes(tmp_path: Path) -> None:
    finding = told(tmp_path, "scores.argsort(dim=1, descending=True)")
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 600 << 20
    assert finding.title.startswith("scores.argsort(dim=1, descending=True) sorts all entries")
    assert finding.place is not None
    assert finding.place.line == 60


def test_a_small_request_failed_for_what_was_there(tmp_path: Path) -> None:
    assert told(tmp_path, "torch.sort(pnl, dim=1)", mib=300) is None
    assert told(tmp_path, "torch.sort(pnl, dim=1)", mib=400) is not None


SUMMED, EXPANDED = "torch.einsum", "x @ weight"


@pytest.mark.parametrize(
    ("statement", "expression", "node", "instead"),
    [
        ("return (windows.long() * powers).sum(-1)", "windows.long() * powers", "", SUMMED),
        ("out = torch.sum(w[..., None] * enc[:, None], dim=2)", "w[..., None] * e", "", SUMMED),
        ("out = (w.unsqueeze(-1) * enc).sum(2)", "", "MulBackward0", SUMMED),
        ("out = (w * enc) + bias", "w * enc", "", ""),
        ("out = (w * enc).sum(2)", "model(x)", "", ""),
        ("out = (w * enc).sum(2)", "", "AddBackward0", ""),
        ("k = torch.bmm(x, self.w.unsqueeze(0).expand(n, -1, -1))", "", "BmmBackward0", EXPANDED),
        ("k = torch.matmul(x, w.expand_as(y))", "", "BmmBackward0", EXPANDED),
        ("k = torch.bmm(x, self.w.unsqueeze(0).expand(n, -1, -1))", "torch.bmm(x, w)", "", ""),
        ("scores = torch.bmm(q, k)", "", "BmmBackward0", ""),
    ],
)
def test_what_follows_in_the_statement(
    statement: str, expression: str, node: str, instead: str
) -> None:
    use = use_of_statement(statement, expression=expression, node=node)
    assert (use is not None) == bool(instead)
    if use is not None:
        assert instead in use.fix


def test_the_statement_is_told_with_its_begin(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("data", 1000)
    source = {(FILE, 60): "return (windows * powers).sum(-1)"}
    answer = run.fails("rank", 600, tmp_path, expression="windows * powers", source=source)
    finding = finding_of(answer, "costly_expression")
    assert finding is not None
    assert finding.title.startswith("return (windows * powers).sum(-1) makes every product")


def test_without_an_expression_nothing_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, None) is None
    assert told(tmp_path, "model(x)") is None


@pytest.mark.parametrize(
    ("mib", "is_told"),
    [(2000, True), (1999, False)],  # a batch has fewer rows than what they are from
)
def test_rows_that_are_picked_more_than_once(tmp_path: Path, mib: int, is_told: bool) -> None:
    finding = told(tmp_path, "x[src] * weight", mib=mib)
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == mib << 20


def test_a_mask_with_one_more_dimension_makes_nothing_larger(tmp_path: Path) -> None:
    assert told(tmp_path, "hidden * mask.unsqueeze(-1)", mib=1000) is None


@pytest.mark.parametrize(("layers", "first"), [(0, "process_limit"), (1, "costly_expression")])
def test_what_every_layer_repeats_is_first_whatever_the_step_needs(
    tmp_path: Path, layers: int, first: str
) -> None:
    """The layers to come would ask for as much again, each."""
    run = MadeRun(FRAMES)
    run.asks("data", 1000)
    for _ in range(layers):
        run.asks("keys", 700)
    answer = run.fails("keys", 700, tmp_path, expression="bias.repeat(b, 1, 1, 1)")
    finding = finding_of(answer, "costly_expression")
    assert finding is not None
    assert finding.bytes == (layers + 1) * 700 << 20
    assert finding.recurs == (layers > 0)
    order = order_of_advice(
        answer.oom,
        answer.findings,
        np.zeros(0, np.int64),
        leaking=False,
        only_program_keeps=False,
        missing_bytes=9000 << 20,
    )
    assert ("costly_expression" in order) == (first == "costly_expression")


def test_a_long_expression_is_shown_by_its_begin(tmp_path: Path) -> None:
    finding = told(tmp_path, f"torch.sort(x, dim={'0 + ' * 40}1)")
    assert finding is not None
    assert finding.title.startswith("torch.sort(x, dim=0 + 0 + ")
    assert "… sorts" in finding.title


REPEATED = {
    (FILE, 30): "k = k.repeat_interleave(groups, dim=1)",
    (FILE, 31): "v = v.repeat_interleave(groups, dim=1)",
}


@pytest.mark.parametrize(
    ("source", "keys", "is_told"),
    [
        (REPEATED, 40, True),
        (REPEATED, 20, False),
        ({}, 40, False),
        ({(FILE, 30): "k = rotate(k)", (FILE, 31): "v = rotate(v)"}, 40, False),
        # What is sorted, or a buffer that is made whole, may well be kept.
        ({(FILE, 30): "k = torch.sort(k)", (FILE, 31): "v = torch.zeros(n)"}, 40, False),
    ],
)
def test_what_a_line_keeps_is_told_by_its_source(
    tmp_path: Path, source: dict[tuple[str, int], str], keys: int, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("data", 700)
    for _ in range(4):
        run.asks("keys", keys)
        run.asks("values", keys)
    answer = run.fails("rank", 60, tmp_path, source=source)
    finding = finding_of(answer, "costly_expression")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 8 * keys << 20
        assert finding.title.startswith(
            "k = k.repeat_interleave(groups, dim=1) (and 1 line like it)"
        )
        assert finding.place is not None
        assert finding.place.line == 30
