"""What operators ask for that depends on how PyTorch was built, and values that one side decides."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

PROGRAM = """
import torch
from vramlens.cards.known_cards import card_named
from vramlens.prediction.predicted_run import PredictedRun

run = PredictedRun(card_named("h200"))
MIB = 1 << 20


def most_of(work):
    # MiB at the peak of what is asked for meanwhile; what is older may go at any time.
    begin, older = len(run.log.kinds), len(run.log.sizes)
    result = work()
    live = most = 0
    events = list(zip(run.log.kinds[begin:], run.log.rows[begin:]))
    for kind, row in events:
        if row >= older:
            live += run.log.sizes[row] if kind == 0 else -run.log.sizes[row]
            most = max(most, live)
    return most / MIB, result


with run.going():
    x = torch.randn(64, 512, 256, device="cuda", requires_grad=True)  # 32 MiB
    activated = torch.nn.functional.silu(x)
    gradient = torch.randn_like(x)
    print("silu", most_of(lambda: torch.autograd.grad(activated, x, gradient))[0])
    norm = torch.nn.RMSNorm(256).cuda()
    print("rms_norm", round(most_of(lambda: norm(x))[0]))
    scores = torch.randn(4, 1024, 2048, device="cuda")  # 32 MiB, its mask 8 MiB
    print("safe_softmax", round(most_of(lambda: torch._safe_softmax(scores, -1))[0]) >= 40)

    rows = torch.randn(4, 1024, 2048, device="cuda", requires_grad=True)  # 32 MiB
    shares = rows.softmax(-1)
    gradient = torch.randn_like(rows)
    print("softmax", most_of(lambda: torch.autograd.grad(shares, rows, gradient))[0])

    few = torch.arange(8, device="cuda")
    for name, choose in (("index_select", lambda: rows.index_select(0, few[:2])),
                         ("index", lambda: rows[few[:2]]),
                         ("gather", lambda: rows.gather(1, few.view(4, 2, 1)))):
        chosen = choose()
        gradient = torch.ones_like(chosen)
        print(name, round(most_of(lambda: torch.autograd.grad(chosen, rows, gradient))[0]))

    cell = torch.nn.GRUCell(512, 1024).cuda()
    sequence = torch.randn(1024, 512, device="cuda", requires_grad=True)  # a state: 4 MiB
    cell(sequence).sum().backward()  # both threads ask for cuBLAS' workspace
    size, state = most_of(lambda: cell(sequence, torch.zeros(1024, 1024, device="cuda")))
    print("gru_cell", round(size))
    print("nonzero_static", torch.nonzero_static(rows > 0, size=1000).shape[0])
    print("gru_backward", round(most_of(lambda: torch.autograd.grad(state.sum(), sequence))[0]))
    image = torch.randn(8, 64, 64, 64, device="cuda", requires_grad=True)  # 8 MiB
    grid = torch.randn(8, 128, 128, 2, device="cuda", requires_grad=True)  # 1 MiB
    size, sampled = most_of(lambda: torch.cudnn_grid_sampler(image, grid))
    gradient = torch.ones_like(sampled)
    print("grid", round(size),
          round(most_of(lambda: torch.autograd.grad(sampled, (image, grid), gradient))[0]))
    sounds = torch.randn(512, 64, 128, device="cuda", requires_grad=True)  # 16 MiB
    targets, long, short = torch.ones(64, 127).long(), torch.full((64,), 512), torch.full((64,), 127)
    for name, lengths in (("host", (long, short)), ("device", (long.cuda(), short.cuda())),
                          ("both", (long, short.cuda())), ("lists", ([512] * 64, [127] * 64))):
        size, loss = most_of(lambda: torch.nn.functional.ctc_loss(sounds, targets.cuda(), *lengths))
        print(f"ctc_{name}", round(size), round(most_of(lambda: torch.autograd.grad(loss, sounds))[0]))

    attention = torch.nn.MultiheadAttention(512, 8, batch_first=True).cuda().eval()
    sentence = torch.randn(16, 512, 512, device="cuda")  # 16 MiB
    with torch.no_grad():
        attention(sentence, sentence, sentence)
        for name, wants in (("fused", False), ("with_weights", True)):
            work = lambda: attention(sentence, sentence, sentence, need_weights=wants)
            print(name, round(most_of(work)[0]))

    table = torch.nn.Embedding(20000, 128, sparse=True).cuda()
    words = torch.randint(0, 20000, (40960,))
    table(words.cuda()).sum().backward()
    optimizer = torch.optim.SparseAdam(table.parameters())
    of_step = int(most_of(optimizer.step)[0] * MIB)
    of_states, of_rows = 2 * 20000 * 512, len(words.unique()) * 512
    print("sparse_adam", (of_step - of_states - 40960 * 8) / of_rows, len(run.mode.runner.notes))
    gradient = table.weight.grad
    print("clone", most_of(gradient.clone)[0] == gradient._nnz() * (512 + 8) / MIB)
    bags = torch.nn.EmbeddingBag(20000, 128, sparse=True).cuda()
    bags(words.view(-1, 8).cuda()).sum().backward()
    distinct = bags.weight.grad.coalesce()._nnz()
    print("bags", bags.weight.grad._nnz(), distinct == len(words.unique()))
    for name in ("SGD", "Adagrad"):
        plain = torch.nn.Embedding(2000, 16, sparse=True).cuda()
        steps = getattr(torch.optim, name)(plain.parameters(), lr=0.1)
        plain(torch.randn(300, 2000, device="cuda").argmax(1)).sum().backward()
        rows = plain.weight.grad._nnz()
        steps.step()
        print(name, rows, len(run.mode.runner.notes))
    run.mode.runner.notes.clear()

    places = torch.stack([torch.arange(1 << 20) % 16384, torch.arange(1 << 20) // 64]).cuda()
    edges = torch.sparse_coo_tensor(places, torch.ones(1 << 20, device="cuda"), (16384, 16384))
    edges = edges.coalesce()  # indices of 16 MiB, values of 4
    nodes = torch.randn(16384, 512, device="cuda", requires_grad=True)  # 32 MiB
    size, sums = most_of(lambda: torch.sparse.mm(edges, nodes))
    print("sparse_product", round(size), sums.shape == nodes.shape, edges._nnz() == edges.t()._nnz())
    gradient = torch.ones_like(sums)
    print("sparse_product_backward",
          round(most_of(lambda: torch.autograd.grad(sums, nodes, gradient))[0]))
    print("notes_of_products", len(run.mode.runner.notes))
    begins = torch.arange(16385, device="cuda") * 64  # of each row's 64 values
    size, rows = most_of(
        lambda: torch.sparse_csr_tensor(begins, places[1], edges.values(), (16384, 16384)))
    print("compressed", size, rows.values().shape, rows.crow_indices().shape)
    size, same = most_of(edges.to_sparse_csr)
    print("converted", size * MIB, same.col_indices().shape, most_of(lambda: same @ nodes)[0])
    vector = torch.ones(16384, device="cuda")
    works = [lambda: torch.sparse.mm(rows, nodes), lambda: rows @ nodes, lambda: rows @ vector,
             lambda: rows.t(), lambda: rows.t() @ nodes, lambda: rows @ nodes[:, ::2]]
    print("compressed_products", *[round(most_of(work)[0], 1) for work in works])
    sums = torch.sparse.mm(rows, nodes)
    work = lambda: torch.autograd.grad(sums, nodes, torch.ones_like(sums[:1]).expand(16384, -1))
    print("compressed_backward", round(most_of(work)[0], 1))
    on_host = torch.sparse_csr_tensor(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]),
                                      torch.ones(3), (2, 2))
    moved = on_host.cuda()
    print("moved", (moved @ torch.ones(2, 5, device="cuda")).shape, moved.col_indices().device.type)
    run.mode.runner.notes.clear()

    side, copied = torch.cuda.Stream(), torch.ones(1000, device="cuda")
    copied.record_stream(torch.cuda.current_stream())
    print("own_stream", len(run.log.used_aside))
    copied.record_stream(side)
    copied.to("cpu", non_blocking=True)
    waits = [len(run.log.waited_at)]
    for wait in (copied.sum().item, copied.cpu, torch.cuda.synchronize, side.synchronize):
        wait()
        waits.append(len(run.log.waited_at))
    print("other_stream", len(run.log.used_aside), [wait - waits[0] for wait in waits])

    print("hidden", isinstance(x, torch._subclasses.FakeTensor))
    older = set(run.log.bounds)
    layers = torch.nn.LayerNorm(256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.ReLU()
    torch.compile(torch.nn.Sequential(*layers).cuda())(x)
    print("compiled", sorted(run.log.sizes[row] / MIB for row in set(run.log.bounds) - older))
    first, second = torch.nn.Linear(256, 256).cuda(), torch.nn.Linear(256, 256).cuda()
    branch = torch.compile(lambda x: second(x := x + first(x)).sum() + x.sum())
    doubled = x * 2
    made = len(run.log.sizes)
    branch(doubled)
    print("residual", sum(run.log.sizes[row] == 32 * MIB and row not in run.log.bounds
                          for row in range(made, len(run.log.sizes))))
    run.mode.runner.notes.clear()

    shown = []
    for _ in range(3):
        parts = [x[:, :256], (x * 2)[:, 256:].transpose(0, 1), torch.cat([x, x]), x.sum((0, 1))]
        moved = x.detach() * 1
        parts += [*torch.split(x, 32), moved, moved.unsqueeze_(0), moved.add_(1), x.long() * 2]
        shown.append([(part.shape, part.stride(), part.storage_offset(), part.dtype)
                      for part in parts])
        shared = parts[0].untyped_storage()._cdata == x.untyped_storage()._cdata
    print("again", shown[0] == shown[1] == shown[2], shared, tuple(parts[6].shape),
          (x.long() * 2).dtype, (x.long() * 2.0).dtype)

    edges = torch.randint(0, 100, (2, 400)).cuda()
    reached = edges[0].new_empty(400, dtype=torch.bool)
    marks = torch.zeros(100, dtype=torch.bool, device="cuda").index_fill_(0, edges[0, :5], True)
    torch.index_select(marks, 0, edges[0], out=reached)
    real = torch.isin(edges[0].cpu(), edges[0, :5].cpu())
    print("out", edges[1][reached].unique().numel() == edges[1].cpu()[real].unique().numel())
    pieces = [torch.empty(2, 100, device="cuda"), torch.empty(2, 300, device="cuda")]
    torch.split_with_sizes_copy(edges.float(), [100, 300], 1, out=pieces)
    order = (torch.rand(500_000, generator=torch.Generator().manual_seed(0)) * 7).long().cuda()
    print("row", order.unique().numel())

    counted = torch.randn(1024, 8192, device="cuda") > 0  # 8 MiB, and 64 MiB of 64-bit numbers
    halves = torch.randn(1024, 8192, device="cuda").half()
    print("casts", round(most_of(lambda: counted.sum(1))[0]), round(most_of(lambda: halves.sum())[0]),
          round(most_of(lambda: counted.any(1))[0]))

    points = torch.randn(64, 512, device="cuda")
    scaled = [(points - points.mean(0)) / 3 for _ in range(2)]
    print("alike", torch.equal(*scaled), torch.equal(scaled[0], points),
          torch.equal(scaled[0], scaled[1].mul_(2)), torch.equal(points.bernoulli(), points.bernoulli()))

    weight = torch.nn.Parameter(torch.randn(1024, 256, device="cuda"))
    searched = torch.optim.LBFGS([weight], max_iter=4, history_size=20, line_search_fn="strong_wolfe")
    def closure():
        searched.zero_grad()
        loss = (x[0] @ weight[:256]).square().mean()
        loss.backward()
        return loss
    for _ in range(2):
        searched.step(closure)
    state = searched.state[weight]
    print("lbfgs", len(state["old_dirs"]), run.mode.runner.notes.popitem()[1])

    from vramlens.prediction.tensors.even_choices import limit_share_above_zero
    labels = torch.randn(2, 512, device="cuda")[0].long()
    limit_share_above_zero(labels, 0.25)
    objects = torch.where(labels > 0)[0]
    row = run.log.row_of(objects)
    print("objects", len(objects), run.log.bounds[row][1] // run.log.sizes[row])

    unknown = torch.randn(4, device="cuda") > 0
    every = torch.full((4,), True, device="cuda")
    running = torch.ones(4, dtype=torch.long, device="cuda")
    print("or", (unknown | every).all().item(), bool((running & ~unknown).max() == 0))
    print("and", bool((running & ~(unknown | every)).max() == 0))
    flags = torch.full((4,), 5, device="cuda")
    print("numbers", torch.equal((flags | running).cpu(), torch.full((4,), 5)))

    tokens = torch.randn(4, 9, 50, device="cuda").argmax(-1)
    most = (tokens + 1).bool().sum(dim=1).max()
    print("lengths", tokens[:, :most].shape[1], tokens[:, :most - 3].shape[1],
          (tokens != 0).sum().item(), (tokens == 3).sum().item())

    heads = torch.randn(2, 4, 49, 32, device="cuda", requires_grad=True)
    bias = torch.randn(2, 4, 49, 49, device="cuda", requires_grad=True)
    begin = len(run.log.sizes)
    with torch.autocast("cuda", torch.bfloat16):
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)
    asked = run.log.sizes[begin:]
    print("bias", 2 * bias.numel() in asked, 2 * bias.numel() // 49 * 56 in asked)

    lazy = torch.nn.Sequential(torch.nn.LazyLinear(8)).cuda()
    lazy(torch.randn(2, 3, device="cuda")).sum().backward()
    print("lazy", lazy[0].weight.shape, lazy[0].weight.grad.device)
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), 1).cuda().eval()
    with torch.no_grad():
        padding = torch.randn(2, 8, device="cuda") > 0
        out = encoder(torch.randn(2, 8, 64, device="cuda"), src_key_padding_mask=padding)
    print("encoder", tuple(out.shape), len(run.mode.runner.notes))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def test_kernels_that_only_a_cuda_build_has_are_one_operator(said: dict[str, str]) -> None:
    assert said["silu"] == "32.0"
    assert said["rms_norm"] == "32"


