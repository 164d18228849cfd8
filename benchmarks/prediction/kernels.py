"""Kernels by the sizes of what they are given: every request of each, on a GPU and predicted.

    python kernels.py measure FILE.json     the cases of FILE again, on a GPU; needs torch only
    python kernels.py score [KIND...]       the prediction beside kernels_measured.json.xz

Measured on an H200 on 2026-11-26 (PyTorch 2.11, cuDNN 9.19). Each case is run twice, and its requests
are noted in the second run: what was given back is negative. Convolutions were drawn at random from
usual sizes, types and layouts, half of them with ``torch.backends.cudnn.benchmark``.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

MEASURED = Path(__file__).with_name("kernels_measured.json.xz")
DTYPES = {"f": torch.float32, "h": torch.float16, "b": torch.bfloat16}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
SMALL_BYTES = 512
"""Requests up to this, of one block, are not compared."""
NEAR = 0.03
_MATRICES: dict[str, Callable[[Any], Any]] = {
    "cholesky": torch.linalg.cholesky,
    "eigh": torch.linalg.eigh,
    "svd": torch.linalg.svd,
    "qr": torch.linalg.qr,
    "inv": torch.linalg.inv,
    "slogdet": torch.linalg.slogdet,
    "solve": lambda matrix: torch.linalg.solve(matrix, matrix),
}
_ROWS: dict[str, Callable[[Any], Any]] = {
    "nonzero": lambda x: (x > 0).nonzero(),
    "index_bool": lambda x: x[x > 0],
    "cumsum": lambda x: x.cumsum(0),
    "cumsum1": lambda x: x.view(1000, -1).cumsum(1),
    "sort": lambda x: x.sort(),
    "unique": lambda x: (x * 100).long().unique(),
    "unique_c": lambda x: (x * 100).long().unique(return_counts=True),
    "bincount": lambda x: (x.abs() * 100).long().bincount(),
    "multinomial": lambda x: x.abs().view(100, -1).multinomial(5),
    "multinomial_r": lambda x: x.abs().view(100, -1).multinomial(5, replacement=True),
    "normal_like": lambda x: torch.normal(x, x.abs()),
    "median": lambda x: x.median(),
    "kthvalue": lambda x: x.view(1000, -1).kthvalue(5),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "cummax": lambda x: x.cummax(0),
    "argsort": lambda x: x.view(1000, -1).argsort(1),
    "searchsorted": lambda x: torch.searchsorted(x.sort()[0], x),
}


def cases_in(path: Path) -> list[dict[str, Any]]:
    """The cases of a file: their kind, sizes and measured requests."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt") as file:
        return json.load(file)["cases"]


