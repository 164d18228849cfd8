"""BERT masked language modelling: batches padded to their longest, bf16 autocast, a linear warm-up."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM

torch.manual_seed(4)
generator = torch.Generator().manual_seed(4)
lengths = torch.randint(60, 500, (96,), generator=generator).tolist()
sentences = [torch.randint(1000, 30000, (n,), generator=generator) for n in lengths]


def collate(rows):
    longest = (max(len(row) for row in rows) + 7) // 8 * 8
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    labels = ids.clone()
    hidden = (torch.rand(ids.shape, generator=generator) < 0.15) & mask.bool()
    labels[~hidden] = -100
    ids[hidden] = 103
    return ids, mask, labels


model = BertForMaskedLM(BertConfig(num_hidden_layers=8, hidden_size=640, num_attention_heads=10, intermediate_size=2560)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=4)
total = torch.zeros((), device="cuda")
for ids, mask, labels in DataLoader(sentences, batch_size=16, collate_fn=collate):
    ids, mask, labels = ids.cuda(non_blocking=True), mask.cuda(non_blocking=True), labels.cuda(non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
    out.loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    total += out.loss.detach()
print((total / 6).item())