def test_a_softmax_holds_a_product_in_its_backward(said: dict[str, str]) -> None:
    assert said["softmax"] == "64.0"


def test_a_stated_count_of_positions_needs_no_values(said: dict[str, str]) -> None:
    assert said["nonzero_static"] == "1000"


def test_a_grid_that_cudnn_samples_asks_for_its_results(said: dict[str, str]) -> None:
    assert said["grid"] == "32 9"


def test_a_gru_cell_keeps_five_numbers_a_unit(said: dict[str, str]) -> None:
    """State 4, gates 12 and 12, kept 20, next state 4; then gradients of both gates and a state, and
    24 of partial sums for a bias (measured on an H100: 52.0).
    """
    assert said["gru_cell"] == "52"
    assert said["gru_backward"] == "52"


def test_attention_in_evaluation_takes_the_fast_path(said: dict[str, str]) -> None:
    """Queries, keys and values 48, their mixture and the result 16 each; scores 128, twice."""
    assert said["fused"] == "80"
    assert said["with_weights"] == "304"


@pytest.mark.parametrize("lengths", ["host", "device", "both", "lists"])
def test_a_ctc_loss_keeps_its_alphas_wherever_its_lengths_are(
    said: dict[str, str], lengths: str
) -> None:
    alphas, blanks = 64 * 512 * 255 * 4 / 2**20, 64 * 512 * 128 * 4 / 2**20
    assert said[f"ctc_{lengths}"] == f"{alphas:.0f} {16 + alphas + 2 * blanks:.0f}"


