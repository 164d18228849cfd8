"""The programs of ``replay_gpu.py``: small trainings on inputs of changing size, and random
requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

MIB = 2**20
EDGES = [
    511,
    512,
    513,
    MIB - 1,
    MIB,
    MIB + 1,
    10 * MIB - 1,
    10 * MIB,
    10 * MIB + 1,
    20 * MIB,
    32 * MIB,
    48 * MIB,
]


def lstm(torch: Any, seed: int) -> None:
    """Sequences of changing length through an LSTM, with validation in between."""
    draw = random.Random(seed)
    model = torch.nn.LSTM(512, 1024, num_layers=3).cuda()
    head = torch.nn.Linear(1024, 4096).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
    for step in range(30):
        out, _ = model(
            torch.randn(draw.randrange(40, 320), draw.choice([4, 8, 12]), 512, device="cuda")
        )
        head(out).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 8 == 7:
            with torch.no_grad():
                head(model(torch.randn(400, 24, 512, device="cuda"))[0]).sum()
            if step == 15:
                torch.cuda.empty_cache()


def unet(torch: Any, seed: int) -> None:
    """A small U-Net on images of changing size."""
    draw = random.Random(seed)
    nn = torch.nn
    down = nn.ModuleList(
        nn.Conv2d(a, b, 3, 2, 1) for a, b in ((3, 64), (64, 128), (128, 256))
    ).cuda()
    up = nn.ModuleList(
        nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in ((256, 128), (128, 64), (64, 3))
    ).cuda()
    optimizer = torch.optim.SGD([*down.parameters(), *up.parameters()], 0.01, momentum=0.9)
    for _ in range(25):
        side = draw.choice([128, 192, 256, 384, 512])
        given = torch.randn(draw.choice([2, 4, 6]), 3, side, side, device="cuda")
        seen = given
        for layer in (*down, *up):
            seen = torch.relu(layer(seen))
        (seen - given).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def translate(torch: Any, seed: int) -> None:
    """An encoder and decoder on sentences of changing length, in bfloat16, gradients gathered
    over two batches.
    """
    draw = random.Random(seed)
    words = torch.nn.Embedding(8000, 256).cuda()
    model = torch.nn.Transformer(256, 8, 3, 3, 1024, dropout=0.1, batch_first=True).cuda()
    optimizer = torch.optim.Adam([*words.parameters(), *model.parameters()])
    for step in range(24):
        batch, source, target = (
            draw.choice([8, 16, 24]),
            draw.randrange(16, 200),
            draw.randrange(16, 200),
        )
        with torch.autocast("cuda", torch.bfloat16):
            given = words(torch.randint(0, 8000, (batch, source), device="cuda"))
            wanted = torch.randint(0, 8000, (batch, target), device="cuda")
            out = model(given, words(wanted))
            loss = torch.nn.functional.cross_entropy(
                (out @ words.weight.T).flatten(0, 1), wanted.flatten()
            )
        loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


def fuzz(
    torch: Any, seed: int, *, waits: bool = False, pools: bool = False, catches: bool = False
) -> None:
    """Random requests around every threshold, on three streams, with empty_cache now and then.

    Args:
        waits: whether other streams still use some of the blocks when they are freed.
        pools: whether some requests come from a MemPool.
        catches: whether the program goes on after a failed request, with half of what it held.
    """
    draw = random.Random(seed)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    pool = torch.cuda.MemPool() if pools else None
    live: list[Any] = []
    for _ in range(2600):
        if live and (draw.random() < 0.47 or len(live) > 200):
            live.pop(draw.randrange(len(live)))
            continue
        edge = draw.choice(EDGES) + draw.choice([0, 0, -512, 512])
        size = draw.choice(
            [max(1, edge), int(2 ** draw.uniform(0, 25)), int(2 ** draw.uniform(8, 20))]
        )
        stream = streams[0] if draw.random() < 0.8 else draw.choice(streams)
        pooled, shared, empty = draw.random() < 0.04, draw.random() < 0.1, draw.random() < 0.002
        other = draw.choice(streams)
        try:
            with torch.cuda.stream(stream):
                if pooled and pool is not None:
                    with torch.cuda.use_mem_pool(pool):
                        made = torch.empty(size, dtype=torch.uint8, device="cuda")
                else:
                    made = torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            if not catches:
                raise
            del live[: len(live) // 2]
            continue
        if shared and waits:
            with torch.cuda.stream(other):
                torch.cuda._sleep(200_000)  # so that the block is still in use when it is freed
            made.record_stream(other)
        live.append(made)
        del made
        if empty:
            torch.cuda.empty_cache()


def waiting(torch: Any, seed: int) -> None:
    """Random requests of which other streams use some on."""
    fuzz(torch, seed, waits=True, catches=True)


def pooled(torch: Any, seed: int) -> None:
    """Random requests, some from a MemPool, some used on by other streams; failures are caught,
    in the pool too.
    """
    fuzz(torch, seed, waits=True, pools=True, catches=True)


def late(torch: Any, seed: int, begin_recording: Callable[[], None]) -> None:
    """Random requests before recording begins, and then more."""
    held = [
        torch.empty(int(2 ** random.Random(n).uniform(9, 25)), dtype=torch.uint8, device="cuda")
        for n in range(60)
    ]
    del held[::3]
    begin_recording()
    fuzz(torch, seed, waits=True)
    del held


PROGRAMS: dict[str, Callable[..., None]] = {
    f.__name__: f for f in (lstm, unet, translate, fuzz, waiting, pooled, late)
}
MODELS = ("lstm", "unet", "translate")
BEGINS_ITSELF = ("late",)
