"""An LSTM language model with truncated backpropagation: states are handed on, tied weights."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Language(nn.Module):
    def __init__(self, tokens=20000, width=640, layers=3):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.rnn = nn.LSTM(width, width, layers, dropout=0.4)
        self.drop = nn.Dropout(0.4)
        self.out = nn.Linear(width, tokens)
        self.out.weight = self.embed.weight

    def forward(self, ids, state):
        x, state = self.rnn(self.drop(self.embed(ids)), state)
        return self.out(self.drop(x)), state


torch.manual_seed(11)
text = torch.randint(0, 20000, (35 * 8 + 1, 64)).cuda()
model = Language().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=20)
state = (torch.zeros(3, 64, 640, device="cuda"), torch.zeros(3, 64, 640, device="cuda"))
for begin in range(0, 35 * 7, 35):
    state = tuple(s.detach() for s in state)
    logits, state = model(text[begin : begin + 35], state)
    loss = F.cross_entropy(logits.flatten(0, 1), text[begin + 1 : begin + 36].flatten())
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(begin, loss.item())
model.eval()
with torch.no_grad():
    logits, _ = model(text[:35], None)
    print(logits.log_softmax(-1).max().item())
