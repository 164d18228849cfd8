"""What scripts do beside training: threads, files of their own, old types, operators without shapes.

Each case is a function that runs with shapes, all in one process; its name is printed where it ends
well, else why not.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = """
import argparse, functools, glob, io, os, shutil, sys, traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy
import torch, torch.utils.checkpoint
from vramlens.cards.known_cards import card_named
from vramlens.prediction.predicted_run import PredictedRun

folder = Path(sys.argv[1])
REAL = io.BytesIO()
torch.save({"weight": torch.tensor([1.0, 2.0])}, REAL)  # before PyTorch is changed
run = PredictedRun(card_named("h200"))


def threads():
    with ThreadPoolExecutor(2) as pool:
        sums = list(pool.map(lambda n: torch.ones(n + 1, device="cuda").cumsum(0), range(20)))
    assert [s.shape[0] for s in sums] == list(range(1, 21)) and sums[0].is_cuda


def data_in_threads():
    # threads of its own, and that of the backward pass, which checkpoints compute in
    def make():
        return [torch.tensor([1.0, 2.0], device="cuda"), torch.as_tensor(3, device="cuda")]

    with ThreadPoolExecutor(1) as pool:
        assert all(tensor.is_cuda for tensor in pool.submit(make).result())
    layer = torch.nn.Linear(2, 2, device="cuda")
    for is_reentrant in (True, False):
        x = torch.ones(3, 2, device="cuda", requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(
            lambda x: layer(x) * make()[0], x, use_reentrant=is_reentrant
        )
        y.sum().backward()
        assert x.grad.shape == (3, 2)
    with torch.device("cuda"):
        assert torch.tensor([1.0]).is_cuda


def generations():
    # each goes to its longest: which token is chosen nobody knows, and it is not the end for all
    def lengths(ends):
        done, going = (make(4, dtype=torch.bool, device="cuda") for make in (torch.zeros, torch.ones))
        for length in range(1, 7):
            chosen = torch.randn(4, 9, device="cuda").argmax(-1)
            done |= chosen == 2
            going = going & (chosen != 2)
            done = done[torch.randn(4, device="cuda").argsort()]
            if ends(done, going):
                break
        return length

    assert lengths(lambda done, going: done.all()) == 6
    assert lengths(lambda done, going: not going.any()) == 6
    chosen = torch.randn(4, 9, device="cuda").argmax(-1)
    assert (chosen % torch.arange(1, 5, device="cuda")).shape == (4,)
    drawn = torch.distributions.Categorical(logits=torch.randn(8, 4, device="cuda"))
    assert drawn.log_prob(drawn.sample()).shape == (8,)


def pinned():
    assert torch.empty(3, pin_memory=True).shape == (3,)
    layer = torch.nn.Linear(4, 4).cuda()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = layer(torch.ones(2, 4, device="cuda")).relu().sum()
    loss.backward()


def checkpoints():
    path = folder / "e0.pt"
    layer = torch.nn.Linear(600, 600).cuda()
    torch.save({"model": layer.state_dict(), "args": argparse.Namespace(lr=1)}, path)
    assert path.stat().st_size >= 600 * 600 * 4 and os.path.getmtime(path) > 0
    assert path.exists() and os.path.isfile(path) and list(folder.glob("e*.pt")) == [path]
    assert glob.glob(str(folder / "*.pt")) == [str(path)] and os.listdir(folder) == ["e0.pt"]
    shutil.copyfile(path, folder / "best.pt")
    os.replace(folder / "best.pt", folder / "last.pt")
    path.unlink()
    assert not path.exists()
    saved = torch.load(folder / "last.pt", weights_only=False)
    assert saved["args"].lr == 1 and saved["model"]["weight"].is_cuda  # as it was saved
    on_host = torch.load(folder / "last.pt", map_location=lambda storage, place: storage)
    assert on_host["model"]["weight"].device.type == "cpu"
    with open(folder / "last.pt", "rb") as file:
        assert set(torch.load(file, map_location="cpu")) == {"model", "args"}
    shutil.rmtree(folder)
    assert not (folder / "last.pt").exists()
    folder.mkdir()


def files_by_other_ways():
    weight = {"weight": torch.ones(3, device="cuda")}
    here = folder / "here"
    (here / "real").mkdir(parents=True)
    (here / "real" / "w.pt").write_bytes(b"on disk")
    before = os.getcwd()
    os.chdir(here)
    try:
        torch.save(weight, "w.pt")
        shutil.rmtree("real")  # removes its w.pt by name, below a descriptor
        shutil.copyfile(src="w.pt", dst="v.pt")
        os.rename(src="v.pt", dst="u.pt")
        os.remove(path="w.pt")
        shutil.rmtree(b"absent", ignore_errors=True)
        assert os.listdir(".") == ["u.pt"] and torch.load("u.pt")["weight"].is_cuda
    finally:
        os.chdir(before)
    both = io.BytesIO()
    torch.save(weight, both)
    torch.save(weight, both)
    both.seek(0)
    assert torch.load(both)["weight"].is_cuda
    here.rmdir()


def a_whole_model_keeps_no_memory_of_the_device():
    layer = torch.nn.Linear(2000, 2000).cuda()
    torch.save(layer, folder / "model.pt")
    before = torch.cuda.memory_allocated(device=0)
    del layer
    assert before - torch.cuda.memory_allocated(device=0) >= 2000 * 2000 * 4
    assert torch.load(folder / "model.pt", map_location="cuda").weight.is_cuda
    assert torch.load(folder / "model.pt", weights_only=False).weight.is_cuda  # as it was saved


def buffers():
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(3, device="cuda")}, buffer)
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["weight"].shape == (3,)


