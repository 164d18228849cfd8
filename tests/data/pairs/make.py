"""The programs behind tests/data/pairs/: pairs that are one fix apart, or have another batch, input or model.

    python tests/data/pairs/make.py        predicts them all anew (no GPU is needed, PyTorch is)

``*.vram`` are what ``vramlens predict`` writes, without the paths of the machine that it ran on.
"""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

S = {}
HEAD='''
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1 = nn.LayerNorm(d)
        self.n2 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).chunk(3, dim=-1)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))

class GPT(nn.Module):
    def __init__(self, vocab=8000, d=512, layers=2, heads=8, ctx=2048):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = BLOCK
        return self.head(self.norm(x))
'''
TRAIN='''
BATCH, LENGTH = @B, @L
model = GPT(d=@D).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(3):
    idx = torch.randint(0, 8000, (BATCH, LENGTH + 1), device="cuda")
    logits = model(idx[:, :-1])
    loss = F.cross_entropy(logits.view(-1, 8000), idx[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
'''
def gpt(B=8,L=512,D=512,block='block(x)',train=TRAIN):
    return HEAD.replace('BLOCK',block)+train.replace('@B',str(B)).replace('@L',str(L)).replace('@D',str(D))
S['gpt']=gpt()
S['gpt_b16']=gpt(B=16)
S['gpt_d768']=gpt(D=768)
S['gpt_ckpt']=gpt(block='checkpoint(block, x, use_reentrant=False)')
S['gpt_autocast']=gpt(train=TRAIN.replace('''    logits = model(idx[:, :-1])
    loss = F''','''    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(idx[:, :-1])
        loss = F''').replace('''        loss = F.cross''','''        loss = F.cross'''))
S['gpt_accum']=gpt(train=TRAIN.replace('''    logits = model(idx[:, :-1])
    loss = F.cross_entropy(logits.view(-1, 8000), idx[:, 1:].reshape(-1))
    loss.backward()
''','''    for part in idx.chunk(4):
        logits = model(part[:, :-1])
        loss = F.cross_entropy(logits.view(-1, 8000), part[:, 1:].reshape(-1)) / 4
        loss.backward()
'''))
CNN='''
import torch
import torch.nn as nn
net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
all_logits = []
for batch in range(@N):
    images = torch.randn(@B, 3, @R, @R, device="cuda")
    @CALL
print(torch.cat(all_logits).argmax(1).bincount())
'''
def cnn(B=32,R=128,call='all_logits.append(net(images))',N=14): return CNN.replace('@B',str(B)).replace('@R',str(R)).replace('@CALL',call).replace('@N',str(N))
S['cnn']=cnn()
S['cnn_nograd']=cnn(call='with torch.no_grad():\n        all_logits.append(net(images))')
S['cnn_nograd_b64']=cnn(B=64,call='with torch.no_grad():\n        all_logits.append(net(images))')
S['cnn_r192']=cnn(R=192)
VIEW='''
import torch
import torch.nn as nn
encoder = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
first = []
with torch.no_grad():
    for batch in range(16):
        x = torch.randn(@B, 128, 256, device="cuda")
        h = encoder(x)
        first.append(h[:, 0]@C)
out = torch.stack(first)
'''
S['view']=VIEW.replace('@C','').replace('@B','64')
S['view_clone']=VIEW.replace('@C','.clone()').replace('@B','64')
S['view_b192']=VIEW.replace('@C','.clone()').replace('@B','192')
CACHE='''
import torch
import torch.nn as nn

class Decoder(nn.Module):
    def __init__(self, d=512, length=@M):
        super().__init__()
        self.length, self.d = length, d
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def make_cache(self, batch):
        return (torch.zeros(batch, self.length, self.d, device="cuda"),
                torch.zeros(batch, self.length, self.d, device="cuda"))

    def forward(self, x, cache, at):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        cache[0][:, at] = k
        cache[1][:, at] = v
        score = torch.einsum("bd,btd->bt", q, cache[0][:, :at + 1])
        return self.out(torch.einsum("bt,btd->bd", score.softmax(-1), cache[1][:, :at + 1]))

model = Decoder().cuda()
with torch.no_grad():
    cache = model.make_cache(@B)
    x = torch.randn(@B, 512, device="cuda")
    for at in range(24):
        x = model(x, cache, at)
'''
S['cache']=CACHE.replace('@M','8192').replace('@B','16')
S['cache_small']=CACHE.replace('@M','1024').replace('@B','16')
S['cache_b48']=CACHE.replace('@M','8192').replace('@B','48')
LOSS='''
import torch
import torch.nn as nn
net = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
running = 0
for step in range(12):
    x = torch.randn(@B, 512).cuda()
    y = torch.randint(0, 10, (@B,)).cuda()
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    @LINE
    loss.backward()
    optimizer.step()
'''
S['running']=LOSS.replace('@LINE','running = running + loss').replace('@B','4096').replace('loss.backward()','loss.backward(retain_graph=True)')
S['running_fixed']=LOSS.replace('@LINE','running = running + loss.detach()').replace('@B','4096')
S['mlp_b8192']=LOSS.replace('@LINE','running = running + loss.detach()').replace('@B','8192')


def neutral(text: str, folder: str) -> str:
    """A path without the machine's folders."""
    text = text.replace(folder, "/home/user/train")
    text = re.sub(r"^.*/(lib/python3\.\d+/)", r"\1", text)
    return re.sub(r"^.*/src/vramlens/", "lib/python3.11/site-packages/vramlens/", text)


def walked(part, folder: str):
    if isinstance(part, str):
        return neutral(part, folder)
    if isinstance(part, dict):
        return {walked(key, folder): walked(entry, folder) for key, entry in part.items()}
    if isinstance(part, (list, tuple)):
        return type(part)(walked(entry, folder) for entry in part)
    return part


def pack(recording: Path, target: Path, folder: str) -> None:
    with zipfile.ZipFile(recording) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "snapshot.pickle":
                content = pickle.dumps(walked(pickle.loads(content), folder), 4)
            new.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def main() -> None:
    target = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        for name, text in S.items():
            Path(folder, f"{name}.py").write_text(text.lstrip())
            command = [sys.executable, "-m", "vramlens", "predict", "-o", f"{name}.vram", f"{name}.py"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            pack(Path(folder, f"{name}.vram"), target / f"{name}.vram", folder)


if __name__ == "__main__":
    main()