@pytest.mark.parametrize("name", ["index_select", "index", "gather"])
def test_gradients_of_chosen_rows_are_added_in_place(said: dict[str, str], name: str) -> None:
    assert said[name] == "32"


def test_operators_made_of_others_hold_their_temporaries(said: dict[str, str]) -> None:
    assert said["safe_softmax"] == "True"


def test_sparse_adam_holds_what_it_held_on_an_h200(said: dict[str, str]) -> None:
    assert said["sparse_adam"] == "6.0 0"  # the run of recommender: six times the distinct rows


def test_a_clone_of_a_sparse_gradient_has_its_own_rows(said: dict[str, str]) -> None:
    assert said["clone"] == "True"


def test_bags_know_their_indices(said: dict[str, str]) -> None:
    assert said["bags"] == "40960 True"


def test_sparse_gradients_of_unknown_indices_are_noted(said: dict[str, str]) -> None:
    assert said["SGD"] == "300 0"
    assert said["Adagrad"] == "300 1"


def test_a_sparse_matrix_times_a_dense_one(said: dict[str, str]) -> None:
    """Zeros, the product twice, and indices of 32 bits; its gradient is that of the transposed
    matrix, copied and sorted, whose indices stay as unique as they were. ``gat_scatter`` on an
    H200 held as much.
    """
    assert said["sparse_product"] == "100 True True"
    assert said["sparse_product_backward"] == "140"
    assert said["notes_of_products"] == "1"


