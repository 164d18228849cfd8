"""An inference server without its sockets: requests join a running batch, a key-value cache by hand."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, HEADS, LAYERS, VOCABULARY = 1536, 12, 12, 32000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cache):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (k, v)


class Server(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids, caches):
        x = self.embed(ids) * math.sqrt(WIDTH)
        fresh = []
        for block, cache in zip(self.blocks, caches):
            x, cache = block(x, cache)
            fresh.append(cache)
        return F.linear(self.norm(x[:, -1]), self.embed.weight), fresh


@torch.inference_mode()
def serve(server, batch, prompt, tokens):
    ids = torch.randint(0, VOCABULARY, (batch, prompt), device="cuda")
    caches = [None] * LAYERS
    answer = []
    for _ in range(tokens):
        logits, caches = server(ids, caches)
        best = torch.topk(logits.float() / 0.7, 40)
        ids = best.indices.gather(1, torch.multinomial(best.values.softmax(-1), 1))
        answer.append(ids)
    return torch.cat(answer, dim=1).cpu()


server = Server().half().cuda().eval()
for batch, prompt, tokens in ((1, 100, 10), (8, 700, 40), (24, 512, 20), (3, 1900, 12), (16, 64, 60)):
    print(batch, serve(server, batch, prompt, tokens).shape)
torch.cuda.empty_cache()
print(serve(server, 2, 128, 8).shape)
