"""A bidirectional LSTM on packed sequences with early stopping on the validation loss."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

device = "cuda"
torch.manual_seed(3)
lengths = torch.randint(20, 200, (256,))
texts = [torch.randint(1, 10000, (int(n),)) for n in lengths]
labels = torch.randint(0, 2, (256,)).float()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10000, 256, padding_idx=0)
        self.lstm = nn.LSTM(256, 512, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3)
        self.fc = nn.Linear(1024, 1)

    def forward(self, text, lengths):
        packed = pack_padded_sequence(self.embedding(text), lengths, batch_first=True, enforce_sorted=False)
        out, (hidden, cell) = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return self.fc(out.max(dim=1).values).squeeze(-1)


def batches(begin, end, size):
    for i in range(begin, end, size):
        yield pad_sequence(texts[i : i + size], batch_first=True), lengths[i : i + size], labels[i : i + size]


model = Tagger().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
criterion = nn.BCEWithLogitsLoss().to(device)
best, patience = float("inf"), 2
for epoch in range(3):
    model.train()
    for text, length, label in batches(0, 192, 64):
        optimizer.zero_grad(set_to_none=False)
        loss = criterion(model(text.to(device), length), label.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    total = 0.0
    with torch.no_grad():
        for text, length, label in batches(192, 256, 64):
            total += criterion(model(text.to(device), length), label.to(device)).item()
    print(f"epoch {epoch} val {total:.3f}")
    if total < best:
        best, patience = total, 2
        state = {k: v.cpu().clone() for k, v in model.state_dict().items()}
    else:
        patience -= 1
        if patience == 0:
            break
model.load_state_dict(state)
