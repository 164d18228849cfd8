"""The program's own sentences: phrasings that an American engineer would not write are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "vramlens").rglob("*.py"))
PACKAGES = sorted({path.relative_to(ROOT / "src" / "vramlens").parts[0] for path in SOURCES})
BANNED = {
    r"\b(?:is|are|was) no (?!longer|more)": 'say "is not a …" or "there is no …"',
    r"\ball the same\b": 'say "still"',
    r"\bholes?\b": 'say "free block" or "gap"',
    r"\bcan(?:not)? be told\b": 'say "is unknown"',
    r"\basked of\b|\bask(?:s|ed|ing)? for (?!it\b)": 'say "request" or "allocate"',
    r"\bg[ai]ve(?:n|s)? (?:it )?(?:up|back)\b": 'say "free", "return" or "stop"',
    r"\bsurely\b": 'say "certainly", or how sure it is',
    r"\bin vain\b": 'say "for nothing"',
    r"\bfor want of\b": 'say "without"',
    r"\bon behalf of\b": 'say "by"',
    r"\bof (?:yours|theirs)\b": 'say "your …"',
    r"\bnobody (?:can|was|whom)\b": "say what is unknown",
    r"\bwho (?:holds|keeps)\b": 'say "what uses" or "what keeps"',
    r"\b(?:made|begin|begins|export(?:ed)?) anew\b": 'say "again"',
    r"\bthe one (?:before|after)\b": "name the thing",
    r"\ba step less\b": 'say "saves … per step"',
    r"\bsome \{?\w+\}? in all\b": 'say "about … in total"',
    r"\bso much is alive\b|\bwhat is alive\b": 'say "in use"',
    r"\bis (?:refuted|undecided)\b": "say what will or may help",
    r"\bcarr(?:y|ies) the run\b": 'say "lets the step finish"',
    r"\d × (?:as|that|the|an)\b": 'write "2.00x"',
    r"\bto be had\b": 'say "available"',
    r"\bto speak of\b|\ba great deal\b": 'say "almost nothing" or "a lot"',
    r"\b(?:is|are|was|were) told\b": 'say "is reported" or "is shown"',
    r"\bfor all reasons\b": 'say "in total"',
    r"\b(?:is|are) over\b(?! \S)": 'say "has ended"',
    r"\bcome to (?:its|their|an) end\b": 'say "finish"',
    r"\bone an? (?:rank|side|line|file|step|node|process|row)\b": 'say "one per …"',
    r"\bwhat lies\b": "say what it is",
    r"[0-9}] %(?!\w)": 'write "34%"',
}
ALLOWED = re.compile(r"\bthere (?:is|are|was|were) no\b|\bif there is no\b", re.IGNORECASE)
"""Ordinary English that the first pattern would refuse."""


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """The string literals that are words, without docstrings; ``{}`` stands for a value."""
    tree = ast.parse(source)
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        if isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
    for node in ast.walk(tree):
        if node in left_out or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(_text_of(part) for part in parts)
        if text.count(" ") > 1 and re.search(r"[a-z]{3} [a-z]", text):
            yield node.lineno, text


def _text_of(part: ast.expr) -> str:
    if not isinstance(part, ast.Constant):
        return "{}"
    return part.value if isinstance(part.value, str) else ""


def banned_in(text: str) -> Iterator[str]:
    """What stands in the text and should not, with what to say instead."""
    usual = ALLOWED.sub("", text)
    for pattern, instead in BANNED.items():
        match = re.search(pattern, usual)
        if match is not None:
            yield f"{match[0]!r}: {instead}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_sentence_of_the_program_reads_as_translated(package: str) -> None:
    folder = ROOT / "src" / "vramlens" / package
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {why} in {text[:80]!r}"
        for path in paths
        for line, text in sentences(path.read_text(encoding="utf-8"))
        for why in banned_in(text)
    ]
    assert wrong == []


def test_the_glossary_keeps_to_its_own_words() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert list(banned_in(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "'x' is no size: write 24GiB",
        "replayed, the run is out of memory all the same",
        "193.00 MiB were free in 12 holes",
        "the line asked for 3 MiB that it never gave back",
        "make the batch 0.77 × as large",
        "the flight records are not to be had",
        "empty it when its keys are over",
        "diff takes two folders, one a side",
        "34 " + "% of the peak",
    ],
)
def test_a_banned_phrase_is_seen(text: str) -> None:
    assert list(banned_in(text))


@pytest.mark.parametrize(
    "text", ["there is no GPU here", "the process is no longer there", "a request for 3 MiB fails"]
)
def test_ordinary_words_pass(text: str) -> None:
    assert not list(banned_in(text))
