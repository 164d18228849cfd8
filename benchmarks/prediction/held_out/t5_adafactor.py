"""T5 for summaries: padded sequences of mixed lengths, Adafactor, label padding, evaluation loss."""

import random

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

random.seed(1)
torch.manual_seed(1)


class Articles(Dataset):
    def __init__(self, count):
        self.rows = [(random.randint(180, 512), random.randint(20, 96)) for _ in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        source, target = self.rows[index]
        return torch.randint(2, 32000, (source,)), torch.randint(2, 32000, (target,))


def collate(rows):
    sources, targets = zip(*rows)
    ids = pad_sequence(list(sources), batch_first=True, padding_value=0)
    labels = pad_sequence(list(targets), batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


model = T5ForConditionalGeneration(T5Config(d_model=640, d_ff=1792, d_kv=64, num_layers=6, num_heads=10, decoder_start_token_id=0)).cuda()
optimizer = Adafactor(model.parameters(), scale_parameter=True, relative_step=True, warmup_init=True, lr=None)
loader = DataLoader(Articles(40), batch_size=8, collate_fn=collate)
for batch in loader:
    batch = {name: tensor.cuda() for name, tensor in batch.items()}
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    losses = [model(**{k: v.cuda() for k, v in batch.items()}).loss.item() for batch in DataLoader(Articles(16), batch_size=16, collate_fn=collate)]
print(sum(losses))
