"""LoRA fine-tuning of a frozen 2B decoder in bf16, then batched sampling with a growing KV cache."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"


class LoRALinear(nn.Module):
    def __init__(self, cin, cout, rank, alpha, dropout):
        super().__init__()
        self.base = nn.Linear(cin, cout, bias=False)
        self.base.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.empty(rank, cin, dtype=torch.float32))
        self.b = nn.Parameter(torch.zeros(cout, rank, dtype=torch.float32))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout)
        self.merged = False

    def forward(self, x):
        y = self.base(x)
        if self.merged:
            return y
        low = F.linear(self.dropout(x), self.a.to(x.dtype))
        return y + F.linear(low, self.b.to(x.dtype)) * self.scale

    @torch.no_grad()
    def merge(self):
        self.base.weight += (self.b @ self.a * self.scale).to(self.base.weight.dtype)
        self.merged = True


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads = c.heads, c.kv_heads
        self.hd = c.dim // c.heads
        kv = c.kv_heads * self.hd
        self.norm1, self.norm2 = nn.RMSNorm(c.dim), nn.RMSNorm(c.dim)
        self.q = LoRALinear(c.dim, c.dim, c.rank, 32, 0.05)
        self.k = nn.Linear(c.dim, kv, bias=False)
        self.v = LoRALinear(c.dim, kv, c.rank, 32, 0.05)
        self.o = nn.Linear(c.dim, c.dim, bias=False)
        self.up = nn.Linear(c.dim, c.ffn, bias=False)
        self.down = nn.Linear(c.ffn, c.dim, bias=False)

    def forward(self, x, past=None):
        b, t, d = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, t, self.heads, self.hd).transpose(1, 2)
        k = self.k(h).view(b, t, self.kv_heads, self.hd).transpose(1, 2)
        v = self.v(h).view(b, t, self.kv_heads, self.hd).transpose(1, 2)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=True)
        x = x + self.o(out.transpose(1, 2).reshape(b, t, d))
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x, (k, v)


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.dim)
        self.pos = nn.Embedding(c.max_len, c.dim)
        self.layers = nn.ModuleList([Layer(c) for _ in range(c.layers)])
        self.norm = nn.RMSNorm(c.dim)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)

    def forward(self, tokens, cache=None):
        offset = cache[0][0].shape[2] if cache else 0
        x = self.embed(tokens) + self.pos.weight[offset: offset + tokens.shape[1]]
        new_cache = []
        for i, layer in enumerate(self.layers):
            x, kv = layer(x, cache[i] if cache else None)
            new_cache.append(kv)
        return F.linear(self.norm(x), self.embed.weight), new_cache


def build(c):
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Decoder(c)
    torch.set_default_dtype(old)
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith((".a", ".b")))
    return model


@torch.inference_mode()
def generate(model, prompt, new_tokens, temperature=0.8, top_k=50):
    logits, cache = model(prompt)
    out = [prompt]
    for _ in range(new_tokens):
        last = logits[:, -1].float() / temperature
        value, index = last.topk(top_k, dim=-1)
        choice = torch.multinomial(value.softmax(-1), 1)
        token = index.gather(1, choice)
        out.append(token)
        logits, cache = model(token, cache)
    return torch.cat(out, dim=1), cache


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(dim=2560, layers=24, heads=20, kv_heads=10, ffn=10240, vocab=50304, rank=16,
                              max_len=2048, batch=2, seq=768, accum=2, steps=20, gen_batch=80, prompt=512,
                              new_tokens=192).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    c = p.parse_args()

    torch.manual_seed(0)
    model = build(c)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f}B parameters, "
          f"{sum(p.numel() for p in trainable) / 1e6:.2f}M trainable")
    optimizer = torch.optim.AdamW(trainable, lr=2e-4, weight_decay=0.0, fused=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=c.steps)
    g = torch.Generator().manual_seed(8)
    start = time.time()
    model.train()
    for step in range(c.steps):
        optimizer.zero_grad(set_to_none=True)
        running = 0.0
        for _ in range(c.accum):
            base = torch.randint(c.vocab // 2, (c.batch, 1), generator=g)
            seq = ((base + torch.arange(c.seq + 1) * 3) % c.vocab).to(device)
            logits, _ = model(seq[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), seq[:, 1:].flatten()) / c.accum
            loss.backward()
            running += loss.item()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        scheduler.step()
        if step % 5 == 0:
            print(f"step {step} loss {running:.4f} {time.time() - start:.1f}s")
    adapter = {k: v.detach().to("cpu", copy=True) for k, v in model.named_parameters() if v.requires_grad}
    print(f"adapter tensors {len(adapter)}")

    model.eval()
    for m in model.modules():
        if isinstance(m, LoRALinear):
            m.merge()
    prompt = torch.randint(c.vocab, (c.gen_batch, c.prompt), generator=g).to(device)
    tokens, cache = generate(model, prompt, c.new_tokens)
    print(f"generated {tuple(tokens.shape)} cache length {cache[0][0].shape[2]} "
          f"distinct {tokens[:, c.prompt:].unique().numel()} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