def files_on_disk():
    path = folder / "real.bin"
    path.write_bytes(REAL.getvalue())
    assert torch.load(path, map_location="cuda")["weight"].is_cuda
    assert torch.load(path, map_location="cpu")["weight"].tolist() == [1.0, 2.0]


def safetensors_again():
    import safetensors, safetensors.torch
    path = folder / "model.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(3, 4, device="cuda")}, path)
    with safetensors.safe_open(path, framework="pt") as file:
        assert list(file.keys()) == ["weight"] and file.get_slice("weight").get_shape() == [3, 4]
    assert safetensors.torch.load_file(path, device="cuda")["weight"].is_cuda


def old_types():
    made = torch.cuda.FloatTensor([1.0, 2.0])
    assert isinstance(made, torch.cuda.FloatTensor) and made.tolist() == [1.0, 2.0]
    assert not isinstance(made, torch.cuda.LongTensor)
    assert torch.cuda.LongTensor(4, 5).shape == (4, 5)
    assert torch.ones(3).type(torch.cuda.HalfTensor).dtype is torch.float16
    assert made.type("torch.cuda.DoubleTensor").is_cuda


def losses_of_aligned_sequences():
    scores = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
    words = torch.randint(1, 20, (4, 10), device="cuda")
    lengths = torch.full((4,), 50, device="cuda"), torch.full((4,), 10, device="cuda")
    loss = torch.nn.functional.ctc_loss(scores.log_softmax(2), words, *lengths)
    loss.backward()
    assert scores.grad.shape == scores.shape


def draws():
    concentrations = torch.ones(2, 3, device="cuda")
    assert torch.distributions.Dirichlet(concentrations).sample((5,)).shape == (5, 2, 3)


def counts_of_unknown_values():
    labels = torch.randn(2, 19, 8, 8, device="cuda").argmax(1).flatten()
    guesses = dict(run.mode.runner._values.assumptions)
    counts = torch.bincount(labels, minlength=30)
    assert counts.shape == (30,) and run.log.guess_of(counts) is None
    assert run.mode.runner._values.assumptions == guesses  # its size is stated
    rows = torch.randn(len(labels), 4, device="cuda").split(counts.tolist())  # of experts
    assert [len(part) for part in rows] == [5] * 8 + [4] * 22
    assert torch.bincount(labels).shape == (19,)
    assert torch.unique(labels.view(-1, 8), dim=0).shape == (16, 8)


