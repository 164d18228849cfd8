# BERT-style masked LM, fp16 mixed precision with a GradScaler. Run: python mlm_fp16.py
import os
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

tiny = os.environ.get("TINY") == "1"
torch.manual_seed(21)
dev = "cuda" if torch.cuda.is_available() else "cpu"

vocab, seq_len, dim, depth, heads = (30000, 128, 768, 8, 12) if not tiny else (400, 24, 32, 2, 2)
batch_size = max(1, round((64 if not tiny else 4) * float(os.environ.get("SCALE", "1"))))
steps = 18 if not tiny else 4
MASK, PAD = 1, 0

# ---- data: text made of a few hundred "phrases"
phrases = torch.randint(5, vocab, (300, 8))
n = batch_size * steps
data = phrases[torch.randint(0, 300, (n, seq_len // 8))].reshape(n, seq_len)
lengths = torch.randint(seq_len // 2, seq_len + 1, (n,))
data[torch.arange(seq_len)[None, :] >= lengths[:, None]] = PAD
loader = DataLoader(TensorDataset(data), batch_size=batch_size, shuffle=True, pin_memory=dev == "cuda")


# ---- model
class MLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.pos = nn.Embedding(seq_len, dim)
        self.norm = nn.LayerNorm(dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.1, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.decoder = nn.Linear(dim, vocab)
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)

    def forward(self, ids, masked):
        pos = torch.arange(ids.size(1), device=ids.device)
        x = self.norm(self.tok(ids) + self.pos(pos))
        x = self.enc(x, src_key_padding_mask=ids == PAD)
        return self.decoder(self.transform(x[masked]))


def mask_tokens(ids):
    labels = ids.clone()
    prob = torch.rand(ids.shape, device=ids.device)
    masked = (prob < 0.15) & (ids != PAD)
    inp = ids.clone()
    r = torch.rand(ids.shape, device=ids.device)
    inp[masked & (r < 0.8)] = MASK
    rnd = masked & (r >= 0.8) & (r < 0.9)
    inp[rnd] = torch.randint(5, vocab, ids.shape, device=ids.device)[rnd]
    return inp, labels[masked], masked


model = MLM().to(dev)
print("parameters: %.1fM" % (sum(p.numel() for p in model.parameters()) / 1e6))

decay, no_decay = [], []
for name, p in model.named_parameters():
    (no_decay if p.ndim == 1 else decay).append(p)
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}],
                        lr=1e-4, betas=(0.9, 0.98))
scaler = torch.amp.GradScaler(dev, init_scale=2.0 ** 16, growth_interval=10, enabled=dev == "cuda")
amp_dtype = torch.float16 if dev == "cuda" else torch.bfloat16

model.train()
for step, (ids,) in enumerate(loader):
    ids = ids.to(dev, non_blocking=True)
    inp, labels, masked = mask_tokens(ids)
    with torch.autocast(dev, dtype=amp_dtype):
        logits = model(inp, masked)
        loss = F.cross_entropy(logits, labels)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=False)
    if step % 4 == 0:
        print("step %d  loss %.4f  scale %g" % (step, loss.item(), scaler.get_scale()))

print("done")
