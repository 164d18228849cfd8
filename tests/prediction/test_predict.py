"""Predictions beside what PyTorch's allocator said on an H200, and what cannot be predicted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.recordings import truth_of

torch = pytest.importorskip("torch")
HERE = Path(__file__).parent


def predict(
    script: Path, *options: str, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vramlens", "predict", *options, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(f"import torch\n{text}")
    return path


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("gpt") / "gpt.vram"
    done = predict(
        HERE / "gpt_program.py",
        "--json",
        "--torch",
        "2.11",
        "--cards",
        "1GiB,24GiB",
        "-o",
        str(path),
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "path": path}


def test_the_peak_is_what_the_allocator_said(answer: dict[str, Any]) -> None:
    stats = truth_of("recordings/gpt")["stats"]
    for name in ("requested", "allocated", "active", "reserved"):
        assert answer["peak"][f"{name}_bytes"] == stats[f"{name}_bytes.all.peak"]


def test_the_range_holds_and_cards_are_judged(answer: dict[str, Any]) -> None:
    prediction = answer["prediction"]
    reserved = truth_of("recordings/gpt")["stats"]["reserved_bytes.all.peak"]
    assert prediction["low_bytes"] <= reserved <= prediction["high_bytes"]
    assert prediction["high_bytes"] - prediction["low_bytes"] < 0.05 * reserved
    assert [card["fits"] for card in prediction["cards"]] == [False, True]
    assert prediction["steps"] == 4
    assert prediction["confidence"] == "estimated"


def test_lines_and_modules_are_those_of_the_script(answer: dict[str, Any]) -> None:
    lines = {(Path(row["file"]).name, row["function"]) for row in answer["peak"]["by_line"]}
    assert ("gpt_program.py", "forward") in lines
    assert any("blocks" in row["name"] for row in answer["peak"]["by_module"])


def test_the_recording_is_one_that_replay_proves(answer: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "vramlens", "replay", "--json", str(answer["path"])]
    replayed = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    assert replayed["recorded"]["exact"]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_autocast_is_not_advised_to_a_script_that_runs_under_it(
    tmp_path: Path, is_enabled: bool
) -> None:
    text = f"""
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(3):
    with torch.autocast("cuda", torch.bfloat16, enabled={is_enabled}):
        loss = model(torch.randn(65536, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    done = predict(script(tmp_path, text), "--json")
    assert done.returncode == 0, done.stderr
    fixes = [
        row["fix"] for row in json.loads(done.stdout)["findings"] if row["id"] == "activations"
    ]
    assert len(fixes) == 1
    assert ("autocast" in fixes[0]) is not is_enabled


def test_made_up_values_let_a_script_go_on(tmp_path: Path) -> None:
    text = """
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    if torch.isnan(loss) or not torch.isfinite(loss):
        raise SystemExit(4)
    loss.backward()
    optimizer.step()
    print(f"{loss:.3f}", loss.item(), loss.detach().cpu().numpy(), torch.cuda.max_memory_allocated())
"""
    done = predict(script(tmp_path, text), "--json", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prediction"]["steps"] == 3


def test_known_values_decide_shapes(tmp_path: Path) -> None:
    text = """
ids = torch.tensor([[1, 2, 0, 0], [3, 4, 5, 0]], device="cuda")
kept = torch.ones(2, 4, 1000, device="cuda")[ids != 0]
assert kept.shape == (5, 1000)
assert ids.max().item() == 5
"""
    done = predict(script(tmp_path, text))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print(1)", "nothing moved to the GPU"),
        ("raise SystemExit(7)", "exited with code 7"),
        (
            "x = torch.ones(3, device='cuda')\nopen('not-there')",
            "train.py:3: could not be predicted: FileNotFoundError",
        ),
        (
            "torch.ones(3, device='cuda') @ torch.ones(4, device='cuda')",
            "train.py:2: could not be predicted",
        ),
        (
            "torch.nn.Linear(4, 4).cuda()(torch.ones(3, 4))",
            "cpu and cuda:0. Move the batch to the model's device",
        ),
        (
            "import multiprocessing\nmultiprocessing.Process(target=print).start()",
            "starts a process of its own (print)",
        ),
        ("import os\nos.fork()", "forks by itself"),
        (
            "import subprocess, sys\nsubprocess.run([sys.executable, 'rank.py'])",
            "starts a program of its own (rank.py)",
        ),
        (
            "import torch.utils.cpp_extension as e\ne.load_inline('x', '')",
            "builds an extension in CUDA",
        ),
        (
            "torch._sample_dirichlet(torch.ones(20_000_000, 4, device='cuda'))",
            "train.py:2: could not be predicted: NotImplementedError: the shapes that"
            " aten._sample_dirichlet returns are not known",
        ),
        ("while True: pass", "did not end within 8 s: --steps N"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    done = predict(script(tmp_path, text), "--patience", "8")
    assert done.returncode == 3
    lines = [line for line in done.stderr.splitlines() if line.startswith("vramlens:")]
    assert len(lines) == 1
    assert words in lines[0]
    assert not done.stdout


def test_an_error_of_the_script_itself_has_no_traceback_of_pytorch(tmp_path: Path) -> None:
    text = "torch.nn.Linear(4, 4).cuda()(torch.ones(2, 5, device='cuda'))"
    done = predict(script(tmp_path, text))
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert ".py:2: could not be predicted: RuntimeError" in done.stderr


def test_an_unknown_card_is_wrong_usage(tmp_path: Path) -> None:
    done = predict(script(tmp_path, ""), "--gpu", "abacus")
    assert done.returncode == 2
    assert "h200" in done.stderr


def test_inference_mode_saves_and_compiled_models_go_on(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    text = """
import os
from pathlib import Path
net = torch.compile(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())).cuda()
with torch.inference_mode():
    loss = net(torch.randn(8, 64).to("cuda")).mean()
assert isinstance(float(loss), float)
path = os.path.join(os.path.dirname(__file__), "best.pt")
torch.save({"model": net.state_dict(), "epoch": 3}, path)
assert os.path.isfile(path) and Path(path).exists()  # the program sees it, no file is written
saved = torch.load(path, map_location="cpu")
assert saved["epoch"] == 3
net.load_state_dict(saved["model"])
import safetensors.torch as safetensors
safetensors.save_model(net, path + ".safetensors")
assert os.path.exists(path + ".safetensors")
safetensors.load_model(net, path + ".safetensors")
packed = torch.nn.utils.rnn.pack_padded_sequence(
    torch.randn(2, 7, 64, device="cuda"), torch.tensor([7, 4]), batch_first=True)
out, _ = torch.nn.LSTM(64, 32, bidirectional=True).cuda()(packed)
assert out.data.shape == (11, 64)
probabilities = torch.distributions.Categorical(logits=torch.randn(8, 4, device="cuda"))
assert probabilities.log_prob(probabilities.sample()).shape == (8,)
"""
    done = predict(script(tmp_path, text))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "best.pt").exists()
    assert "torch.compile: predicted as eager" in done.stdout
    assert "Predicted for NVIDIA H200" in done.stdout
    assert "this input does not show" not in done.stdout  # no GPU had this memory
    assert (
        done.stdout.rstrip().rpartition("\n")[2].startswith("  vramlens predict -o predicted.vram ")
    )


def test_a_routers_choices_are_taken_as_even_and_rows_as_the_kernel_wants_them(
    tmp_path: Path,
) -> None:
    text = """
chosen = torch.randn(4096, 8, device="cuda").softmax(-1).topk(2, dim=-1).indices
token, slot = torch.where(chosen == 3)
assert token.shape == (1024,), token.shape
q = torch.randn(2, 4, 32, 512, device="cuda").transpose(-1, -2)
before = torch.cuda.max_memory_allocated()
torch.nn.functional.scaled_dot_product_attention(q, q, q)
assert torch.cuda.max_memory_allocated() - before >= 2 * 4 * 512 * 512 * 4
"""
    done = predict(script(tmp_path, text), "--json")
    assert done.returncode == 0, done.stderr
    prediction = json.loads(done.stdout)["prediction"]
    assert prediction["low_bytes"] < prediction["high_bytes"]


def test_copies_of_large_layers_and_graphs_go_on(tmp_path: Path) -> None:
    text = """
import copy
layer = torch.nn.Linear(1024, 2048)
layers = torch.nn.Sequential(layer, copy.deepcopy(layer)).cuda()
x = torch.randn(8, 1024, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = layers[1](x)
graph.replay()
assert y.shape == (8, 2048)
"""
    done = predict(script(tmp_path, text))
    assert done.returncode == 0, done.stderr


def test_the_best_model_so_far_is_one_copy_without_gradients(tmp_path: Path) -> None:
    text = """
import copy
model = torch.nn.Linear(512, 512, bias=False, device="cuda")
model(torch.randn(4, 512, device="cuda")).sum().backward()
before = torch.cuda.memory_allocated()
for of in (model, model.weight, model.weight.detach(), model.state_dict()):
    for _ in range(5):
        best = copy.deepcopy(of)
    assert torch.cuda.memory_allocated() - before == 512 * 512 * 4, type(of)
    del best
    assert torch.cuda.memory_allocated() == before, type(of)
twice = copy.deepcopy([model.weight, model.weight])
assert twice[0] is twice[1] and isinstance(twice[0], torch.nn.Parameter)
assert twice[0].requires_grad and twice[0].grad is None and twice[0].is_leaf
"""
    done = predict(script(tmp_path, text))
    assert done.returncode == 0, done.stderr


def test_large_batches_of_workers_are_data(tmp_path: Path) -> None:
    text = """
from torch.nn.utils.rnn import pad_sequence

class Sounds(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, number): return torch.ones(1600, 80)

def padded(samples): return pad_sequence(samples, batch_first=True)

if __name__ == "__main__":  # Python 3.14 starts the worker anew
    for batch in torch.utils.data.DataLoader(Sounds(), 12, num_workers=1, collate_fn=padded):
        assert batch.cuda().shape == (12, 1600, 80)
    print("all came")
"""
    done = predict(script(tmp_path, text), "--patience", "30")
    assert done.returncode == 0, done.stderr
    assert "all came" in done.stderr


def test_a_captured_graph_keeps_its_pool_and_empties_the_cache_before(tmp_path: Path) -> None:
    text = """
torch.ones(128 << 20, dtype=torch.uint8, device="cuda")
for _ in range(3):
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
"""
    done = predict(script(tmp_path, text), "--json")
    assert done.returncode == 0, done.stderr
    peak = json.loads(done.stdout)["peak"]
    assert (peak["allocated_bytes"], peak["reserved_bytes"]) == (128 << 20, 192 << 20)


def test_a_plain_script_with_batch_is_refused_before_it_runs(tmp_path: Path) -> None:
    done = predict(script(tmp_path, "raise SystemExit('it ran')\n"), "--batch", "4")
    assert done.returncode == 3
    assert "it does not define model_fn, make_batch, loss_fn" in done.stderr
    assert "it ran" not in done.stderr


def test_functions_with_a_batch_see_nothing_of_these_options(tmp_path: Path) -> None:
    text = """
import argparse
argparse.ArgumentParser().parse_args()
def model_fn(): return torch.nn.Linear(8, 8)
def make_batch(n): return torch.ones(n, 8, device="cuda")
def loss_fn(model, batch): return model(batch).sum()
"""
    done = predict(script(tmp_path, text), "--batch", "4", "--cards", "16G")
    assert done.returncode == 0, done.stderr
    assert f"predict -o predicted.vram --cards 16G --batch 4 {tmp_path}" in done.stdout
    assert "numbers that the script prints are made up" in done.stdout


def test_the_next_command_makes_the_same_prediction(tmp_path: Path) -> None:
    text = "import sys\nassert sys.argv[1:] == ['--gpu', '1']\ntorch.ones(1 << 20, device='cuda')\n"
    path = script(tmp_path, text)
    done = predict(path, "--gpu", "a100", arguments=("--", "--gpu", "1"))
    assert done.returncode == 0, done.stderr
    command = f"  vramlens predict -o predicted.vram --gpu a100 {path} -- --gpu 1"
    assert done.stdout.rstrip().endswith(command)
