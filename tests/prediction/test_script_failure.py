"""A script that fails while it is predicted: where, and whether made-up numbers or the script are
to blame.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

MADE_UP_CHECK = (
    "This check uses a number that the prediction made up, as tensors have no values: guard or"
    " remove it for the prediction"
)
MADE_UP_LINE = MADE_UP_CHECK.replace("check", "line", 1)
GRADIENT = """
w = torch.randn(1000, 1000, device="cuda", requires_grad=True)
(w @ w).square().mean().backward()
"""


def line_of(folder: Path, text: str, *arguments: str) -> str:
    """The one line that a prediction of a script ends with."""
    (folder / "train.py").write_text(f"import torch\n{text}")
    done = subprocess.run(
        [sys.executable, "-m", "vramlens", "predict", "train.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 3, done.stderr
    assert not done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("vramlens: ")]
    return line.removeprefix("vramlens: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            GRADIENT + 'assert w.grad.norm().item() > 5.0, "gradient vanished"',
            f"train.py:5: could not be predicted: AssertionError: gradient vanished. {MADE_UP_CHECK}",
        ),
        (
            GRADIENT + "assert (\n    w.grad.norm().item()\n    > 5\n)",
            f"train.py:6: could not be predicted: AssertionError. {MADE_UP_CHECK}",
        ),
        (
            GRADIENT
            + "if w.grad.norm().item() < 5:\n    size = 3\n    raise RuntimeError(f'vanished {size}')",
            f"train.py:7: could not be predicted: RuntimeError: vanished 3. {MADE_UP_CHECK}",
        ),
        (
            GRADIENT + "if w.grad.norm().item() < 5:\n    raise SystemExit('vanished')",
            f"train.py: the script exited with vanished. {MADE_UP_CHECK}",
        ),
        (
            "logits = torch.randn(1, 4096, 512, device='cuda').mean(1) @ torch.randn(512, 50, device='cuda')\n"
            "next_token = logits.argmax()\n"
            "tokens = [7, 8, 9]\n"
            "print(tokens.index(next_token.item()))",
            f"train.py:5: could not be predicted: ValueError: 0 is not in list. {MADE_UP_LINE}",
        ),
        (
            GRADIENT
            + "def check(norm):\n    assert norm > 5\nnorm = w.grad.norm().item()\ncheck(norm)",
            "train.py:6 in check, called from train.py:8: could not be predicted: AssertionError."
            " The script uses numbers that the prediction makes up, as tensors have no values (last"
            " read at train.py:7): that may be why",
        ),
        (
            "torch.ones(9, device='cuda')\nassert torch.ones(3).sum().item() > 5, 'few'",
            "train.py:3: could not be predicted: AssertionError: few",
        ),
    ],
)
def test_a_made_up_number_that_may_be_the_reason_is_told(
    tmp_path: Path, text: str, line: str
) -> None:
    assert line_of(tmp_path, text) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "model = torch.nn.Linear(10, 10).cuda(\nfor i in range(3):\n    pass",
            "train.py:2: the script itself fails: SyntaxError: '(' was never closed",
        ),
        (
            GRADIENT + "print(w.sum().item(), labels)",
            "train.py:5: the script itself fails: NameError: name 'labels' is not defined",
        ),
        (
            "import no_such_module",
            "train.py:2: the script itself fails in this Python: ModuleNotFoundError: No module named"
            " 'no_such_module'",
        ),
        (  # a run may come to the assignment
            GRADIENT + "if w.sum().item() > 5:\n    best = 1\nprint(best)",
            "train.py:7: could not be predicted: NameError: name 'best' is not defined. The script"
            " uses numbers that the prediction makes up, as tensors have no values (last read at"
            " train.py:5): that may be why",
        ),
        (
            "raise NameError('no name')",
            "train.py:2: could not be predicted: NameError: no name",
        ),
    ],
)
def test_a_bug_of_the_script_is_no_limit_of_the_prediction(
    tmp_path: Path, text: str, line: str
) -> None:
    assert line_of(tmp_path, text) == line


def test_the_line_is_told_that_the_failing_one_was_called_from(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(10, 10)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x)\n"
    )
    text = (
        "from nets import Net\n"
        "def main():\n"
        "    Net().cuda()(torch.ones(4, 5, device='cuda'))\n"
        "main()\n"
    )
    line = line_of(tmp_path, text)
    place = "nets.py:7 in forward, called from train.py:4 in main: could not be predicted: Runtime"
    assert line.startswith(place)


def test_a_bug_in_an_imported_file_has_the_line_of_that_file(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("import torch\nclass Net(\n")
    line = line_of(tmp_path, "from nets import Net")
    assert line == "nets.py:2: the script itself fails: SyntaxError: '(' was never closed"


def test_a_script_that_refuses_its_arguments_is_told_how_they_are_passed(tmp_path: Path) -> None:
    text = (
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--data', required=True)\n"
        "parser.parse_args()\n"
    )
    assert line_of(tmp_path, text) == (
        "train.py: the script exited with code 2, as argparse does where arguments are missing or"
        " wrong; its own arguments go after --: vramlens predict train.py -- --name VALUE"
    )
