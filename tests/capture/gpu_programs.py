"""Programs for a real GPU, each run under ``vramlens run`` by gpu_capture.sh: python
gpu_programs.py NAME.
"""

from __future__ import annotations

import os
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(functional.gelu(self.up(x)))


class GPT(nn.Module):
    def __init__(self, width: int = 512, layers: int = 6, checkpointed: bool = False) -> None:
        super().__init__()
        self.tok, self.checkpointed = nn.Embedding(8192, width), checkpointed
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 8192, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def loss_of(model: nn.Module, batch: int = 8, length: int = 512) -> torch.Tensor:
    ids = torch.randint(0, 8192, (batch, length), device="cuda")
    return functional.cross_entropy(model(ids).view(-1, 8192), ids.view(-1))


def train(model: nn.Module, steps: int = 4, **size: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        loss = loss_of(model, **size)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def gpt() -> None:
    torch.manual_seed(0)
    print(
        train(GPT().cuda()),
        torch.cuda.max_memory_allocated(),
        torch.cuda.get_rng_state().sum().item(),
    )


def checkpointed() -> None:
    torch.manual_seed(0)
    print(train(GPT(checkpointed=True).cuda()), torch.cuda.max_memory_allocated())


def compiled() -> None:
    torch.manual_seed(0)
    print(train(torch.compile(GPT(layers=2).cuda())), torch.cuda.max_memory_allocated())


def graphs() -> None:
    model, ids = GPT(layers=2).cuda(), torch.zeros(4, 128, dtype=torch.long, device="cuda")
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        model(ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(ids)
    graph.replay()
    torch.cuda.synchronize()


def eval_with_grad() -> None:
    model = GPT().cuda()
    train(model, 2)
    model.eval()
    outputs = [model(torch.randint(0, 8192, (8, 512), device="cuda")) for _ in range(3)]
    print(len(outputs))


def capped(gib: float) -> None:
    torch.cuda.set_per_process_memory_fraction(
        gib * 2**30 / torch.cuda.get_device_properties(0).total_memory
    )


def oom_forward() -> None:
    capped(2)
    train(GPT().cuda(), 3, batch=64)


def oom_backward() -> None:
    """The request that fails is autograd's own, on its own thread."""
    x = torch.randn(64 << 20, device="cuda", requires_grad=True)
    y = x.exp().sum()
    capped(0.55)
    y.backward()


def oom_compiled() -> None:
    capped(2)
    train(torch.compile(GPT().cuda()), 3, batch=64)


def oom_autocast_caught_twice() -> None:
    capped(2)
    model = GPT().cuda()
    for batch in (256, 128, 4):
        try:
            with torch.autocast("cuda", torch.bfloat16):
                loss_of(model, batch).backward()
            print("fits:", batch)
        except torch.OutOfMemoryError as error:
            print("caught:", batch, error.__notes__[0].splitlines()[0])


def oom_really_full() -> None:
    hog = torch.empty(torch.cuda.mem_get_info()[0] - (1200 << 20), dtype=torch.uint8, device="cuda")
    train(GPT().cuda(), 3, batch=64)
    del hog


def hf_trainer() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_embd=512, n_layer=6, n_head=8))
    data = [{"input_ids": torch.randint(0, 8192, (256,))} for _ in range(64)]
    data = [{**row, "labels": row["input_ids"]} for row in data]
    arguments = TrainingArguments(
        output_dir="/tmp/hf",
        max_steps=4,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=data).train()


def lightning() -> None:
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = GPT()

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            return functional.cross_entropy(self.net(batch).view(-1, 8192), batch.view(-1))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    loader = torch.utils.data.DataLoader(torch.randint(0, 8192, (32, 512)), batch_size=8)
    pl.Trainer(
        max_steps=4, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(Module(), loader)  # fmt: skip


def distributed(wrap: str) -> None:
    import torch.distributed as dist

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    model = GPT().cuda()
    if wrap == "ddp":
        train(nn.parallel.DistributedDataParallel(model, device_ids=[rank]))
    else:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        train(model)
    dist.destroy_process_group()


def ddp() -> None:
    distributed("ddp")


def fsdp2() -> None:
    distributed("fsdp2")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
