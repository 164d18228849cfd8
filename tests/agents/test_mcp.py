"""The MCP server with a scripted client: from its answers alone ten planted bugs can be told."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from vramlens.agents import tool_server
from vramlens.capture.process.process_state import state_of

DATA = Path(__file__).parents[1] / "data"
TOOLS = {"explain", "leaks", "tune", "diff", "ranks", "who_holds", "predict"}

# Of each bug: the question, and what its answer must name: the line (with its code, where the
# program lies in tests/data) and the fix.
BUGS = {
    "a batch too large": (
        "explain",
        {"path": "captured/oom_forward.vram"},
        ["programs.py:23 in forward", "the batch", "0.09"],
    ),
    "holes": (
        "explain",
        {"path": "recordings/oom_fragmented.pickle.xz"},
        ["workloads.py:256 in oom_fragmented", "long-lived tensors before"],
    ),
    "a list that keeps outputs, until it fails": (
        "explain",
        {"path": "recordings/oom_leak.pickle.xz"},
        ["workloads.py:268 in oom_leak", "a list, an attribute", "`.detach()` or `.item()`"],
    ),
    "validation with a graph": (
        "explain",
        {"path": "found/eval_graph.pickle.xz"},
        [
            "programs.py:324 in forward: Evaluation builds an autograd graph",
            ">   324 |         x = self.tok(ids) + self.pos(",
            "torch.no_grad()",
        ],
    ),
    "weights loaded twice": (
        "explain",
        {"path": "found/double_load.pickle.xz"},
        [
            "programs.py:448 in double_load: Loading put a second copy",
            '>   448 |     state = torch.load(path, map_location="cpu" if run.variant else "cuda")',
            "map_location='cpu'",
        ],
    ),
    "cuDNN's benchmark": (
        "explain",
        {"path": "found/conv_workspace.pickle.xz"},
        [
            "programs.py:558 in conv_steps",
            ">   558 |         F.cross_entropy(model(x), y).backward()",
            "torch.backends.cudnn.benchmark = False",
        ],
    ),
    "outputs that are kept": (
        "leaks",
        {"path": "recordings/leak_outputs.pickle.xz"},
        ["workloads.py:146 in leak_outputs: leaves 33.10 MiB per step", "`.detach()` or `.item()`"],
    ),
    "a hook that stores": (
        "leaks",
        {"path": "recordings/leak_hook.pickle.xz", "total": "80GiB"},
        ["workloads.py:39 in forward: leaves 2.00 MiB per step", "hook keeps it, clear or"],
    ),
    "one rank that leaks": (
        "ranks",
        {"paths": ["ranks/leak_rank1"]},
        ["Rank 1 leaks", "multi.py:46 in after", "`.detach()` or `.item()`"],
    ),
    "a tensor that a profiler trace shows": (
        "explain",
        {"path": "profiler/train.json.gz", "sources": "profiler"},
        [
            "train.py:38 in keep: aten::mul leaves 64.00 KiB allocated in each of 3 steps",
            ">    38 | def keep(loss, inputs):",
            "loss.item()",
        ],
    ),
}


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/vramlens-must-not-exist",)


async def conversation(calls):
    """The server's tools, and its answers: (whether it refused, text)."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "vramlens", "mcp"],
        cwd=DATA,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        answers = []
        for tool, arguments in calls:
            answer = await session.call_tool(tool, arguments)
            refused = getattr(answer, "is_error", getattr(answer, "isError", None))
            answers.append((refused, answer.content[0].text))
        return tools, answers


@pytest.fixture(scope="module")
def talked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "evil.pickle").write_bytes(pickle.dumps(Hostile()))
    (folder / "cut.vram").write_bytes((DATA / "captured/oom_forward.vram").read_bytes()[:5000])
    hostile = [
        ("explain", {"path": str(folder / "evil.pickle")}),
        ("leaks", {"path": str(folder / "cut.vram")}),
        ("tune", {"path": str(folder / "no such file")}),
        ("diff", {"before": str(folder), "after": "-"}),
        ("who_holds", {"path": "recordings/gpt.pickle.xz", "name": "\x1b[2J no such tensor"}),
        ("predict", {"script": str(folder / "no.py")}),
    ]
    others = [
        (
            "diff",
            {"before": "found/eval_graph.pickle.xz", "after": "found/eval_graph_fixed.pickle.xz"},
        ),
        ("who_holds", {"path": "captured/gpt.vram", "sources": ".."}),
        ("tune", {"path": "recordings/gpt.pickle.xz", "cap": "2GiB"}),
    ]
    calls = [call[:2] for call in BUGS.values()] + others + hostile
    tools, answers = asyncio.run(conversation(calls))
    bugs = dict(zip(BUGS, answers, strict=False))
    return tools, bugs, answers[len(BUGS) : -len(hostile)], answers[-len(hostile) :]


def test_the_tools_say_what_they_take(talked):
    tools = talked[0]
    assert set(tools) == TOOLS
    for tool in tools.values():
        schema = getattr(tool, "input_schema", None) or tool.inputSchema
        assert tool.description
        assert schema["type"] == "object"


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_told_by_line_and_fix(talked, bug):
    refused, text = talked[1][bug]
    assert not refused
    for words in BUGS[bug][2]:
        assert words in text
    assert len(text) < 7000


def test_the_other_questions_are_answered(talked):
    (_, diff), (_, holders), (_, tuned) = talked[2]
    assert diff.startswith("Gone: Evaluation builds an autograd graph that is never used: ")
    assert "the allocated peak is 233.55 MiB lower" in " ".join(diff.split())
    assert "requested at" in holders
    assert "tune" in tuned or "Next" in tuned


def test_what_cannot_be_used_is_one_clear_line(talked):
    lines = [text for refused, text in talked[3] if refused]
    assert len(lines) == len(talked[3])
    for line in lines:
        assert len(line.splitlines()) == 1
        assert "Traceback" not in line
        assert "\x1b" not in line
    assert "evil.pickle" in lines[0]
    assert "no such file or directory" in lines[2]
    assert not Path("/tmp/vramlens-must-not-exist").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="groups of processes, and /proc")
def test_nothing_that_an_answer_has_started_outlives_it(tmp_path):
    started = tmp_path / "pid"
    program = (
        "import subprocess, sys, pathlib\n"
        "sleeper = subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(sleeper.pid)); sys.exit('refused')"
    )
    with pytest.raises(Exception, match="refused"):
        asyncio.run(tool_server._output_of(["-c", program, str(started)]))
    deadline = time.monotonic() + 300
    while state_of(int(started.read_text())) not in ("", "X", "Z") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.monotonic() < deadline
