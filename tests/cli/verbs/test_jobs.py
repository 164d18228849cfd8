"""``check`` and ``diff`` of folders: the worst rank by limit, ranks against ranks."""

from __future__ import annotations

import json
import pickle
import shutil

import pytest

import vramlens
from support.copies import snapshot_of
from support.recordings import DATA
from vramlens.analyses.compare.job_change import JobChange, RankChange, RankState, job_headline
from vramlens.cli.main import main
from vramlens.units import GIB

DDP = DATA / "ranks" / "ddp"
LEAK = DATA / "ranks" / "leak_rank1"
FAILS = DATA / "ranks" / "oom_one"
BUDGET = '[budget]\npeak_requested = "900 MiB"\ngrowth_per_step = "1 MiB"\n'


@pytest.fixture
def budget(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vram.toml").write_text(BUDGET)
    return tmp_path / "vram.toml"


def data(capsys, *arguments, code=0):
    assert main([*map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_each_limit_is_decided_by_the_rank_that_keeps_it_least(capsys, budget):
    answer = data(capsys, "check", LEAK, code=1)
    assert answer["ranks"] == [0, 1]
    peak, growth = answer["results"]
    assert (peak["rank"], peak["passed"]) == (1, True)
    assert (growth["rank"], growth["passed"]) == (1, False)
    (finding,) = answer["findings"]
    assert finding["title"].endswith("(rank 1 only, of 2)")
    assert finding["line"] == 46
    main(["check", str(LEAK)])
    out = capsys.readouterr().out
    assert "over on rank 1 (vram.toml:3)" in out
    assert out.splitlines()[-1].strip().endswith("leak_rank1.rank1.pickle.xz")


def test_a_job_that_keeps_its_budget_says_so_of_all_ranks(capsys, budget):
    budget.write_text('[budget]\npeak_requested = "4 GiB"\n')
    assert main(["check", str(DDP)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Within budget: the only limit is met on all 2 ranks;")


def test_a_rank_without_a_recording_does_not_pass(capsys, budget, tmp_path):
    job = tmp_path / "job"
    shutil.copytree(DDP, job)
    (job / "ddp.rank0.pickle.xz").unlink()
    budget.write_text('[budget]\npeak_requested = "4 GiB"\n')
    answer = data(capsys, "check", job, code=1)
    assert [result["scope"] for result in answer["results"]] == ["peak_requested", "ranks"]
    assert answer["results"][1]["why"] == "rank 0 left no recording"
    assert answer["findings"][-1]["id"] == "cannot_tell"
    assert main(["check", str(job), "--update"]) == 3


def copied(source, target):
    shutil.copytree(source, target)
    return target


def test_a_folder_of_two_jobs_is_refused_whatever_is_newer(capsys, budget, tmp_path):
    both = tmp_path / "jj"
    copied(DDP, both / "small")
    copied(LEAK, both / "large")
    budget.write_text('[budget]\npeak_requested = "4 GiB"\n')
    for arguments in (["check", both], ["check", both, "--update"],
                      ["check", DDP, "--baseline", both]):  # fmt: skip
        assert main([*map(str, arguments)]) == 3
        error = capsys.readouterr().err
        assert f"{both}: 2 jobs (" in error
        assert "choose the folder of one job" in error


def test_a_recording_that_is_left_out_is_told(capsys, budget, tmp_path):
    job = tmp_path / "job"
    job.mkdir()
    for path in [*DDP.glob("*rank?.pickle.xz"), *LEAK.glob("*rank?.pickle.xz")]:
        shutil.copy(path, job / path.name)
    budget.write_text('[budget]\npeak_requested = "4 GiB"\n')
    (note,) = data(capsys, "check", job)["notes"]
    assert note.startswith("2 ranks with more than one recording")
    assert data(capsys, "check", DDP, "--baseline", job)["notes"] == [f"baseline: {note}"]
    for arguments in ([], ["--format", "markdown"], ["--format", "github"], ["--update"]):
        assert main(["check", str(job), *arguments]) == 0
        assert "2 left out" in " ".join(capsys.readouterr().out.split())


def test_an_update_takes_the_highest_rank(capsys, budget):
    budget.unlink()
    assert main(["check", str(LEAK), "--update"]) == 0
    assert "peak_requested: 806.85 MiB" in capsys.readouterr().out
    answer = data(capsys, "check", LEAK)
    assert answer["passed"]


def test_a_failure_that_only_some_ranks_have_is_its_own_limit(capsys, budget):
    answer = data(capsys, "check", FAILS, code=1)
    failed = next(result for result in answer["results"] if result["scope"] == "out_of_memory")
    assert (failed["rank"], failed["passed"]) == (1, False)


def test_ranks_are_compared_with_ranks(capsys):
    answer = data(capsys, "diff", DDP, LEAK, "--fail", code=1)
    job = answer["job"]
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
    assert job["rank"] == 1
    assert [finding["id"] for finding in job["came"]] == ["leak"]
    assert answer["worse"] == ["every step leaves 66.21 MiB more behind on rank 1"]
    assert answer["before"]["source"].endswith("ddp.rank1.pickle.xz")
    back = data(capsys, "diff", LEAK, DDP)["job"]
    assert [finding["id"] for finding in back["went"]] == ["leak"]
    main(["diff", str(DDP), str(LEAK)])
    out = capsys.readouterr().out
    assert out.startswith("Rank 1 leaves 66.21 MiB more behind with every step than before")
    order = [out.index(words) for words in ("New among the ranks", "Rank 1, line by line")]
    assert order == sorted(order)
    for form in ("--markdown", "--html"):
        assert main(["diff", str(DDP), str(LEAK), form]) == 0
        assert "line by line" in capsys.readouterr().out


def test_one_job_beside_itself_is_no_change(capsys):
    answer = data(capsys, "diff", LEAK, LEAK, "--fail")
    assert answer["worse"] == answer["job"]["came"] == answer["job"]["went"] == []


def test_a_rank_that_left_nothing_now_is_worse_and_told_first(capsys, tmp_path):
    job = copied(DDP, tmp_path / "job")
    for path in job.glob("*rank1*"):
        path.unlink()
    answer = data(capsys, "diff", DDP, job, "--fail", code=1)
    assert answer["worse"] == ["rank 1 left no recording now"]
    assert main(["diff", str(DDP), str(job)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Rank 1 left no recording now (2 ranks before, 1 now).")
    assert main(["diff", str(job), str(DDP), "--fail"]) == 0


def test_headlines_of_jobs_put_what_ended_badly_first():
    def change(rank, before, after):
        states = [size and RankState(size, 0, failed=size > GIB) for size in (before, after)]
        return RankChange(rank, *states)

    def job(*changes, lost=()):
        return JobChange("a", "b", changes, 0, came=(), went=(), lost=lost)

    small, large = GIB // 2, 2 * GIB
    both = job(change(0, small, large), change(1, small, None), lost=(1,))
    assert job_headline(both) == (
        "Rank 1 left no recording now, and rank 0 runs out of memory now (2 ranks before, 1 now)."
    )
    smaller = job(change(0, small, small), change(1, small, None))
    assert list(smaller.worse(lambda size: 0)) == []
    assert job_headline(smaller).endswith("(different workloads: 2 ranks before, 1 now).")
    mended = job(change(0, large, small), change(1, large, small))
    assert job_headline(mended) == "2 ranks (0, 1) run out of memory no longer (2 ranks)."


def folder_of_two_gpus(folder, first, second):
    """One recording of a process that used two GPUs."""
    traces, segments = [], []
    for device, name in enumerate((first, second)):
        snapshot = snapshot_of(f"recordings/{name}")
        traces += snapshot["device_traces"]
        segments += [{**segment, "device": device} for segment in snapshot["segments"]]
    folder.mkdir()
    both = {**snapshot, "device_traces": traces, "segments": segments}
    (folder / "run.pickle").write_bytes(pickle.dumps(both))
    return folder


def test_devices_of_one_process_are_no_ranks(capsys, tmp_path):
    before = folder_of_two_gpus(tmp_path / "before", "leak_outputs", "leak_none_warmup")
    after = folder_of_two_gpus(tmp_path / "after", "leak_outputs", "leak_outputs")
    assert main(["diff", str(before), str(after)]) == 2
    error = capsys.readouterr().err
    assert f"{before}: contains one recording of devices 0, 1: choose one with --device" in error
    for device in ("0", "1"):
        answer = data(capsys, "diff", before, after, "--device", device)
        (rank,) = answer["job"]["ranks"]
        assert answer["before"]["device"] == answer["after"]["device"] == int(device)
        change = rank["after"]["requested_bytes"] - rank["before"]["requested_bytes"]
        assert change == answer["peak_bytes_change"]
        assert (change == 0) == (device == "0")


def test_a_device_that_no_rank_has_is_refused(capsys):
    assert main(["diff", str(DDP), str(LEAK), "--device", "7"]) == 3
    assert "has no device 7" in capsys.readouterr().err


def test_a_folder_and_a_file_are_not_compared(capsys):
    assert main(["diff", str(DDP), str(LEAK / "leak_rank1.rank0.pickle.xz")]) == 2
    assert "two folders" in capsys.readouterr().err


def test_functions_take_folders_too(budget):
    assert not vramlens.check(LEAK, budget).passed
    assert vramlens.diff(DDP, LEAK).job.rank == 1
    assert "line by line" in str(vramlens.diff(DDP, LEAK))