def steps_of_one_optimizer_after_another():
    before = run._steps
    for _ in range(2):
        layer = torch.nn.Linear(4, 4).cuda()
        optimizer, other = (torch.optim.SGD(layer.parameters(), 0.1) for _ in range(2))
        for _ in range(3):
            layer(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()
            other.step()
        del optimizer, other
    assert run._steps == before + 6


def large_tensors_are_read():
    logits = torch.randn(64, 512, 200, device="cuda").cpu()
    assert numpy.asarray(logits).shape == (64, 512, 200) and float(logits.numpy()[0, 0, 0]) == 1.0


def one_of_one():
    model = torch.nn.DataParallel(torch.nn.Linear(8, 2)).cuda()
    model(torch.randn(4, 8)).sum().backward()
    assert model.module.weight.grad.is_cuda


def marks_and_figures():
    torch.cuda.nvtx.range_push("step")
    torch.cuda.nvtx.range_pop()
    assert torch.cuda.memory._snapshot()["segments"] == []
    assert torch.cuda.max_memory_allocated(device="cuda:0") >= torch.cuda.memory_allocated(device=0)
    assert torch.jit.trace(torch.nn.ReLU(), torch.ones(2, device="cuda"))(torch.ones(2)).sum() == 2
    assert torch.jit.script(scaled)(torch.ones(2, device="cuda")).is_cuda


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(2.0)


def forward_mode():
    # A PINN's derivatives: PyTorch compiles what these are made of.
    layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    weights = {name: value.detach() for name, value in layers.cuda().state_dict().items()}
    points, along = torch.rand(9, 2, device="cuda"), torch.ones(9, 2, device="cuda")
    call = functools.partial(torch.func.functional_call, layers, weights)
    assert torch.func.jvp(call, (points,), (along,))[1].shape == (9, 1)


def assertions():
    # They hold in a run.
    step = torch.rand((), device="cuda")
    assert step + step > step, "underflow"
    assert not step > 2 * step
    if step > 2 * step:
        raise ValueError("of another question nothing is known")


def steps_are_accepted():
    # A ratio of errors, as solvers of differential equations have it.
    time, steps = torch.zeros((), device="cuda"), 0
    while time < 1:
        ratio = torch.rand(8, device="cuda").norm() / 8
        time = 1 if ratio <= 1 else time
        steps += 1
        assert steps < 10


def sparse_matrices():
    places = torch.tensor([[0, 1, 2], [2, 0, 1]])
    matrix = torch.sparse_coo_tensor(places, torch.ones(3), (3, 3)).coalesce().cuda()
    dense = torch.randn(3, 4, device="cuda", requires_grad=True)
    torch.sparse.mm(matrix, dense).sum().backward()
    assert matrix.is_cuda and dense.grad.shape == (3, 4)


def nested_tensors():
    parts = [torch.randn(3, 4), torch.randn(5, 4)]
    nested = torch.nested.nested_tensor(parts, device="cuda", layout=torch.jagged)
    torch.nn.Linear(4, 8).cuda()(nested).values().sum().backward()


def attention_by_a_score():
    from torch.nn.attention.flex_attention import flex_attention
    query = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    before = torch.cuda.max_memory_allocated()
    torch.compile(flex_attention)(query, query, query).sum().backward()
    assert query.grad.shape == query.shape


def sums_within_formulas():
    matrix = torch.eye(1000, device="cuda").requires_grad_()
    factor = torch.linalg.cholesky(matrix)
    gradient = torch.ones_like(factor)
    begin = len(run.log.sizes)
    torch.autograd.grad(factor, matrix, gradient)
    matrices = [size for size in run.log.sizes[begin:] if size == 4_000_000]
    assert len(matrices) == 7, len(matrices)  # mm, tril, tril, +, *, and two solutions
    doubled = matrix * matrix  # whose two gradients are one: added in place
    begin = len(run.log.sizes)
    torch.autograd.grad(doubled, matrix, gradient)
    assert len(run.log.sizes) - begin == 2, len(run.log.sizes) - begin


def loops_until_convergence():
    weight = torch.randn(1000, device="cuda", requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=20, history_size=10)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        calls.append(loss)
        return loss

    optimizer.step(closure)
    assert len(calls) == 20, len(calls)  # numbers that stay the same would end it at once
    notes = run.mode.runner.notes
    assert len(optimizer.state[weight]["old_dirs"]) == 10
    assert any(note.startswith("L-BFGS's history: values decide") for note in notes)
    loss = 1.0
    while loss > 1e-3:
        loss = (weight * 2).sum().item()


def samples_of_a_detector():
    matched = torch.randn(2000, device="cuda").long()
    chosen = torch.zeros_like(matched, dtype=torch.uint8)
    places = torch.where(matched >= 1)[0]
    chosen[places[torch.randperm(places.numel(), device="cuda")[:128]]] = 1
    others = torch.zeros_like(matched, dtype=torch.uint8)
    others[places[:384]] = 1
    sampled = torch.where(chosen | others)[0]
    assert sampled.shape == (512,), sampled.shape
    chosen[:] = matched.to(torch.uint8)
    assert torch.where(chosen)[0].shape == (2000,), torch.where(chosen)[0].shape


def libraries_built_for_a_gpu():
    library = folder / "torchvision"
    library.mkdir()
    (library / "_C.so").write_bytes(b"")
    shapes = library / "_meta_registrations.py"
    shapes.write_text('@register_meta("of_another_version")')
    try:
        torch.ops.load_library(library / "_C.so")
    except OSError:
        shapes.write_text('@register_meta("roi_align")')
    torch.ops.load_library(library / "_C.so")
    impl = torch.library.Library("torchvision", "IMPL", "Meta")
    impl.impl("roi_align", lambda x, rois, scale, h, w, *more: x.new_empty((len(rois), 8, h, w)))
    impl.impl("_roi_align_backward", lambda grad, rois, s, h, w, *more: grad.new_empty(more[:4]))
    maps = torch.randn(2, 8, 32, 32, device="cuda", requires_grad=True)
    rois = torch.rand(10, 5, device="cuda")
    torch.ops.torchvision.roi_align(maps, rois, 1.0, 7, 7, 2, True).sum().backward()
    assert maps.grad.shape == maps.shape


def generators_of_the_device():
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert generator.device.type == "cuda" and isinstance(generator, torch.Generator)
    assert torch.randn(4, 5, generator=generator, device="cuda").shape == (4, 5)
    weight = torch.empty(6, 7, device="cuda")
    assert torch.nn.init.normal_(weight, generator=generator) is weight
    assert isinstance(torch.default_generator, torch.Generator)
    first, again = (torch.rand(3, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert first.tolist() == again.tolist() and len(set(first.tolist())) == 3  # the host's are real


def views_of_inference_tensors():
    with torch.inference_mode():
        image = torch.rand(4, 8, device="cuda")
    for tensor in (torch.rand(4, 8, device="cuda"), image, image):
        view = tensor.t()
        assert view.shape == (8, 4) and view.is_inference() == tensor.is_inference()


def marks_in_masks_of_attention():
    # a row of a large mask is marked, and asked for the marks; what is written is known no longer
    keep = torch.ones(3, 1500, dtype=torch.bool)
    keep[1, 900:] = False
    keep = keep.cuda()
    whole = keep[:, None, None, :] & torch.ones(1, 1, 1500, 1, dtype=torch.bool, device="cuda")
    mask = torch.where(whole, torch.zeros((), device="cuda"), torch.finfo(torch.float32).min)
    assert mask.nbytes > 4 << 20
    row = mask[:, 0, 0, :]
    assert not (row > 0).any().item() and int((row < 0).sum()) == 600
    marked = torch.zeros(3, 1500, dtype=torch.long)
    marked[:, 0] = marked[2, 40] = 1
    row[marked.cuda() == 1] = torch.finfo(torch.float32).max
    assert (row > 0).flatten().any().item()
    assert (row > 0).nonzero().tolist() == [[0, 0], [1, 0], [2, 0], [2, 40]]
    mask.masked_fill_(torch.rand(mask.shape, device="cuda") > 0.5, 1.0)
    assert not (mask[:, 0, 1, :] < 0).any().item()  # what nobody knows holds nowhere


def solvers():
    tall = torch.randn(6000, 80, device="cuda")
    solution = torch.linalg.lstsq(tall, torch.randn(6000, 2, device="cuda")).solution
    assert solution.is_cuda and solution.shape == (80, 2)


cases = [case for case in list(globals().values()) if getattr(case, "__module__", "") == "__main__"]
cases = [case for case in cases if type(case).__name__ == "function"]
with run.going():
    for case in cases:
        try:
            case()
            print(case.__name__, "done")
        except Exception:
            print(case.__name__, traceback.format_exc().replace(chr(10), " | ")[-600:])
"""
CASES = (
    "threads", "data_in_threads", "generations", "pinned", "checkpoints", "files_by_other_ways",
    "a_whole_model_keeps_no_memory_of_the_device", "buffers", "files_on_disk", "safetensors_again", "old_types", "losses_of_aligned_sequences", "draws",
    "counts_of_unknown_values", "large_tensors_are_read", "one_of_one", "marks_and_figures",
    "forward_mode",
    "assertions", "steps_are_accepted",
    "sparse_matrices", "nested_tensors", "attention_by_a_score", "sums_within_formulas",
    "loops_until_convergence", "samples_of_a_detector", "libraries_built_for_a_gpu",
    "generators_of_the_device", "views_of_inference_tensors", "marks_in_masks_of_attention",
    "solvers",
)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("usual")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


@pytest.mark.parametrize("case", CASES)
def test_scripts_go_on(outcomes: dict[str, str], case: str) -> None:
    if case == "safetensors_again":
        pytest.importorskip("safetensors")
    assert outcomes[case] == "done"
