"""A small RNN-T: LSTM encoder and predictor, a joiner, the loss by dynamic programming, greedy decoding."""

import torch
import torch.nn as nn

VOCABULARY, WIDTH = 40, 96


class Transducer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(40, WIDTH, 2, batch_first=True, dropout=0.1)
        self.embedding, self.predictor = nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.join = nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, sound, words):
        heard, _ = self.encoder(sound)
        said, _ = self.predictor(self.embedding(nn.functional.pad(words, (1, 0))))
        return self.join(heard[:, :, None] + said[:, None]).log_softmax(-1)


def loss_of(scores, words):
    batch, steps, places, _ = scores.shape
    blank = scores[..., 0]
    emit = scores[:, :, :-1].gather(-1, words[:, None, :, None].expand(-1, steps, -1, 1))[..., 0]
    row = torch.cat([torch.zeros_like(emit[:, 0, :1]), emit[:, 0].cumsum(-1)], -1)
    for step in range(1, steps):
        stay = row + blank[:, step - 1]
        columns = [stay[:, 0]]
        for place in range(1, places):
            columns.append(torch.logaddexp(stay[:, place], columns[-1] + emit[:, step, place - 1]))
        row = torch.stack(columns, -1)
    return -(row[:, -1] + blank[:, -1, -1]).mean()


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = Transducer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(2):
    sound, words = torch.randn(4, 24, 40, device=device), torch.randint(1, VOCABULARY, (4, 6), device=device)
    loss = loss_of(model(sound, words), words)
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
model.eval()
with torch.no_grad():
    heard, _ = model.encoder(torch.randn(1, 24, 40, device=device))
    said, state, text = *model.predictor(model.embedding(torch.zeros(1, 1, dtype=torch.long, device=device))), []
    for step in range(24):
        best = model.join(heard[:, step] + said[:, 0]).argmax(-1).item()
        if best:
            text.append(best)
            said, state = model.predictor(model.embedding(torch.tensor([[best]], device=device)), state)
print(text)
