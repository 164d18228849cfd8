"""What a profiler trace says: against slow twins, the profiler's own sums, and traces whose
answer is known.
"""

import gzip
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.kineto import KIB, MIB, Kineto, read, read_gz, training
from support.profile_oracle import alive_at_peak, busy_ns
from vramlens.analyses.finding import Place
from vramlens.analyses.profile.explained_profile import explain_profile
from vramlens.errors import InputError, UsageError

DATA = Path(__file__).parents[2] / "data" / "profiler"


@pytest.fixture(scope="module")
def real():
    return explain_profile(read_gz(DATA / "train.json.gz"))


@pytest.fixture(scope="module")
def made():
    return explain_profile(training().read())


def ids(profile):
    return [finding.id for finding in profile.findings]


# The real trace, against what torch.profiler itself sums up.


def test_operators_agree_with_key_averages(real):
    averages = json.loads((DATA / "averages.json").read_text())
    rows = {row.name: row for row in real.operators if row.kind == "operator"}
    assert len(averages) > 40
    for name, row in averages.items():
        mine = rows[name]
        assert mine.calls == row["calls"], name
        assert mine.self_cpu_ns / 1000 == pytest.approx(
            row["self_cpu_us"], abs=0.01 * row["calls"]
        ), name
        assert mine.total_cpu_ns / 1000 == pytest.approx(
            row["total_cpu_us"], abs=0.01 * row["calls"]
        ), name
        assert mine.self_memory_bytes == row["self_memory_bytes"], name


def test_the_leak_of_the_real_trace_is_found_with_its_line(real):
    assert ids(real) == ["profile_kept"]
    (finding,) = real.findings
    assert finding.verdict == "likely"
    assert finding.bytes == 3 * 64 * KIB
    assert finding.place == Place("train.py", 38, "keep")
    source = (DATA / "train.py").read_text().splitlines()
    assert source[finding.place.line - 1].startswith("def keep(")


def test_the_memory_of_the_real_trace(real):
    memory = real.memory
    text = gzip.decompress((DATA / "train.json.gz").read_bytes()).decode()
    peak, alive = alive_at_peak(text, (0, -1))
    assert memory.allocated_bytes == peak
    assert sum(holder.bytes for holder in memory.at_peak) == sum(alive.values())
    assert sum(holder.allocations for holder in memory.at_peak) == len(alive)
    assert sum(memory.by_group.values()) == peak
    assert memory.grouped_by == "category"
    assert memory.peak_step == 3
    assert memory.by_group["gradients"] == 4 * (
        256 * 512 + 512 + 512 * 16 + 16
    )  # one for each parameter
    assert not memory.exact  # PyTorch counts the CPU's memory only while it profiles
    assert memory.reserved_bytes is None


# A made run on a GPU.


def test_overview(made):
    use = made.use
    assert made.wall_ns == 3_000_000
    assert use.busy_ns == busy_ns(training().text(), 0) == 3 * 260_000
    assert use.busy_ns + use.idle_ns == made.wall_ns
    assert [step.number for step in made.steps] == [0, 1, 2]
    assert made.gpus == ("NVIDIA H200",)


def test_gaps_and_what_the_cpu_did(made):
    longest = made.use.longest[0]
    assert longest.where == "between"
    assert longest.ns == 565_000
    assert [row.name for row in longest.cpu[:2]] == [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Optimizer.step#SGD.step",
    ]
    assert longest.cpu[0].ns == 298_000
    assert longest.place == Place("train.py", 20, "train_step")
    assert {gap.where for gap in made.use.longest} == {"before", "between", "after"}
    assert sum(row.ns for row in longest.cpu) == longest.ns


def test_kernels_are_joined_to_what_launched_them(made):
    rows = {row.name: row for row in made.operators}
    assert rows["aten::addmm"].self_device_ns == 300_000
    assert rows["aten::linear"].self_device_ns == 0
    assert rows["aten::linear"].total_device_ns == 300_000
    assert rows["aten::clone"].total_device_ns == 60_000
    assert rows["Optimizer.step#SGD.step"].total_device_ns == 120_000
    assert rows["ProfilerStep*"].calls == 3
    assert [(row.name, row.calls, row.total_ns) for row in made.kernels] == [
        ("sgemm", 3, 300_000),
        ("sgemm_bwd", 3, 300_000),
        ("add", 3, 120_000),
        ("copy", 3, 60_000),
    ]


