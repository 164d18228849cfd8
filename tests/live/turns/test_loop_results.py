"""What a loop gathers for a use after it, by the source alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from vramlens.leak.leak import LeakOwner
from vramlens.live.source.whole_reads import combines_all
from vramlens.live.turns.loop_results import result_use

RECORDER = """\
class Recorder:
    def add(self, row):
        self.rows.append(row)

    def matrix(self):
        return cat(self.rows)
"""
GATHERED_AND_USED = """
def main():
    recorder = Recorder()
    for row in data:
        recorder.add(row)
    study(recorder.matrix())
main()
"""
USED_IN_EACH_TURN = """
def main():
    recorder = Recorder()
    for row in data:
        recorder.add(row)
        print(recorder.matrix().mean())
    study(recorder.matrix())
main()
"""
FILLED_BEFORE_AND_IN_EACH_TURN = """
def main():
    recorder = Recorder()
    recorder.add(first)
    for row in data:
        study(recorder.matrix())
        recorder.add(row)
main()
"""
USED_IN_EACH_EPOCH = """
def evaluate(recorder):
    for row in data:
        recorder.add(row)
    return recorder.matrix()

def main():
    recorder = Recorder()
    for epoch in range(10):
        evaluate(recorder)
main()
"""
AT_MODULE_LEVEL = """
recorder = Recorder()
for row in data:
    recorder.add(row)
study(recorder.matrix())
"""
USED_BEFORE = """
recorder = Recorder()
study(recorder.matrix())
for row in data:
    recorder.add(row)
"""
NEVER_CALLED = """
recorder = Recorder()
for row in data:
    recorder.add(row)
"""
BY_COLUMN = """
def main():
    recorder = Recorder()
    for row in data:
        recorder.add(row)
    for column in columns:
        study(recorder.matrix()[column])
main()
"""
BY_A_METHOD = """
class Survey:
    def run(self):
        for row in data:
            self.recorder.add(row)

    def report(self):
        return self.recorder.matrix()

survey = Survey()
survey.run()
print(survey.report())
"""


def _use_in(path: Path, program: str) -> str:
    path.write_text(program)
    return result_use(LeakOwner("Recorder.rows", "list", str(path), 3, "add"))


@pytest.mark.parametrize(
    ("program", "is_result"),
    [
        (GATHERED_AND_USED, True),
        (USED_IN_EACH_TURN, False),
        (FILLED_BEFORE_AND_IN_EACH_TURN, False),
        (USED_IN_EACH_EPOCH, False),
        (AT_MODULE_LEVEL, True),
        (USED_BEFORE, False),
        (NEVER_CALLED, False),
        (BY_COLUMN, True),
        (BY_A_METHOD, True),
    ],
    ids=[
        "after the loop",
        "in each turn",
        "in each turn of a loop before which it began",
        "in each epoch",
        "at module level",
        "before the loop",
        "never called",
        "in a loop of its own",
        "a method that another ran before",
    ],
)
def test_what_a_method_uses_once_after_the_loop_is_its_result(
    tmp_path: Path, program: str, is_result: bool
) -> None:
    use = _use_in(tmp_path / "train.py", RECORDER + program)
    assert use == ("line 6 uses all of Recorder.rows after the loop" if is_result else "")


def test_who_waits_for_all_of_it_takes_no_results(tmp_path: Path) -> None:
    waits = RECORDER.replace("cat(self.rows)", "futures.wait(self.rows, timeout=5)")
    assert not _use_in(tmp_path / "train.py", waits + AT_MODULE_LEVEL)


@pytest.mark.parametrize(
    ("text", "is_combined"),
    [
        ("torch.cat(self.rows)", True),
        ("zip(*self.rows[task])", True),
        ("np.stack(self.rows[task], 1)", True),
        ("torch.cat(self.rows[0])", False),
        ("torch.cat(self.rows[-5:])", False),
        ("sum(self.rows)", False),
        ("plot(self.rows)", False),
        ("zip(self.rows, self.others)", False),
    ],
)
def test_what_makes_one_of_all(text: str, is_combined: bool) -> None:
    call = ast.parse(text, mode="eval").body
    assert combines_all(call, "rows", ast.Attribute) == is_combined


@pytest.mark.parametrize(
    ("after", "is_result"),
    [("return cat(self.rows)", True), ("return cat(self.rows[-8:])", False)],
)
def test_what_the_function_that_gathers_uses_after_its_loop_is_its_result(
    tmp_path: Path, after: str, is_result: bool
) -> None:
    use = _use_in(
        tmp_path / "train.py",
        f"""\
class Recorder:
    def run(self):
        for row in data: self.rows.append(row)
        {after}

Recorder().run()
""",
    )
    assert use == ("line 4 uses all of Recorder.rows after the loop" if is_result else "")


@pytest.mark.parametrize(
    ("use", "is_result"),
    [
        ("for kind, rows in kept.items():\n        print(cat(rows))", True),
        ("study([cat(rows) for rows in kept.values()])", True),
        ("study(kept)", True),
        ("for kind in kept:\n        print(kind)", True),
        ("for kind in kept.keys():\n        print(kind)", False),
        ("print(kept)", False),
        ("kept.clear()", False),
    ],
)
def test_a_dict_of_lists_that_is_used_after_the_loop(
    use: str, is_result: bool, tmp_path: Path
) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "def main():\n    for kind, row in data:\n        kept[kind].append(row)\n    " + use + "\n"
    )
    owner = LeakOwner("kept['cat']", "list", file=str(path), line=3)
    assert result_use(owner) == ("line 4 uses kept after the loop" if is_result else "")
