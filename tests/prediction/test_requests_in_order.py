"""What operators ask for and give back, in order, as recordings of a GPU have it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import json
import torch
from torch import nn
from vramlens.cards.known_cards import card_named
from vramlens.prediction.predicted_run import PredictedRun

run = PredictedRun(card_named("h100"))
answers = {}


def requests_of(work):
    # Bytes asked for, and with a minus those given back of them, in order; 0 empties the cache.
    begin, older = len(run.log.kinds), len(run.log.sizes)
    result = work()
    events = list(zip(run.log.kinds[begin:], run.log.rows[begin:]))
    return [
        run.log.sizes[row] * (1 if kind == 0 else -1) if kind < 2 else 0
        for kind, row in events
        if row >= older or kind == 2
    ]


def both(name, layer, x):
    kept = []
    first = (lambda out: out[0]) if isinstance(layer, nn.RNNBase) else (lambda out: out)
    answers[name] = requests_of(lambda: kept.append(first(layer(x))))
    gradient = torch.ones(kept[0].shape, device="cuda")
    answers[name + " backward"] = requests_of(lambda: kept.pop().backward(gradient))


with run.going():
    systems = torch.randn(512, 160, 160, device="cuda", dtype=torch.float64)
    right = torch.randn(512, 160, device="cuda", dtype=torch.float64)
    answers["solve"] = requests_of(lambda: torch.linalg.solve(systems, right))
    torch.randn(8, 8, device="cuda") @ torch.randn(8, 8, device="cuda")  # cuBLAS' workspace
    padded = torch.randn(64, 24, 256, device="cuda", requires_grad=True)
    both("lstm", nn.LSTM(256, 512).cuda(), padded)
    both("gru", nn.GRU(256, 256, 2, batch_first=True).cuda(), padded)
    half = padded.detach().bfloat16()
    answers["bfloat16"] = requests_of(lambda: nn.LSTM(256, 256).cuda().bfloat16()(half))

    moved = nn.LSTM(64, 128, bidirectional=True)
    answers["moved"] = requests_of(moved.cuda)
    answers["parts of one"] = len({w.untyped_storage()._cdata for w in moved.parameters()})
    spoken = torch.randn(48, 750, 1024, device="cuda", requires_grad=True)
    lengths, words = torch.full((48,), 750), torch.full((48,), 125)
    words[0], text = 100, torch.ones(48 * 125 - 25, dtype=torch.long, device="cuda")
    ctc = nn.CTCLoss(reduction="sum", zero_infinity=True)
    lost = []
    chances = spoken.log_softmax(-1).transpose(0, 1)
    answers["ctc"] = requests_of(lambda: lost.append(ctc(chances, text, lengths, words)))
    answers["ctc backward"] = requests_of(lambda: lost.pop().backward())

    spectrum = torch.randn(12, 64, 256, 129, device="cuda", dtype=torch.cfloat, requires_grad=True)
    weight = torch.randn(64, 64, 32, 32, device="cuda", dtype=torch.cfloat, requires_grad=True)
    product = lambda: torch.einsum("bixy,ioxy->boxy", spectrum[..., :32, :32], weight)
    product().abs().sum().backward()  # the threads' workspaces
    answers["product"] = requests_of(product)
    mixed = product().abs()
    answers["product backward"] = requests_of(lambda: mixed.sum().backward())

    features = torch.randn(48, 32, 750, 20, device="cuda", requires_grad=True)
    normed = nn.BatchNorm2d(32).cuda()(features)
    of_steps = torch.ones(48, 750, 32, 20, device="cuda").transpose(1, 2)
    answers["norm"] = requests_of(lambda: torch.autograd.grad(normed, features, of_steps))
    head = nn.Conv2d(128, 2, 1, bias=False).cuda()
    wide = torch.randn(12, 128, 32, 32, device="cuda", requires_grad=True)
    scored, of_scores = head(wide), torch.ones(12, 32, 2, 32, device="cuda").transpose(1, 2)
    answers["head"] = requests_of(
        lambda: torch.autograd.grad(scored, (wide, head.weight), of_scores)
    )

    logits = torch.randn(8, 64, 4096, device="cuda")
    answers["log_softmax"] = requests_of(lambda: logits[:, :-1].log_softmax(-1))
    answers["whole log_softmax"] = requests_of(lambda: logits.log_softmax(-1))
    words = torch.randn(8, 512, 256, device="cuda").transpose(1, 2)
    line = nn.Conv1d(256, 128, 3, padding=1, bias=False).cuda()
    answers["line"] = requests_of(lambda: line(words))
    answers["line lies last"] = line(words).transpose(1, 2).is_contiguous()

    image = torch.randn(32, 256, 28, 28, device="cuda", requires_grad=True)
    both("1x1", nn.Conv2d(256, 512, 1, bias=False).cuda(), image)
    both("3x3", nn.Conv2d(256, 256, 3, padding=1, bias=False).cuda(), image)
    depthwise = nn.Conv2d(256, 256, 7, padding=3, groups=256, bias=False).cuda()
    both("depthwise", depthwise, image)
    last = nn.Conv2d(256, 256, 3, padding=1, bias=False).cuda().to(memory_format=torch.channels_last)
    convolved = last(image.detach())
    answers["lies last"] = convolved.is_contiguous(memory_format=torch.channels_last)
    answers["last"] = requests_of(lambda: last(convolved.detach()))
    answers["first and last"] = requests_of(lambda: last(image.detach()))

    torch.backends.cudnn.benchmark = True
    tried = torch.randn(96, 64, 56, 56, device="cuda", dtype=torch.bfloat16)
    tried = tried.to(memory_format=torch.channels_last).requires_grad_()
    kernel = nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda().bfloat16()
    both("tried", kernel, tried)
    both("tried again", kernel, tried)
    torch.backends.cudnn.benchmark = False
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def requests() -> dict[str, list[int]]:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answers: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def without_frees(requests: list[int], *kept: int) -> list[int]:
    """The requests, and of what is given back only these sizes."""
    return [size for size in requests if size > 0 or -size in kept]


def test_a_recurrent_layer_asks_as_cudnn_was_seen_to(requests: dict[str, list[int]]) -> None:
    state, rows, workspace = 49152, 3145728, 32473536  # benchmarks/prediction/sweep.json.xz
    asked = without_frees(requests["lstm"], workspace)
    assert asked == [state, state, rows, state, state, workspace, 15728896, -workspace]
    asked = without_frees(requests["lstm backward"], workspace)
    of_input, of_weights = 1572864, 6307840
    expected = [state, state, of_input, state, state, workspace, -workspace]
    assert asked == [*expected, of_weights, workspace, -workspace]


def test_batches_that_come_first_are_copied_and_the_copy_is_given_back(
    requests: dict[str, list[int]],
) -> None:
    rows = 64 * 24 * 256 * 4  # the order is that of batch_finder's recording on an H100
    forward = requests["gru"]
    assert forward.count(rows) == 2  # the copy and the output
    assert -rows in forward
    assert requests["gru backward"].count(rows) == 4  # input, gradient, its input's, input again


def test_weights_that_are_not_in_one_buffer_are_copied_into_one(
    requests: dict[str, list[int]],
) -> None:
    assert 1052672 in requests["bfloat16"]  # sweep.json.xz


def test_weights_move_into_one_buffer_and_what_held_them_is_freed(
    requests: dict[str, list[int]],
) -> None:
    sizes = [4 * 128 * 64 * 4, 4 * 128 * 128 * 4, 4 * 128 * 4, 4 * 128 * 4] * 2
    assert requests["moved"] == [*sizes, sum(sizes), *(-size for size in sizes)]
    assert requests["parts of one"] == 1


def test_a_ctc_loss_asks_as_an_acoustic_models_recording_shows(
    requests: dict[str, list[int]],
) -> None:
    index, alphas, result, loss = 48 * 8, 48 * 750 * 251 * 4, 48 * 750 * 1024 * 4, 48 * 4
    lengths, gone = [index] * 3, [-index] * 3
    assert requests["ctc"][:8] == [*lengths, alphas, loss, *gone]
    sums, row = 48 * 750 * 126 * 4, 48 * 750 * 4
    largest = [row, row, row // 4, -row // 4, -row]
    asked = requests["ctc backward"]
    asked = asked[asked.index(index) : asked.index(-alphas)]
    assert asked == [
        *[*lengths, alphas, result, sums, *largest, sums, row, -sums, -row, -row, -sums],
        *[4, 48, result, -48, -4, -result],
    ]
    after = requests["ctc backward"]
    after = after[after.index(-alphas) :]
    assert [size for size in after if abs(size) == result][:3] == [
        result,
        result,
        -result,
    ]  # a copy


def test_factors_that_cublas_cannot_read_are_copied(requests: dict[str, list[int]]) -> None:
    part, weight = (
        12 * 64 * 32 * 32 * 8,
        64 * 64 * 32 * 32 * 8,
    )  # as in a neural operator's recording
    assert requests["product"] == [part, part, weight, -weight]
    asked = [size for size in requests["product backward"] if abs(size) in (part, weight)]
    of_weight = [weight, part, -part]
    assert is_within([*of_weight, part, weight, part, -part, -weight], asked)


def is_within(part: list[int], whole: list[int]) -> bool:
    return any(whole[place : place + len(part)] == part for place in range(len(whole)))


def test_a_normed_batchs_gradient_is_copied_where_it_lies_otherwise(
    requests: dict[str, list[int]],
) -> None:
    image = 48 * 32 * 750 * 20 * 4  # an acoustic model's recording
    assert [size for size in requests["norm"] if abs(size) > 1024] == [image, image, -image]


def test_a_gradient_is_copied_for_each_gradient_that_is_made_of_it(
    requests: dict[str, list[int]],
) -> None:
    image, scores, weight = 12 * 128 * 32 * 32 * 4, 12 * 2 * 32 * 32 * 4, 2 * 128 * 4
    asked = [size for size in requests["head"] if abs(size) in (image, scores, weight)]
    assert asked[:5] == [image, scores, -scores, scores, weight]
    assert asked[-1] == -scores


def test_convolutions_ask_as_recordings_of_resnet50_show(requests: dict[str, list[int]]) -> None:
    image, weight = 32 * 256 * 28 * 28 * 4, 256 * 256 * 9 * 4
    assert max(requests["1x1"]) == 2 * image  # the result: its workspace is small
    assert 32 * 512 * 256 * 4 in requests["1x1 backward"]  # a partial sum for each image
    assert 2 * image + weight + 16 in requests["3x3"]
    assert 2 * image + weight + 16 in requests["3x3 backward"]
    assert max(requests["depthwise"] + requests["depthwise backward"]) == image


def test_channels_that_lie_last_are_taken_as_they_are(requests: dict[str, list[int]]) -> None:
    image = 32 * 256 * 28 * 28 * 4
    assert requests["lies last"]
    assert [size for size in requests["last"] if size > 400] == [image]
    assert [size for size in requests["first and last"] if size > 400] == [image, image]


def test_solved_systems_take_the_workspace_of_cublas(requests: dict[str, list[int]]) -> None:
    right, factors, workspace = 512 * 160 * 8, 512 * 160 * 160 * 8, 32 << 20
    asked = requests["solve"]  # newton_beam's recording on an H100
    assert asked.count(workspace) == 1
    assert asked.count(right) == 5
    assert asked.index(factors) < asked.index(workspace) < asked.index(-factors)


def test_kernels_copy_inputs_that_lie_apart(requests: dict[str, list[int]]) -> None:
    part = 8 * 63 * 4096 * 4
    assert requests["log_softmax"] == [part, part, -part]
    assert requests["whole log_softmax"] == [8 * 64 * 4096 * 4]
    weight, words, result = 128 * 256 * 3 * 4, 8 * 512 * 256 * 4, 8 * 512 * 128 * 4
    workspace = words + weight + result + 16
    assert requests["line"] == [words, result, workspace, -workspace, -words]  # as in mamba_dna
    assert not requests["line lies last"]


def test_all_plans_are_tried_once_and_the_cache_is_emptied(requests: dict[str, list[int]]) -> None:
    image, weight = 96 * 64 * 56 * 56 * 2, 64 * 64 * 9 * 2
    copies = 2 * image + weight + 16  # flowers_finetune's recording on an H100: 73.57 MiB
    forward = requests["tried"]
    assert forward.index(copies) < forward.index(-copies) < forward.index(0)
    assert requests["tried backward"].count(copies) == 1
    assert requests["tried backward"].count(2 * weight) == 1  # one sum in float32
    assert requests["tried backward"].count(0) == 2
    again = requests["tried again"] + requests["tried again backward"]
    assert copies not in again
    assert 0 not in again