def test_a_compressed_matrix_requests_nothing_and_its_product_only_results(
    said: dict[str, str],
) -> None:
    """Zeros and the product, of 32 MiB each; with a transposed one copies of its parts and one more
    of the indices (20 MiB and a begin of each row); and a copy of what has gaps. Products of a
    matrix with 4,000,000 values on an H200: 393.5 MiB with 390.6 predicted, transposed 471.3 with
    468.4, a backward pass 667.3 with 663.8.
    """
    assert said["compressed"] == "0.0 torch.Size([1048576]) torch.Size([16385])"
    assert said["converted"] == "131080.0 torch.Size([1048576]) 64.0"  # where each row begins
    assert said["compressed_products"] == "64.0 64.0 0.1 0.0 84.1 48.0"
    assert said["compressed_backward"] == "116.1"
    assert said["moved"] == "torch.Size([2, 5]) cuda"


def test_what_another_stream_used_is_noted_and_when_the_host_waits(said: dict[str, str]) -> None:
    assert said["own_stream"] == "0"
    assert said["other_stream"] == "1 [0, 1, 2, 3, 4]"


def test_libraries_do_not_take_shapes_for_a_trace(said: dict[str, str]) -> None:
    assert said["hidden"] == "False"  # transformers makes a mask then that a run leaves out


