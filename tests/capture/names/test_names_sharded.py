"""Names of what DDP, FSDP and DTensor keep: one process that is its own group, and two that
share a model.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

WORKER = """
import json, sys, warnings
import torch
import torch.distributed as dist
from torch import nn

from vramlens.capture.names.tensor_names import named_tensors

warnings.simplefilter("ignore")
what, rank, world, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
looks = []


def look():
    looks.append([[t.kind, t.bytes, t.name] for t in named_tensors(device_type="cpu")])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.head = nn.Linear(64, 8)
        self.pause = None

    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        x = self.head(x)
        self.pause and self.pause()
        return x


def train(model, net):
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        net.pause = look if step else None
        loss = model(torch.ones(2, 64)).sum()
        net.pause = None
        loss.backward()
        if step:
            optimizer.step()
            look()
        else:
            optimizer.step()
            optimizer.zero_grad()


net = Net()
if what.startswith("ddp"):
    wrapped = torch.compile(net, backend="eager") if what == "ddp_views" else net
    model = nn.parallel.DistributedDataParallel(wrapped, gradient_as_bucket_view=what == "ddp_views")
elif what == "fsdp2":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (world,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in net.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    model = fully_shard(net, mesh=mesh, mp_policy=policy)
else:
    from torch.distributed.fsdp import FullyShardedDataParallel

    settings = {"use_orig_params": what == "fsdp1_original", "device_id": torch.device("cpu")}
    for index in range(2):
        net.blocks[index] = FullyShardedDataParallel(net.blocks[index], **settings)
    model = FullyShardedDataParallel(net, **settings)
train(model, net)
dist.barrier()
if rank == 0:
    print(json.dumps(looks))
dist.destroy_process_group()
"""
"""Trains two steps, and looks at the end of the second forward pass and after the step."""


def looks(tmp_path, what: str, world: int) -> list[dict[str, tuple[str, int]]]:
    """Names on rank 0, with kind and bytes, in the middle of a step and at its end."""
    commands = [
        [sys.executable, "-c", WORKER, what, str(rank), str(world), str(tmp_path / "store")]
        for rank in range(world)
    ]
    ranks = [
        subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for c in commands
    ]
    try:
        answers = [rank.communicate(timeout=600) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        pytest.fail("".join(answer[1] for answer in answers)[-3000:])
    found = json.loads(answers[0][0].splitlines()[-1])
    for rows in found:
        assert len({name for _, _, name in rows}) == len(rows)
    return [{name: (kind, size) for kind, size, name in rows} for rows in found]


def total(names: dict[str, tuple[str, int]], kind: str) -> int:
    return sum(size for found, size in names.values() if found == kind)


PARAMETERS = (2 * (64 * 64 + 64) + 64 * 8 + 8) * 4


def test_ddp(tmp_path) -> None:
    _, after = looks(tmp_path, "ddp", 1)
    assert after["model.blocks.1.weight"] == ("parameter", 64 * 64 * 4)
    assert after["grad[model.blocks.1.weight]"] == ("gradient", 64 * 64 * 4)
    assert after["optimizer.exp_avg[model.head.bias]"] == ("optimizer_state", 32)
    assert total(after, "parameter") == PARAMETERS


def test_gradients_that_are_views_of_buckets(tmp_path) -> None:
    _, after = looks(tmp_path, "ddp_views", 1)
    assert after["grad[model.blocks.0.weight and 5 more]"] == ("gradient", PARAMETERS)
    assert after["model.blocks.1.weight"] == ("parameter", 64 * 64 * 4), (
        "torch.compile leaves no trace"
    )


@pytest.mark.parametrize("world", [1, 2])
def test_fsdp2(tmp_path, world) -> None:
    middle, after = looks(tmp_path, "fsdp2", world)
    assert after["model.blocks.1.weight"] == ("parameter", 64 * 64 * 4 // world)
    assert after["optimizer.exp_avg[model.blocks.1.weight]"] == (
        "optimizer_state",
        64 * 64 * 4 // world,
    )
    assert total(after, "parameter") == PARAMETERS // world
    assert total(after, "gradient") == PARAMETERS // world
    assert middle["model.head.weight"] == ("parameter", 64 * 8 * 4 // world)
    assert middle["model.head.weight (all-gathered)"] == ("parameter", 64 * 8 * 2)  # bfloat16
    assert middle["optimizer.exp_avg[model.head.weight]"] == (
        "optimizer_state",
        64 * 8 * 4 // world,
    )


@pytest.mark.parametrize("original", [False, True])
def test_fsdp1(tmp_path, original) -> None:
    middle, after = looks(tmp_path, "fsdp1_original" if original else "fsdp1", 2)
    block = (64 * 64 + 64) * 4
    assert after["model.blocks.1.(flat parameter of 2)"] == ("parameter", block // 2)
    assert after["grad[model.blocks.1.(flat parameter of 2)]"] == ("gradient", block // 2)
    assert total(after, "parameter") == PARAMETERS // 2
    assert total(after, "gradient") == PARAMETERS // 2
    averages = {name for name in after if name.startswith("optimizer.exp_avg[")}
    if original:
        assert averages == {
            f"optimizer.exp_avg[model.{part}.weight]" for part in ("blocks.0", "blocks.1", "head")
        }
    else:
        assert averages == {
            f"optimizer.exp_avg[model.{part}(flat parameter of 2)]"
            for part in ("blocks.0.", "blocks.1.", "")
        }
    gathered = {name: size for name, (_, size) in middle.items() if name.endswith("(all-gathered)")}
    assert gathered == {"model.(flat parameter of 2) (all-gathered)": (64 * 8 + 8) * 4}