def test_memory_of_operators(made):
    rows = {row.name: row for row in made.operators}
    assert rows["aten::empty"].self_allocated_bytes == 12 * MIB
    assert rows["aten::mm"].self_memory_bytes == 6 * MIB
    assert (
        rows["autograd::engine::evaluate_function: AddmmBackward0"].self_memory_bytes == -12 * MIB
    )


def test_the_peak_and_who_held_it(made):
    memory = made.memory
    peak, alive = alive_at_peak(training().text(), (1, 0))
    assert memory.device == "cuda:0"
    assert memory.exact
    assert memory.allocated_bytes == peak == 22 * MIB
    assert memory.reserved_bytes == 64 * MIB
    assert memory.peak_step == 2
    assert memory.before_bytes == 10 * MIB == peak - sum(alive.values())
    assert memory.by_group == {
        "before_trace": 10 * MIB,
        "activations": 4 * MIB,
        "optimizer_state": 3 * MIB,
        "other": 3 * MIB,
        "gradients": 2 * MIB,
    }
    top = memory.at_peak[0]
    # Not aten::empty, which only gets memory for the operator around it.
    assert (top.operator, top.bytes, top.category) == ("aten::addmm", 4 * MIB, "activations")
    assert top.place == Place("model.py", 7, "forward")
    gradient = next(holder for holder in memory.at_peak if holder.category == "gradients")
    assert gradient.inferred
    assert gradient.place == Place("model.py", 7, "forward")


def test_the_timeline(made):
    timeline = made.memory.timeline
    assert max(moment.bytes for moment in timeline) == made.memory.allocated_bytes
    assert all(sum(moment.groups.values()) == moment.bytes for moment in timeline)
    assert [moment.time_ns for moment in timeline] == sorted(moment.time_ns for moment in timeline)
    assert made.memory.step_peaks == (17 * MIB, 21 * MIB, 22 * MIB)


def test_what_is_not_given_back(made):
    kept = {holder.operator: holder for holder in made.memory.kept}
    assert (
        kept["aten::clone"].bytes,
        kept["aten::clone"].allocations,
        kept["aten::clone"].steps,
    ) == (3 * MIB, 3, 3)
    assert kept["aten::clone"].place == Place("model.py", 7, "forward")
    assert kept["aten::add_"].category == "optimizer_state"
    assert set(kept) == {"aten::clone", "aten::add_"}


def test_findings(made):
    assert ids(made) == ["profile_kept", "gpu_idle"]
    kept, idle = made.findings
    assert (kept.bytes, kept.verdict) == (3 * MIB, "likely")
    assert "next batch" in idle.title
    assert "num_workers" in idle.fix


# Rules one by one.


def test_an_external_id_that_is_the_correlation_joins_nothing():
    """PyTorch 1.13 to 2.1 wrote the launch's correlation as External id, which is some other
    operator's number.
    """
    trace = Kineto()
    trace.op("aten::wrong", 0, 10)  # its External id is 1
    trace.op("aten::right", 20, 10)
    trace.launch(22, 3, "k", 40, 10, external=1)
    for event in trace.events:
        if event["cat"] == "kernel":
            event["args"]["correlation"] = 1
    rows = {row.name: row for row in explain_profile(trace.read()).operators}
    assert rows["aten::right"].self_device_ns == 10_000
    assert rows["aten::wrong"].self_device_ns == 0


def test_without_the_launch_the_external_id_joins():
    trace = Kineto()
    trace.op("aten::right", 0, 10)
    trace.op("aten::other", 20, 10)
    trace.launch(2, 3, "k", 40, 10, external=1)
    trace.events = [event for event in trace.events if event["cat"] != "cuda_runtime"]
    trace.events[-1]["args"]["correlation"] = 77
    rows = {row.name: row for row in explain_profile(trace.read()).operators}
    assert rows["aten::right"].self_device_ns == 10_000