def test_what_is_fused_may_never_be_made(said: dict[str, str]) -> None:
    """A layer norm's result and statistics; not what a product reads or the function returns."""
    assert said["compiled"] == "[0.125, 0.125, 32.0]"


def test_a_sum_after_a_branch_is_not_made_again(said: dict[str, str]) -> None:
    assert said["residual"] == "3"  # both products and the sum


def test_shapes_that_are_remembered_are_those_of_the_first_time(said: dict[str, str]) -> None:
    assert said["again"] == "True True (1, 64, 512, 256) torch.int64 torch.float32"


def test_values_go_on_through_results_that_are_given(said: dict[str, str]) -> None:
    assert said["out"] == "True"
    assert said["row"] == "7"


def test_counting_makes_a_copy_of_64_bits(said: dict[str, str]) -> None:
    assert said["casts"] == "64 0 0"


def test_what_is_computed_alike_is_equal(said: dict[str, str]) -> None:
    assert said["alike"] == "True False False False"


def test_lbfgs_keeps_the_pair_of_each_iteration(said: dict[str, str]) -> None:
    assert said["lbfgs"] == "7 None"


def test_as_many_samples_are_objects_as_a_detector_allows(said: dict[str, str]) -> None:
    assert said["objects"] == "128 1"


def test_one_side_decides_where_the_other_is_not_known(said: dict[str, str]) -> None:
    assert said["or"] == "True False"
    assert said["and"] == "True"
    assert said["numbers"] == "True"


def test_autocast_casts_the_bias_of_attention(said: dict[str, str]) -> None:
    assert said["bias"] == "True True"


def test_unknown_lengths_are_the_longest_and_unknown_equals_none(said: dict[str, str]) -> None:
    assert said["lengths"] == "9 6 36 0"


def test_layers_without_shapes_and_the_fast_path_go_on(said: dict[str, str]) -> None:
    assert said["lazy"] == "torch.Size([8, 3]) cuda:0"
    assert said["encoder"] == "(2, 8, 64) 1"
