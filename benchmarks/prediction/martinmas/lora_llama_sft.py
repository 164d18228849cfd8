"""LoRA fine-tuning of a randomly initialised Llama on packed chat samples, then sampling with a KV cache."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

class LoRALinear(nn.Module):
    def __init__(self, base, r, alpha, dropout):
        super().__init__()
        self.base = base
        for q in base.parameters():
            q.requires_grad_(False)
        dev = base.weight.device
        self.a = nn.Parameter(torch.empty(r, base.in_features, device=dev))
        self.b = nn.Parameter(torch.zeros(base.out_features, r, device=dev))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.drop = nn.Dropout(dropout)
        self.scale = alpha / r

    def forward(self, x):
        delta = F.linear(F.linear(self.drop(x), self.a.to(x.dtype)), self.b.to(x.dtype))
        return self.base(x) + self.scale * delta

    @torch.no_grad()
    def merge(self):
        self.base.weight += (self.scale * self.b @ self.a).to(self.base.weight.dtype)
        return self.base

def inject(model, names, **kw):
    for mod in list(model.modules()):
        for child_name, child in list(mod.named_children()):
            if child_name in names and isinstance(child, nn.Linear):
                setattr(mod, child_name, LoRALinear(child, **kw))

def merge_all(model):
    for mod in list(model.modules()):
        for child_name, child in list(mod.named_children()):
            if isinstance(child, LoRALinear):
                setattr(mod, child_name, child.merge())

def collate(n, max_len, vocab):
    """Right-padded prompts and answers; the prompt part is not trained on."""
    lens = torch.randint(max_len // 2, max_len + 1, (n,))
    width = int(lens.max())
    ids = torch.randint(3, vocab, (n, width))
    pos = torch.arange(width)[None]
    att = (pos < lens[:, None]).long()
    labels = ids.masked_fill((pos < lens[:, None] // 3) | (att == 0), -100)
    return ids.masked_fill(att == 0, 0), att, labels

@torch.no_grad()
def sample(model, prompt, n_new, top_p=0.9, temperature=0.8):
    model.eval()
    ids, past, out = prompt, None, []
    for _ in range(n_new):
        res = model(input_ids=ids, past_key_values=past, use_cache=True)
        past = res.past_key_values
        logits = res.logits[:, -1].float() / temperature
        probs, order = logits.softmax(-1).sort(descending=True)
        cut = probs.cumsum(-1) - probs > top_p
        probs = probs.masked_fill(cut, 0.0)
        ids = order.gather(1, torch.multinomial(probs / probs.sum(-1, keepdim=True), 1))
        out.append(ids)
    return torch.cat(out, 1)

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--hidden", type=int, default=1536)
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--batch", type=int, default=6)
    p.add_argument("--max-len", type=int, default=900)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--updates", type=int, default=4)
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--new-tokens", type=int, default=48)
    a = p.parse_args()
    torch.manual_seed(42)
    cfg = LlamaConfig(hidden_size=a.hidden, intermediate_size=int(a.hidden * 2.75), num_hidden_layers=a.layers,
                      num_attention_heads=a.heads, num_key_value_heads=max(1, a.heads // 3), vocab_size=a.vocab,
                      max_position_embeddings=2048)
    model = LlamaForCausalLM(cfg).to(torch.bfloat16).to("cuda")
    inject(model, {"q_proj", "v_proj", "o_proj", "down_proj"}, r=a.rank, alpha=32, dropout=0.05)
    for n, q in model.named_parameters():
        q.requires_grad_(n.endswith(".a") or n.endswith(".b"))
    trainable = [q for q in model.parameters() if q.requires_grad]
    print(f"trainable {sum(q.numel() for q in trainable) / 1e6:.2f}M of {sum(q.numel() for q in model.parameters()) / 1e6:.1f}M")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model.config.use_cache = False
    opt = torch.optim.AdamW(trainable, lr=2e-4, weight_decay=0.0)
    sched = get_cosine_schedule_with_warmup(opt, 1, a.updates)
    model.train()
    for upd in range(a.updates):
        losses = []
        for _ in range(a.accum):
            ids, att, labels = (t.to("cuda") for t in collate(a.batch, a.max_len, a.vocab))
            out = model(input_ids=ids, attention_mask=att, labels=labels)
            (out.loss / a.accum).backward()
            losses.append(out.loss.detach())
        nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        print(f"update {upd} loss {torch.stack(losses).mean().item():.4f} width {ids.size(1)}")
    model.gradient_checkpointing_disable()
    merge_all(model)
    prompt = torch.randint(3, a.vocab, (a.batch * 2, a.max_len // 2), device="cuda")
    text = sample(model, prompt, a.new_tokens)
    print("sampled", tuple(text.shape), "distinct", text.unique().numel())

if __name__ == "__main__":
    main()
