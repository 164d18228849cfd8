"""What a fix is said to free is what it frees: total minus what it keeps; a detached tensor
shares its storage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

STEPS = 12


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16))


def watched(keep: Callable[[list[Any], Any], None], *, backward: bool) -> Any:
    """The one leak of a program that keeps something of each step."""
    net, kept = model(), []
    watch = vramlens.LeakWatch()
    for _ in range(STEPS):
        out = net(torch.randn(128, 64))
        if backward:
            out.square().mean().backward()
            net.zero_grad()
        keep(kept, out)
        del out
        watch.step()
    (leak,) = watch.report().found
    return leak


def keep_out(kept: list[Any], out: Any) -> None:
    kept.append(out)


OUT_BYTES = 128 * 16 * 4


def test_after_the_backward_pass_a_detached_result_frees_nothing() -> None:
    leak = watched(keep_out, backward=True)
    assert leak.kind == "graph"
    assert leak.bytes_per_step == OUT_BYTES
    assert ".detach()" not in leak.fix
    assert "limit kept" in leak.fix
    assert leak.fix_bytes_per_step == OUT_BYTES


def test_before_it_a_detached_result_frees_all_but_itself() -> None:
    leak = watched(keep_out, backward=False)
    assert ".detach()" in leak.fix
    assert leak.bytes_per_step > 4 * OUT_BYTES
    assert leak.fix_bytes_per_step == leak.bytes_per_step - OUT_BYTES
    assert leak.to_dict()["fix_bytes_per_step"] == leak.fix_bytes_per_step


@pytest.mark.parametrize("detached", [False, True])
def test_the_scalar_of_mse_loss_keeps_all_errors(detached: bool) -> None:
    def keep_loss(kept: list[Any], out: Any) -> None:
        loss = torch.nn.functional.mse_loss(out, torch.zeros_like(out))
        kept.append(loss.detach() if detached else loss)

    leak = watched(keep_loss, backward=detached)
    assert leak.bytes_per_step >= OUT_BYTES
    assert ".item()" in leak.fix
    assert "F.mse_loss" in leak.fix
    assert ".detach()" not in leak.fix
