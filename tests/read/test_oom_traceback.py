"""The user's line in the traceback above an out-of-memory error, in every form that a log has
it, or none.
"""

from __future__ import annotations

import random
import time
import traceback as python_traceback
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.documents import markdown
from support.slow_texts import check_time_is_linear
from vramlens.analyses.recording_explanation import explain_text
from vramlens.read.oom.oom_text import find_oom_messages
from vramlens.trace.stacks import Frame

ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB of"
    " which 1.20 GiB is free. Of the allocated memory 60.12 GiB is allocated by PyTorch, and 16.10 GiB is reserved by"
    " PyTorch but unallocated."
)
TORCH = "/opt/conda/lib/python3.11/site-packages/torch"
PLAIN = f"""\
Traceback (most recent call last):
  File "/opt/conda/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/root/train.py", line 131, in <module>
    main()
  File "/root/train.py", line 120, in main
    loss = step(
           ^^^^^
  File "{TORCH}/nn/modules/module.py", line 1553, in _call_impl
    return forward_call(*args, **kwargs)
  [Previous line repeated 3 more times]
  File "<frozen importlib._bootstrap>", line 3, in _find
{ERROR}
"""
MAIN = Frame("/root/train.py", 120, "main")
CAUGHT = (
    PLAIN
    + """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/root/train.py", line 140, in handler
    raise RuntimeError(f"step 3 failed: {error}")
"""
)
WORKER = f"""\
Traceback (most recent call last):
  File "/root/train.py", line 9, in <module>
    outputs = net(x)
RuntimeError: Caught OutOfMemoryError in replica 0 on device 0.
Original Traceback (most recent call last):
  File "{TORCH}/nn/parallel/parallel_apply.py", line 83, in _worker
    output = module(*input, **kwargs)
  File "/root/model.py", line 44, in forward
    return self.layer(x)
{ERROR}
"""
KEY_ERROR = f"""\
Traceback (most recent call last):
  File "/root/cache.py", line 3, in find
    return table[key]
KeyError: 'x'

During handling of the above exception, another exception occurred:

{PLAIN}"""
IPYTHON_8 = f"""\
---------------------------------------------------------------------------
\x1b[0;31mOutOfMemoryError\x1b[0m                          Traceback (most recent call last)
Cell \x1b[0;32mIn[7], line 3\x1b[0m
\x1b[1;32m      2\x1b[0m opt\x1b[38;5;241m.\x1b[39mzero_grad()
\x1b[0;32m----> 3\x1b[0m loss \x1b[38;5;241m=\x1b[39m model(x)

File \x1b[0;32m{TORCH}/nn/modules/module.py:1511\x1b[0m, in \x1b[0;36mModule._call\x1b[0;34m(self, *args)\x1b[0m
\x1b[1;32m   1509\x1b[0m     x
\x1b[0;32m-> 1511\x1b[0m     return

\x1b[0;31mOutOfMemoryError\x1b[0m: {ERROR.partition(": ")[2]}
"""
IPYTHON_8_FILE = IPYTHON_8.replace(
    "\n\nFile \x1b", "\n\nFile ~/run/model.py:20, in Net.forward(self, x)\n\nFile \x1b", 1
)
IPYTHON_7 = f"""\
OutOfMemoryError                          Traceback (most recent call last)
<ipython-input-3-0a1b2c3d4e5f> in <module>
      1 for x in batches:
----> 2     step(x)

~/run/model.py in step(x, y)
     18     y = net(x)
---> 19     y.sum().backward()
     20

{TORCH}/_tensor.py in backward(self, gradient)
    486
--> 487         torch.autograd.backward(

{ERROR}
"""
COLAB = f"""\
OutOfMemoryError                          Traceback (most recent call last)
[<ipython-input-11-f4c854f12377>](https://localhost:8080/#) in <cell line: 0>()
----> 1 video = pipe(prompt=prompt).frames[0]

17 frames
[/usr/local/lib/python3.11/dist-packages/diffusers/models/vae.py](https://localhost:8080/#) in forward(self, f, cache)
    194         norm_f = self.norm_layer(f)
--> 195         new_f = norm_f * conv_y + conv_b
    196         return new_f

{ERROR}
"""
RICH = f"""\
╭─────────────────────── Traceback (most recent call last) ───────────────────────╮
│ /home/u/train.py:77 in main                                                     │
│                                                                                 │
│   74 │   for batch in loader:                                                   │
│ ❱ 77 │   │   loss = model(batch)  # :3 in x                                      │
│                                                                                 │
│ /opt/conda/lib/python3.10/site-packages/torch/nn/modules/module.py:1553 in      │
│ _call_impl                                                                      │
╰─────────────────────────────────────────────────────────────────────────────────╯
{ERROR}
"""
NCCL = """\
Traceback (most recent call last):
  File "/root/train.py", line 30, in setup
    dist.all_reduce(x)
torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:3690, unhandled cuda error
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 'out of memory'
"""
RAY = f"""\
Traceback (most recent call last):
  File "/root/driver.py", line 5, in <module>
    ray.get(step.remote())
ray.exceptions.RayTaskError(OutOfMemoryError): ray::step() (pid=123, ip=10.0.0.1)
  File "/root/train.py", line 120, in main
    loss.backward()
{ERROR}
"""