def test_all_kernels_of_a_graph_belong_to_its_launch():
    trace = Kineto()
    trace.region("replay", 0, 10)
    _, kernel = trace.launch(2, 3, "first", 20, 10)
    trace.add(kernel | {"name": "second", "ts": kernel["ts"] + 10})
    rows = {row.name: row for row in explain_profile(trace.read()).operators}
    assert rows["replay"].total_device_ns == 20_000


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 1)),
        min_size=1,
        max_size=25,
    )
)
def test_busy_time_is_the_union(kernels):
    trace = Kineto()
    trace.op("aten::add", 0, 100)
    for start, duration, stream in kernels:
        trace.launch(1, 1, "k", start, duration, stream=7 + stream)
    profile = explain_profile(trace.read())
    assert profile.use.busy_ns == busy_ns(trace.text(), 0)
    assert profile.use.busy_ns + profile.use.idle_ns == profile.wall_ns
    assert profile.use.gaps <= len(kernels) + 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=40))
def test_who_is_alive_at_the_peak(requests):
    """Each request takes an address: frees what is there, or asks for some."""
    trace, held, there = Kineto(), 100, {}
    trace.op("aten::add", 0, 1000)
    for at, (address, size) in enumerate(requests):
        size = -there.pop(address) if address in there else size * 512
        if size > 0:
            there[address] = size
        held += size
        trace.memory(at + 1, size, 0x7F00_0000_0000 + address * MIB, allocated=held)
    memory = explain_profile(trace.read()).memory
    peak, alive = alive_at_peak(trace.text(), (1, 0))
    assert memory.allocated_bytes == peak
    assert sum(holder.bytes for holder in memory.at_peak) == sum(alive.values())
    assert memory.before_bytes == peak - sum(alive.values()) == 100
    assert sum(holder.bytes for holder in memory.kept) == sum(there.values())
    assert sum(memory.by_group.values()) == peak


def test_an_address_used_again_was_given_back():
    trace = Kineto()
    trace.op("aten::add", 0, 100)
    trace.memory(1, 512, 0x1000, allocated=512)
    trace.memory(2, 1024, 0x1000, allocated=1024)
    memory = explain_profile(trace.read()).memory
    assert [holder.bytes for holder in memory.kept] == [1024]


def test_without_phases_memory_is_by_operator():
    trace = Kineto()
    trace.op("aten::mul", 0, 10)
    trace.memory(5, 512, 0x1000, allocated=512)
    trace.op("aten::add", 20, 10)
    trace.memory(25, 1024, 0x2000, allocated=1536)
    memory = explain_profile(trace.read()).memory
    assert memory.grouped_by == "operator"
    assert memory.by_group == {"aten::add": 1024, "aten::mul": 512}


def test_old_memory_events_give_a_lower_bound_and_no_holders():
    trace = Kineto()
    trace.op("aten::mul", 0, 100)
    for at, size in enumerate((512, -2048, 1024)):
        event = trace.memory(at + 1, size, 0)
        del event["args"]["Addr"]
    memory = explain_profile(trace.read()).memory
    assert (memory.allocated_bytes, memory.exact, memory.paired) == (
        2048,
        False,
        False,
    )  # 1,536 were there before
    assert memory.at_peak == memory.kept == ()


def test_what_the_engine_gives_back_between_two_nodes_is_no_gradient():
    trace = Kineto()
    for start in (0, 100):
        node = "autograd::engine::evaluate_function: MulBackward0"
        trace.op(node, start, 50, sequence=1, backward=True)
        trace.op("aten::mul", start + 5, 40)
    trace.op("aten::add", 300, 10)
    trace.memory(6, 512, 0x1000, allocated=512)  # gone between the nodes
    trace.memory(70, -512, 0x1000, allocated=0)
    trace.memory(106, 1024, 0x2000, allocated=1024)  # gone after the backward
    trace.memory(320, -1024, 0x2000, allocated=0)
    moments = explain_profile(trace.read()).memory.timeline
    groups = [{name for name, size in moment.groups.items() if size} for moment in moments]
    assert {"temporaries"} in groups
    assert {"gradients"} in groups


def test_a_failed_request_comes_first():
    trace = training()
    event = trace.memory(2990, 80 * MIB * 1024, 0, allocated=22 * MIB, reserved=64 * MIB)
    event["name"] = "[OutOfMemory]"
    profile = explain_profile(trace.read())
    assert ids(profile)[0] == "profile_out_of_memory"
    assert profile.findings[0].bytes == 80 * 1024 * MIB
    assert profile.findings[0].verdict == "proven"
    assert profile.memory.allocated_bytes == 22 * MIB  # what failed was never held


