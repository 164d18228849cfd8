"""GPT-2 under bf16 autocast with gradient accumulation, then samples with generate()."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

torch.manual_seed(0)
config = GPT2Config(n_layer=8, n_head=12, n_embd=768, n_positions=512)
model = GPT2LMHeadModel(config).cuda()
decay = [p for p in model.parameters() if p.dim() > 1]
plain = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=3e-4, fused=True
)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 20)
accumulate = 3
for step in range(9):
    ids = torch.randint(0, 50257, (6, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids, labels=ids).loss / accumulate
    loss.backward()
    if (step + 1) % accumulate == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        print(step, loss.item())
model.eval()
prompt = torch.randint(0, 50257, (4, 32), device="cuda")
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    text = model.generate(prompt, max_new_tokens=24, do_sample=True, top_k=50, pad_token_id=50256)
print(text.shape)
