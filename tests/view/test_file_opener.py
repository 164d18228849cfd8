"""The page that opens files: what it may do, what it holds, and that its reader is what its sources say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from pathlib import Path

import pytest

from vramlens.cli.main import main
from vramlens.ground.place import is_user_file
from vramlens.trace.stacks import is_code_file
from vramlens.view.file_opener import file_opener_page
from vramlens.view.page import STATIC, one_file

ROOT = Path(__file__).resolve().parents[2]


def _policy(page):
    return re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]


def _element(page, name):
    return re.search(rf'id="{name}">([^<]*)</script>', page)[1]


def test_its_policy_gains_only_wasm():
    hash_of = r"'sha256-[^']+'"
    usual = re.sub(hash_of, "HASH", _policy(one_file(b"", "run")), count=1)
    opener = re.sub(hash_of, "HASH", _policy(file_opener_page()), count=1)
    assert opener == usual.replace("HASH", "HASH 'wasm-unsafe-eval'")
    assert "connect-src 'none'" in opener


def test_the_page_is_one_small_file_with_the_reader_in_it():
    page = file_opener_page()
    assert len(page) < 1_000_000
    assert not re.search(r"""\b(?:src|href)=["'](?!data:)""", page.split("<script>")[0])
    reader = zlib.decompress(base64.b64decode(_element(page, "reader")))
    assert reader == (STATIC / "reader.wasm").read_bytes()
    script = page.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in _policy(page)


def test_its_rules_are_those_of_the_readers():
    rules = json.loads(_element(file_opener_page(), "rules"))
    for file in (
        "/home/a/train.py",
        "/x/site-packages/torch/nn/a.py",
        "/x/site-packages/peft/a.py",
    ):
        is_user = re.search(rules["not_the_users"], file) is None
        assert is_user == is_user_file(file)
        assert (is_user or re.search(rules["plumbing"], file) is None) == is_code_file(file)


@pytest.mark.skipif(not (ROOT / "native").is_dir(), reason="needs the sources")
def test_the_reader_was_built_from_these_sources():
    recorded = dict(
        reversed(line.split("  ")) for line in (STATIC / "reader.sources").read_text().splitlines()
    )
    for name, digest in recorded.items():
        path = STATIC / name if name == "reader.wasm" else ROOT / name
        if name != "flags":
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest, (
                f"{name} has changed: run `npm run reader` in viewer/ (Debian 12's emscripten)"
            )
    built = {f"native/{file.name}" for file in (ROOT / "native").iterdir() if _is_built(file)}
    assert built == {name for name in recorded if name.startswith("native/")}


def _is_built(file):
    is_source = file.suffix in (".cpp", ".h")
    return is_source and not file.name.startswith("fuzz_") and file.name != "termination.cpp"


def test_the_command(tmp_path, capsys):
    page = tmp_path / "open.html"
    assert main(["view", "--empty", "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == file_opener_page()
    assert "drop a recording onto it" in capsys.readouterr().err
    for wrong, words in (
        (["--empty"], "add -o open.html"),
        (["--empty", "run.vram", "-o", "x.html"], "--empty takes no FILE"),
        ([], "a FILE is required"),
    ):
        assert main(["view", *wrong]) == 2
        assert words in capsys.readouterr().err