def test_far_more_reserved_than_allocated():
    trace = Kineto()
    trace.op("aten::mul", 0, 100)
    trace.memory(5, 512 * MIB, 0x1000, allocated=512 * MIB, reserved=2048 * MIB)
    (finding,) = explain_profile(trace.read()).findings
    assert (finding.id, finding.bytes) == ("profile_reserved", 1536 * MIB)


@pytest.mark.parametrize(
    ("name", "words"),
    [("cudaStreamSynchronize", "waits"), ("cudaMalloc", "driver"), ("aten::something", None)],
)
def test_why_a_gpu_waits(name, words):
    trace = Kineto()
    for step in range(5):
        trace.op("aten::mul", 1000 * step, 10)
        trace.launch(1000 * step + 2, 3, "k", 1000 * step + 20, 100)
        if name.startswith("cuda"):
            trace.span(
                "cuda_runtime",
                name,
                1000 * step + 30,
                900,
                args={"cbid": 1, "correlation": 10_000 + step},
            )
        else:
            trace.op(name, 1000 * step + 30, 900)
    (finding,) = explain_profile(trace.read()).findings
    assert finding.id == "gpu_idle"
    assert (words in finding.title) if words else finding.verdict == "possible"


def test_a_gpu_that_is_busy_is_no_finding():
    trace = Kineto()
    trace.op("aten::mul", 0, 10)
    trace.launch(1, 3, "k", 5, 1000)
    assert explain_profile(trace.read()).findings == ()


def test_devices_apart_and_the_one_asked_for():
    trace = Kineto()
    trace.op("aten::mul", 0, 100)
    for device, size in ((0, 512), (1, 4096)):
        trace.launch(1 + device, 1, f"k{device}", 10, 20 * (2 - device), device=device)
        trace.memory(5 + device, size, 0x1000, allocated=size, device=device)
    trace.memory(50, 1 << 30, 0x5000, allocated=1 << 30, device=-1, type=0)
    profile = explain_profile(trace.read())
    assert [use.device for use in profile.devices] == [0, 1]
    assert profile.device == 0  # the busiest
    assert [memory.device for memory in profile.memories] == [
        "cuda:1",
        "cuda:0",
        "cpu",
    ]  # the fullest, the CPU last
    asked = explain_profile(trace.read(), 1)
    assert asked.device == 1
    assert asked.memory.device == "cuda:1"
    assert [row.name for row in asked.kernels] == ["k1"]
    assert explain_profile(trace.read(), 0).memory.device == "cuda:0"
    with pytest.raises(UsageError, match="has no device 5; its GPUs: 0, 1"):
        explain_profile(trace.read(), 5)


def test_a_step_that_began_before_the_profiler_does_not_lengthen_the_trace():
    trace = Kineto()
    trace.span("Trace", "PyTorch Profiler (0)", 1000, 200, tid="PyTorch Profiler", pid="Spans")
    trace.region("ProfilerStep#1", 0, 1100)
    trace.op("aten::mul", 1010, 90)
    assert explain_profile(trace.read()).wall_ns == 100_000


def test_nothing_that_took_time():
    trace = Kineto()
    trace.op("aten::mul", 0, 0)
    with pytest.raises(InputError, match="took any time"):
        explain_profile(trace.read())


def test_a_name_of_digits_that_are_too_many_is_no_step():
    trace = Kineto()
    trace.region("ProfilerStep#" + "9" * 5000, 0, 10)
    trace.region("ProfilerStep#", 10, 10)
    trace.region("ProfilerStep#²", 20, 10)
    assert explain_profile(trace.read()).steps == ()


@pytest.mark.slow
def test_twenty_thousand_threads_and_steps_take_no_longer_than_one():
    trace = Kineto()
    for number in range(20_000):
        trace.launch(number, 1, "k", number + 2, 1, tid=number)
        trace.region(f"ProfilerStep#{number}", 0.5, 20_000, tid=number)
        trace.memory(number, 512, 4096 * number, allocated=512 * number, tid=number)
    trace = trace.read()
    begun = time.process_time()
    explain_profile(trace)
    assert time.process_time() - begun < 10


def test_every_truncated_trace_is_explained():
    text = training().text()
    for length in range(len(text) // 4, len(text), 1501):
        assert explain_profile(read(text[:length])).missing
