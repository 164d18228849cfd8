"""What ``vramlens run --profile`` costs: the time of each step before, while and after it profiles.

python benchmarks/profile_overhead.py             # starts itself under vramlens run --profile --steps 10:15
python benchmarks/profile_overhead.py STEPS OUT   # the program: the milliseconds of each step as JSON
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST, LAST, STEPS = 10, 15, 25


def train(steps: int, out: str) -> None:
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    width, layers, batch, length = (1024, 12, 16, 512) if device == "cuda" else (256, 4, 8, 128)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    # On a CPU the processor's own time: what else runs on the machine does not count.
    clock = time.perf_counter if device == "cuda" else time.process_time
    times = []
    for _ in range(steps):
        if device == "cuda":
            torch.cuda.synchronize()
        began = clock()
        model(torch.randn(batch, length, width, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (clock() - began))
    Path(out).write_text(json.dumps({"device": device, "torch": torch.__version__, "ms": times}))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = [__file__, str(STEPS), f"{folder}/plain.json"]
        subprocess.run([sys.executable, *program], check=True)
        program[-1] = f"{folder}/profiled.json"
        options = ["--profile", "--steps", f"{FIRST}:{LAST}", "-o", f"{folder}/traces"]
        subprocess.run([sys.executable, "-m", "vramlens", "run", *options, *program], check=True)
        plain = json.loads(Path(f"{folder}/plain.json").read_text())
        profiled = json.loads(Path(f"{folder}/profiled.json").read_text())
        sizes = [path.stat().st_size for path in Path(folder, "traces").rglob("*.json*")]
    median = statistics.median
    print(f"{plain['device']}, PyTorch {plain['torch']}; milliseconds a step, medians")
    print(f"  without vramlens        {median(plain['ms'][3:]):9.2f}")
    print(f"  before it profiles      {median(profiled['ms'][3:FIRST]):9.2f}")
    print(f"  while it profiles       {median(profiled['ms'][FIRST + 1 : LAST]):9.2f}")
    print(f"  afterwards              {median(profiled['ms'][LAST + 1 :]):9.2f}")
    print(f"  starting and writing    {profiled['ms'][FIRST]:9.2f} {profiled['ms'][LAST]:9.2f}")
    print(f"  traces: {', '.join(f'{size / 1e6:.1f} MB' for size in sizes)}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(int(sys.argv[1]), sys.argv[2])
    else:
        main()