def prefixed(prefix: str, text: str) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


FORMS = {
    "plain": (PLAIN, MAIN),
    "logged": ("2024-11-20 14:37:16,123 ERROR step failed\n" + PLAIN, MAIN),
    "logged on one line": ("2024-11-20 14:37:16,123 ERROR root: " + PLAIN, MAIN),
    "rank": (prefixed("[rank3]: ", PLAIN), MAIN),
    "launcher and rank": (prefixed("[default3]:[rank3]: ", PLAIN), MAIN),
    "srun": (prefixed("12: ", PLAIN), MAIN),
    "every line with its time": (prefixed("2025-11-12T11:25:13.4961658Z ", PLAIN), MAIN),
    "every line with place": (prefixed("(Worker pid=123) ERROR 11-20 14:37:16 [core.py:396] ", PLAIN), MAIN),
    "time and rank": (prefixed("2024-11-20 14:37:16 [rank3]: ", PLAIN), MAIN),
    "coloured": (PLAIN.replace('File "', 'File \x1b[35m"').replace('", line', '"\x1b[0m, line'), MAIN),
    "Windows": (PLAIN.replace("\n", "\r\n"), MAIN),
    "a group": (prefixed("    | ", PLAIN), MAIN),
    "raised again": (CAUGHT + ERROR.replace("torch.OutOfMemoryError", "RuntimeError: step 3 failed") + "\n", MAIN),
    "raised again, ranks": (prefixed("[rank0]: ", CAUGHT + ERROR.replace("2.00", "2.10") + "\n"), MAIN),
    "while handling another": (KEY_ERROR, MAIN),
    "another while handling it": (CAUGHT + "ValueError: bad\n", MAIN),
    "said again without one": (PLAIN + "\n" * 3 + "step over\n" + ERROR + "\n", MAIN),
    "from a worker": (WORKER, Frame("/root/model.py", 44, "forward")),
    "torchrun's summary": ("  traceback : " + prefixed("  ", PLAIN)[2:], MAIN),
    "IPython 8": (IPYTHON_8, Frame("Cell In[7]", 3, "")),
    "IPython 8, a file": (IPYTHON_8_FILE, Frame("~/run/model.py", 20, "Net.forward")),
    "IPython 8.0": (IPYTHON_8.replace("Cell", "Input").replace("In[7], line 3", "In [7], in <cell line: 3>()"),
                    Frame("Input In [7]", 3, "<cell line: 3>")),
    "IPython 7": (IPYTHON_7, Frame("~/run/model.py", 19, "step")),
    "Colab": (COLAB, Frame("<ipython-input-11-f4c854f12377>", 1, "<cell line: 0>")),
    "rich": (RICH, Frame("/home/u/train.py", 77, "main")),
    "loguru": (PLAIN.replace('  File "/root/train.py", line 120', '> File "/root/train.py", line 120'), MAIN),
    "Ray": (RAY, MAIN),
    "NCCL": (NCCL, Frame("/root/train.py", 30, "setup")),
}  # fmt: skip
NONE = {
    "no traceback": ERROR,
    "only libraries": PLAIN.replace("/root/train.py", f"{TORCH}/train.py"),
    "one that ended before": PLAIN.replace(ERROR, "ValueError: bad") + "step 7\n" + ERROR,
    "one that ended just before": PLAIN.replace(ERROR, "ValueError: bad") + ERROR,
    "another rank's": prefixed("[rank0]: ", PLAIN.replace(ERROR + "\n", "")) + "[rank1]: " + ERROR,
    "the message as code": PLAIN.replace("loss = step(", f'raise RuntimeError("{ERROR}")').replace(
        ERROR + "\n", "x\n"
    ),
    "one line of JSON": '{"msg": "' + PLAIN.replace('"', '\\"').replace("\n", "\\n") + '"}\n' * 2,
    "faulthandler's": 'Current thread 0x1 (most recent call first):\n  File "train.py", line 3 in f\n'
    + ERROR,
    "Ray's, only libraries": RAY.replace("/root/train.py", f"{TORCH}/x.py"),
    "a broken box": RICH.replace(":77 in main", "x" * 30).replace("/home", "/home/abc"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_users_innermost_line_is_found(form: str) -> None:
    text, frame = FORMS[form]
    for before in ("", "step 1\n" * 30_000, "x" * 300_000 + "\n"):
        assert find_oom_messages((before + text).encode())[-1].frame == frame


@pytest.mark.parametrize("case", NONE)
def test_where_no_line_of_the_users_belongs_to_the_failure_none_is_named(case: str) -> None:
    assert [message.frame for message in find_oom_messages(NONE[case].encode())][-1] is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(2, 8))
def test_ranks_whose_lines_are_mixed_keep_their_own(seed: int, ranks: int) -> None:
    """The lines of each rank stay in order; a slow oracle is the text of each alone."""
    texts = [
        PLAIN.replace("line 120", f"line {rank + 1}").replace("2.00 GiB", f"{rank + 1}.00 GiB")
        for rank in range(ranks)
    ]
    lines = [
        prefixed(f"[rank{rank}]: ", text).splitlines(keepends=True)
        for rank, text in enumerate(texts)
    ]
    order = [rank for rank in range(ranks) for _ in lines[rank]]
    random.Random(seed).shuffle(order)
    mixed = "".join(lines[rank].pop(0) for rank in order)
    found = {message.rank: message.frame for message in find_oom_messages(mixed.encode())}
    assert found == {rank: Frame("/root/train.py", rank + 1, "main") for rank in range(ranks)}


def test_what_python_prints_is_read_as_it_is_meant(tmp_path: Path) -> None:
    """Real tracebacks, raised here: deep, recursive, chained in both ways."""
    program = tmp_path / "train.py"
    program.write_text(
        "def fail(depth):\n    if depth:\n        return fail(depth - 1)\n    raise MemoryError(TEXT)\n\n\n"
        "def chained(depth):\n    try:\n        fail(depth)\n    except MemoryError as error:\n"
        "        raise RuntimeError(f'again: {error}') from error\n"
    )
    names = {"TEXT": ERROR.partition(": ")[2]}
    exec(compile(program.read_text(), str(program), "exec"), names)
    for call in (names["fail"], names["chained"]):
        for depth in (0, 2, 30):
            try:
                call(depth)  # type: ignore[operator]
            except (MemoryError, RuntimeError):
                text = python_traceback.format_exc()
            assert find_oom_messages(text.encode())[-1].frame == Frame(str(program), 4, "fail"), (
                text
            )


PIECES = (
    "Traceback (most recent call last):\n", '  File "a.py", line 1, in f\n', "[rank1]: ", "Traceback (most recent call last)\n",
    "----> 3 x\n", "Cell In[7], line 3\n", "File a.py:1, in f(x)\n", "╭─ Traceback (most recent call last) ─╮\n", "│ /a.py:3 in f │\n",
    "~/a.py in f(x)\n", "[x](y) in f(", " in ", "[", "(", "\x1b[0m", "\n", ERROR, "\ud800".encode("utf-8", "replace").decode(),
    "During handling of the above exception\n", "│\n", "0: ", "pid=1 ",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_pieces_in_any_order_never_raise(pieces: list[str]) -> None:
    find_oom_messages("".join(pieces).encode())


@pytest.mark.parametrize(
    "piece", [piece.strip("\n") + end for piece in PIECES for end in ("", "\n") if piece.strip()]
)
def test_time_is_linear_on_texts_made_to_be_slow(piece: str) -> None:
    check_time_is_linear(
        lambda size: f"{PIECES[0]}{piece * (size // len(piece))}\n{ERROR}".encode(), 20_000
    )


def test_a_thousand_ranks_are_followed_and_more_are_bounded() -> None:
    began = time.process_time()
    heads = "".join(
        f"[rank{rank}]: {line}\n" for line in PLAIN.splitlines()[:4] for rank in range(6000)
    )
    found = find_oom_messages((heads + f"[rank5999]: {ERROR}\n[rank0]: {ERROR}\n").encode())
    assert [message.frame for message in found] == [Frame("/root/train.py", 131, "<module>"), None]
    assert time.process_time() - began < 10


_IN_A_LIBRARY = b"""Traceback (most recent call last):
  File "/home/u/train.py", line 14, in <module>
    trainer.train()
  File "/usr/lib/python3.12/site-packages/transformers/models/llama/modeling_llama.py", line 175, in forward
    down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
                ^^^^^^^^^^^^^^^
  File "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl
    return forward_call(*args, **kwargs)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.
"""


def test_the_librarys_line_with_its_text() -> None:
    (message,) = find_oom_messages(_IN_A_LIBRARY)
    assert str(message.frame) == "/home/u/train.py:14 in <module>"
    assert message.library_frame is not None
    assert (message.library_frame.line, message.library_frame.function) == (175, "forward")
    assert message.library_source == (
        "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"
    )
    oom = explain_text(message, "job.log").oom
    assert oom is not None
    assert oom.library is not None
    told = markdown(explain_text(message, "job.log"))
    assert "modeling_llama.py:175" in told
    assert "self.gate_proj" in told


def test_a_line_of_the_users_below_a_librarys_leaves_it_out() -> None:
    inside = b'  File "/home/u/model.py", line 9, in forward\n    return x @ w\n'
    log = _IN_A_LIBRARY.replace(b"torch.OutOfMemoryError", inside + b"torch.OutOfMemoryError")
    (message,) = find_oom_messages(log)
    assert str(message.frame) == "/home/u/model.py:9 in forward"
    assert (message.library_frame, message.library_source) == (None, "")
