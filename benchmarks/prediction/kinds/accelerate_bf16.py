"""Accelerate: bf16, accumulation, clipping, gathered metrics, a saved and loaded state."""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

set_seed(3)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = GPT2LMHeadModel(GPT2Config(vocab_size=5000, n_positions=128, n_embd=128, n_layer=2, n_head=4))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
data = TensorDataset(torch.randint(0, 5000, (64, 128)))
loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 8)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for epoch in range(2):
    total = torch.zeros((), device=accelerator.device)
    for (ids,) in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        total += loss.detach()
    mean = accelerator.gather(total).mean().item() / len(loader)
    accelerator.print(f"epoch {epoch}: {mean:.3f}, perplexity {torch.exp(torch.tensor(mean)):.1f}")
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    accelerator.load_state(folder)
