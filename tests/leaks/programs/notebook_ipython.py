"""The same in a real IPython: https://github.com/ipython/ipython/pull/11572"""

import os

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container"],
            "owner": ["Out", "_oh", "user_ns", "_"],
            "bytes_per_step": 4 * 300 * 400,
        }
    ],
    "needs": ["IPython"],
    "stacks": False,
    "lines": False,  # they are in the cells
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def kernel():
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.displayhook.write_format_data = lambda *_: None
    shell.displayhook.write_output_prompt = lambda: None
    shell.displayhook.finish_displayhook = lambda: None
    return shell


def main():
    shell = kernel()
    shell.run_cell("import torch")
    shell.run_cell(f"layer = torch.nn.Linear(50, 400).to('{DEVICE}').requires_grad_(False)")
    watch = vramlens.LeakWatch()
    for cell in range(16):
        look = f"layer(torch.full((300, 50), {cell}.0, device='{DEVICE}'))"
        shell.run_cell(look, store_history=True)  # KEEPS ALLOCATES
        # FIX: shell.run_cell(look + ";", store_history=True)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
