"""Help: every verb's fits 80 columns and shows how it is used; mistyped options are named."""

from __future__ import annotations

import argparse
import ast
import textwrap

import pytest

from vramlens.cli.main import VERBS, main, parser


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_80_columns_and_has_two_examples(verb, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*([verb] if verb else []), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    examples = lines[lines.index("examples:") :]
    commands = [line for line in examples if f"vramlens {verb}" in line and line[2] != " "]
    assert len(commands) >= 2


def test_every_example_is_one_that_the_parser_takes():
    import shlex

    from vramlens.cli.help import EXAMPLES
    from vramlens.cli.main import _command

    whole = parser()
    for command, _ in [*EXAMPLES, *(row for verb in VERBS for row in _command(verb).EXAMPLES)]:
        words = shlex.split(command)
        arguments, unknown = whole.parse_known_args(words[words.index("vramlens") + 1 :])
        assert arguments.verb in VERBS
        assert not unknown


def test_the_whole_parser_is_there_for_completion_and_man_pages():
    whole = parser()
    assert isinstance(whole, argparse.ArgumentParser)
    assert all(verb in whole.format_help() for verb in VERBS)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["explain", "x", "--jsom"], "--jsom; did you mean --json? (see vramlens explain --help)"),
        (["diff", "a", "b", "--tolerence=2%"], "did you mean --tolerance?"),
        (["run", "--leeks", "train.py"], "did you mean --leaks?"),
        (["--versoin"], "did you mean --version?"),
    ],
)
def test_a_mistyped_option_is_named(arguments, meant, capsys):
    assert main(arguments) == 2
    assert meant in capsys.readouterr().err


def test_an_option_like_no_other_gets_no_hint(capsys):
    assert main(["explain", "x", "--zebra"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_help_of_strategies_shows_a_script_with_the_functions_that_it_needs(capsys):
    assert main(["strategies", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    code = lines[lines.index("more strategies are compared:") + 1 : lines.index("examples:")]
    tree = ast.parse(textwrap.dedent("\n".join(code)))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions == ["model_fn", "make_batch", "loss_fn", "optimizer_fn"]
