"""A Llama under FSDP2 with mixed precision, clipping and a mesh: torchrun --nproc-per-node 2."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--keep", action="store_true", help="no reshard after forward")
parser.add_argument("--fp32", action="store_true")
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))
torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=10, num_attention_heads=16, vocab_size=32000,
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
if args.checkpoint:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
options = {"mesh": mesh, "reshard_after_forward": not args.keep}
if not args.fp32:
    options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, **options)
fully_shard(model, **options)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
model.train()
for step in range(4):
    ids = torch.randint(0, 32000, (4, 1024), device="cuda")
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(step, loss.item(), norm.item() if norm.ndim == 0 else norm)
dist.destroy_process_group()