def made(case: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
    """What a case's function takes, and the function."""
    kind = case["kind"]
    if "w" in case:
        return _convolution(case)
    if kind == "layer_norm":
        return _layer_norm(case)
    if kind == "topk":
        shape = (case["n"], case["rows"]) if case["t"] else (case["rows"], case["n"])
        numbers = torch.randn(shape, device="cuda", dtype=DTYPES[case["dtype"]])
        return numbers.t() if case["t"] else numbers, lambda x: x.topk(case["k"])
    if kind == "masked":
        return _masked_attention(case)
    if kind == "foreach_norm":
        tensors = [torch.randn(case["size"], device="cuda") for _ in range(case["count"])]
        return tensors, torch._foreach_norm
    if kind in _MATRICES:
        shape = (case["b"], case["n"], case["n"]) if case["b"] > 1 else (case["n"], case["n"])
        matrix = torch.randn(shape, device="cuda", dtype=getattr(torch, case["dtype"]))
        return matrix @ matrix.mT + case["n"] * torch.eye(
            case["n"], device="cuda", dtype=matrix.dtype
        ), _MATRICES[kind]
    return torch.randn(case["n"], device="cuda"), _ROWS[kind]


def _convolution(case: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
    torch.backends.cudnn.benchmark = case["bench"]
    dtype = DTYPES[case["dtype"]]
    tensor, weight = (torch.randn(case[key], device="cuda", dtype=dtype) for key in ("shape", "w"))
    if case["last"] and tensor.dim() in LAST:
        memory_format = LAST[tensor.dim()]
        tensor, weight = (one.to(memory_format=memory_format) for one in (tensor, weight))
    outputs = case["w"][1] * case["groups"] if case["transposed"] else case["w"][0]
    bias = torch.randn(outputs, device="cuda", dtype=dtype)
    function = getattr(
        functional, f"conv{'_transpose' if case['transposed'] else ''}{case['dims']}d"
    )
    options = {key: case[name] for key, name in _OPTIONS.items()}
    inputs = [one.requires_grad_() for one in (tensor, weight, bias)]

    def forward(inputs: Any) -> Any:
        return function(*inputs, **options)

    def both(inputs: Any) -> Any:
        return _gradients(forward(inputs), inputs)

    return inputs, both if case["kind"].endswith("_both") else forward


_OPTIONS = {"stride": "stride", "padding": "pad", "groups": "groups", "dilation": "dilation"}


def _layer_norm(case: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
    dtype, width = DTYPES[case["dtype"]], case["N"]
    shapes = (case["M"], width), (width,), (width,)
    inputs = [torch.randn(shape, device="cuda", dtype=dtype).requires_grad_() for shape in shapes]
    return inputs, lambda inputs: _gradients(
        functional.layer_norm(inputs[0], (width,), inputs[1], inputs[2]), inputs
    )


def _masked_attention(case: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
    length, dtype = case["L"], DTYPES[case["dtype"]]
    inputs = [
        torch.randn(4, 8, length, 64, device="cuda", dtype=dtype).requires_grad_() for _ in range(3)
    ]
    shape = (4, 1, length, length) if case["full"] else (4, 1, 1, length)
    mask = torch.ones(shape, dtype=torch.bool, device="cuda")
    return inputs, lambda inputs: _gradients(
        functional.scaled_dot_product_attention(*inputs, attn_mask=mask), inputs
    )


def _gradients(result: Any, inputs: Any) -> Any:
    return torch.autograd.grad(result, inputs, torch.ones_like(result))


def measure(path: Path) -> None:
    """Measures the cases of the file in this folder on a GPU."""
    rows = []
    for case in cases_in(MEASURED):
        inputs, function = made(case)
        function(inputs)
        torch.cuda.synchronize()
        torch.cuda.memory._record_memory_history(context=None, max_entries=100_000)
        results = function(inputs)
        torch.cuda.synchronize()
        rows.append({**case, "requests": list(_requests())})
        torch.cuda.memory._record_memory_history(None)
        del inputs, function, results
        torch.cuda.empty_cache()
    head = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    path.write_text(json.dumps({**head, "cases": rows}))


def _requests() -> Iterator[int]:
    for event in torch.cuda.memory._snapshot()["device_traces"][0]:
        if event["action"] in ("alloc", "free_completed"):
            yield event["size"] if event["action"] == "alloc" else -event["size"]


def predicted(cases: list[dict[str, Any]], gpu: str = "h200") -> list[list[int]]:
    """What a prediction says that each case requests, in order."""
    from vramlens.cards.known_cards import card_named
    from vramlens.prediction.predicted_run import PredictedRun

    run, requests = PredictedRun(card_named(gpu)), []
    with run.going():
        for case in cases:
            inputs, function = made(case)
            function(inputs)
            first = len(run.log.sizes)
            results = function(inputs)
            requests.append(list(run.log.sizes[first:]))
            del inputs, function, results
    return requests


def likeness(measured: list[int], ours: list[int]) -> str:
    """``exact`` where all requests of some size are the same in order, ``near`` where their sum is
    within 3%, else empty.
    """
    truth = [size for size in measured if size > SMALL_BYTES]
    ours = [size for size in ours if size > SMALL_BYTES]
    if truth == ours:
        return "exact"
    return "near" if math.isclose(sum(truth), sum(ours), rel_tol=NEAR) else ""


def scores(kinds: list[str]) -> dict[str, list[str]]:
    """By kind, how like each case's prediction is to what was measured."""
    cases = [case for case in cases_in(MEASURED) if not kinds or case["kind"] in kinds]
    by_kind = defaultdict(list)
    for case, ours in zip(cases, predicted(cases), strict=True):
        by_kind[case["kind"]].append(likeness(case["requests"], ours))
    return by_kind


def main() -> None:
    """Measures, or prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("measure").add_argument("file", type=Path)
    commands.add_parser("score").add_argument("kinds", nargs="*")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments.file)
        return
    for kind, likenesses in sorted(scores(arguments.kinds).items()):
        exact = likenesses.count("exact")
        near = exact + likenesses.count("near")
        print(f"{kind:24} {len(likenesses):4} cases, {exact:4} exact, {near:4} within 3%")


if __name__ == "__main__":
    main()
