"""Instruction tuning of a small Llama in pure bf16, with gradient checkpointing and accumulation.

The prompt part of every example is masked out of the loss.
"""
import argparse
import random
import tempfile
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

IGNORE = -100
PAD, BOS, EOS = 0, 1, 2


@dataclass
class Config:
    hidden: int = 1280
    layers: int = 18
    heads: int = 20
    kv_heads: int = 5
    ffn: int = 3456
    vocab: int = 32000
    max_len: int = 900
    micro_batch: int = 6
    accum: int = 4
    updates: int = 9
    lr: float = 2e-4
    clip: float = 1.0
    n_train: int = 240
    n_eval: int = 30
    seed: int = 7


class Instructions(Dataset):
    def __init__(self, n, cfg, seed):
        rng = random.Random(seed)
        gen = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            p_len = rng.randint(20, cfg.max_len // 2)
            a_len = rng.randint(16, cfg.max_len - p_len - 2)
            prompt = torch.randint(3, cfg.vocab, (p_len,), generator=gen)
            # the answer re-uses words of the prompt
            answer = prompt[torch.randint(0, p_len, (a_len,), generator=gen)]
            ids = torch.cat([torch.tensor([BOS]), prompt, answer, torch.tensor([EOS])])
            labels = ids.clone()
            labels[: p_len + 1] = IGNORE
            self.items.append((ids, labels))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    ids = pad_sequence([b[0] for b in batch], batch_first=True, padding_value=PAD)
    labels = pad_sequence([b[1] for b in batch], batch_first=True, padding_value=IGNORE)
    lengths = torch.tensor([len(b[0]) for b in batch])
    mask = (torch.arange(ids.size(1))[None, :] < lengths[:, None]).long()
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def build_model(cfg):
    config = LlamaConfig(
        vocab_size=cfg.vocab, hidden_size=cfg.hidden, num_hidden_layers=cfg.layers,
        num_attention_heads=cfg.heads, num_key_value_heads=cfg.kv_heads,
        intermediate_size=cfg.ffn, max_position_embeddings=2048,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, use_cache=False,
    )
    model = LlamaForCausalLM(config).to(dtype=torch.bfloat16, device="cuda")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def to_gpu(batch):
    return {k: v.to("cuda", non_blocking=True) for k, v in batch.items()}


@torch.inference_mode()
def eval_loss(model, loader):
    model.eval()
    losses = [model(**to_gpu(batch)).loss for batch in loader]
    model.train()
    return torch.stack(losses).float().mean().item()


def train(cfg):
    torch.manual_seed(cfg.seed)
    model = build_model(cfg)
    print("params (M):", round(model.num_parameters() / 1e6, 1))

    train_dl = DataLoader(Instructions(cfg.n_train, cfg, cfg.seed), batch_size=cfg.micro_batch,
                          shuffle=True, collate_fn=collate, drop_last=True)
    eval_dl = DataLoader(Instructions(cfg.n_eval, cfg, cfg.seed + 1), batch_size=cfg.micro_batch,
                         collate_fn=collate)

    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.0, betas=(0.9, 0.99))
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, cfg.updates)

    print("loss before:", round(eval_loss(model, eval_dl), 3))
    model.train()
    update, running = 0, 0.0
    while update < cfg.updates:
        for i, batch in enumerate(train_dl, start=1):
            loss = model(**to_gpu(batch)).loss / cfg.accum
            loss.backward()
            running += loss.detach()
            if i % cfg.accum:
                continue
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            update += 1
            print(f"update {update}: loss {float(running):.4f} |g| {float(grad_norm):.3f} "
                  f"longest {batch['input_ids'].shape[1]}")
            running = 0.0
            if update == cfg.updates:
                break
    print("loss after:", round(eval_loss(model, eval_dl), 3))

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        print("saved to", folder)


def main():
    parser = argparse.ArgumentParser()
    defaults = Config()
    for name, value in vars(defaults).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    train(Config(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
