"""Redaction: a recording to hand to others tells no folders, arguments, host or user.

The names of files, functions, modules and tensors stay: without them a recording says nothing.
Every other text is rewritten, wherever in the recording it is, and what was written is searched
once more (``redaction_check``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vramlens.capture.recording.private_facts import PrivateFacts, is_short, private_facts
from vramlens.capture.recording.redaction_check import check_redacted
from vramlens.ground.place import PACKAGES

# What everybody has is kept from here on, so that the reader can tell libraries from the user's own
# code.
_LIBRARY = re.compile(rf"(?:{PACKAGES}|lib[/\\]python3\.\d+)[/\\].*$")
# The folder has the user's name in it.
_COMPILED = re.compile(r"torchinductor_[^/\\]*(?P<rest>[/\\].*)$")
_PRIVATE_META = ("command", "ending", "host", "folder", "job")
_HIDDEN = "***"
# In a text nobody says where a path with spaces ends: up to the last slash before a mark that paths
# rarely have.
_INSIDE = r"[^\n\r\t\"'`<>|*?:;,()\[\]{}]*"
_ROOTED = re.compile(
    rf"(?<![\w.+@-])(?:file:/{{0,2}})?(?:~[\w.-]*|\.{{1,2}}|[A-Za-z]:)?[/\\](?=[\w.+@~-])(?:{_INSIDE}[/\\])?"
)
_RELATIVE = re.compile(
    r"(?<![\w.+@~/\\-])([\w.+@~-]+)(?:[/\\][\w.+@~ -]+)*[/\\](?P<file>[\w.+@~-]*)"
)
_EXTENSION = re.compile(r"[^.]\.[A-Za-z]\w{0,7}$")
_CODE_NAME = re.compile(r"[\w.<>\[\]+-]*(?: \[[\w+]+\])?")
"""A function, a module's path with its marks, a tensor: nothing in which a path could be."""
_CLOSED = {
    *(
        "action",
        "state",
        "segment_type",
        "schema",
        "stage",
        "kind",
        "trigger",
        "step_source",
        "confidence",
        "verdict",
    ),
    *(
        "torch",
        "cuda",
        "hip",
        "driver",
        "python",
        "vramlens",
        "platform",
        "device_name",
        "uuid",
        "dtype",
        "class",
    ),
}
"""Fields of a closed vocabulary, and versions: nobody's own words."""
_NAMES_OF_CODE = {"user_metadata", "module", "function"}
_FILES = ("filename", "file")
_VARIABLE = "VRAMLENS_REDACT"
_NOTES_OF_OTHERS = ("other_processes", "outside_pytorch")
"""Rows of the ledger that name the programs of others."""


def is_redaction_wanted(asked: bool | None = None) -> bool:
    """Whether recordings are to be redacted: as asked; else as ``VRAMLENS_REDACT`` says, for all
    of them.
    """
    return os.environ.get(_VARIABLE, "0") not in ("", "0") if asked is None else asked


class Redaction:
    """Takes what is private out of a recording's parts, in one way for all of them.

    Attributes:
        facts: what must go.
        kept_texts: what was left as it is on purpose: names of code and closed vocabularies.
    """

    def __init__(self, command: Sequence[str] = (), facts: PrivateFacts | None = None) -> None:
        self._command = command
        self.facts = private_facts(command) if facts is None else facts
        self.kept_texts = {"true", "false", "null"}  # words of JSON
        self._texts: dict[str, str] = {}
        self._fields: dict[tuple[Any, str, bool, bool], str] = {}
        self._seen_keys: set[tuple[Any, ...]] = set()
        self._words = _pattern_of([word for word, _ in self.facts.words])

    def look_again(self) -> None:
        """Adds what has become private since: the program may have gone to another folder."""
        self.facts = self.facts.with_more(private_facts(self._command))
        self._words = _pattern_of([word for word, _ in self.facts.words])
        self._texts.clear()
        self._fields.clear()

    def recording(
        self, snapshot: dict[str, Any], meta: dict[str, Any], parts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The further parts of a recording, rewritten; its snapshot and meta data are rewritten in place."""
        self.snapshot(snapshot)
        self.meta(meta)
        return {name: self.part(part) for name, part in parts.items()}

    def snapshot(self, snapshot: dict[str, Any]) -> None:
        """Rewrites what PyTorch recorded, in place."""
        done: set[int] = set()
        for section, content in snapshot.items():
            self._rewrite(content, done, is_region=section == "external_annotations")
        self.kept_texts.update(snapshot)

    def meta(self, meta: dict[str, Any]) -> None:
        """Rewrites the meta data, in place."""
        for key in _PRIVATE_META:
            meta.pop(key, None)
        if isinstance(meta.get("oom"), dict):  # source text may hold anything
            meta["oom"] = {**meta["oom"], "expression": None, "node": None, "source": []}
        self._rewrite(meta, set())
        meta["redacted"] = True
        self.kept_texts.update(meta)

    def part(self, part: Any) -> Any:
        """Another part of the recording (names, owners, ledger, samples), rewritten."""
        if isinstance(part, dict):
            if part.get("kind") in _NOTES_OF_OTHERS:
                part = {**part, "note": ""}
            if "is_this" in part and part["is_this"] is not True:  # another's process
                part = {**part, "name": None}
            return {key: self._of_part(key, member) for key, member in part.items()}
        if isinstance(part, (list, tuple)):
            return [member if type(member) is int else self.part(member) for member in part]
        return self.text(part) if isinstance(part, str) else part

    def text(self, text: str) -> str:
        """A free text without folders, user, host and arguments."""
        if text not in self._texts:
            self._texts[text] = self._rewritten(text)
        return self._texts[text]

    def check(self, path: str) -> None:
        """Searches a written recording for what was to go.

        Raises:
            OSError: something of it is there.
        """
        check_redacted(path, [folder for folder, _ in self.facts.folders], self.private_words())

    def private_words(self) -> list[tuple[str, str]]:
        """The words that must not be found: all but those that code or recordings themselves use
        as names.
        """
        words = "\n".join(self.kept_texts)
        return [
            (word, kind) for word, kind in self.facts.words if not _pattern_of([word]).search(words)
        ]

    def _of_part(self, key: str, member: Any) -> Any:
        self.kept_texts.add(key)
        if key == "columns":
            self.kept_texts.update(member)
            return member
        if not isinstance(member, str):
            return self.part(member)
        return self._name_of_code(member) if key == "name" else self._field(key, member)

    def _rewrite(self, container: Any, done: set[int], is_region: bool = False) -> None:
        """Rewrites every text in dicts and lists, each object once: PyTorch shares frames among
        all its stacks.
        """
        if isinstance(container, dict):
            self._rewrite_dict(container, done, is_region)
        elif isinstance(container, list) and id(container) not in done:
            done.add(id(container))
            for index, member in enumerate(container):
                if isinstance(member, str):
                    container[index] = self.text(member)
                else:
                    self._rewrite(member, done, is_region)

    def _rewrite_dict(self, mapping: dict[Any, Any], done: set[int], is_region: bool) -> None:
        is_frame = "filename" in mapping
        if is_frame and id(mapping) in done:
            return
        if is_frame:
            done.add(id(mapping))
        keys = tuple(mapping)
        if keys not in self._seen_keys:
            self._seen_keys.add(keys)
            self.kept_texts.update(map(str, keys))
        for key, member in mapping.items():
            if type(member) is int:  # a million events have hardly anything else
                continue
            if isinstance(member, str):
                mapping[key] = self._field(key, member, is_frame, is_region)
            else:
                self._rewrite(member, done, is_region)

    def _field(self, key: Any, text: str, is_frame: bool = False, is_region: bool = False) -> str:
        """A text that has a name, rewritten."""
        about = (key, text, is_frame, is_region)
        if about not in self._fields:
            self._fields[about] = self._rewritten_field(key, text, is_frame, is_region)
        return self._fields[about]

    def _rewritten_field(self, key: Any, text: str, is_frame: bool, is_region: bool) -> str:
        if key in _CLOSED or str(key).startswith("PYTORCH_"):
            self.kept_texts.add(text)
            return text
        if is_region:  # its name is what the program says, not code
            return self.text(text)
        if key in _FILES:
            path = redacted_path(text)
            self.kept_texts.add(path)
            return path
        is_code = key in _NAMES_OF_CODE or (is_frame and key == "name")
        return self._name_of_code(text) if is_code else self.text(text)

    def _name_of_code(self, text: str) -> str:
        if not _CODE_NAME.fullmatch(text):
            return self.text(text)
        self.kept_texts.add(text)
        return text

    def _rewritten(self, text: str) -> str:
        for folder, stand_in in self.facts.folders:
            if folder in text:
                # /data is also the end of torch/utils/data.
                before = r"(?<![\w.+@~-])" if is_short(folder) else ""
                text = re.sub(rf"{before}{re.escape(folder)}(?!\w)", stand_in, text)
        for name in self.facts.local_folders:
            text = text.replace(f"{name}/", "./")
        text = _ROOTED.sub(_without_folder, text)
        text = _RELATIVE.sub(_without_relative_folder, text)
        return self._words.sub(_HIDDEN, text)


def redacted_path(path: str) -> str:
    """A path without the folders that are the user's."""
    library = _LIBRARY.search(path)
    if library is not None:
        return "/" + library[0]
    compiled = _COMPILED.search(path)
    if compiled is not None:
        return "/torchinductor_" + compiled["rest"]
    return path if path.startswith("<") else os.path.basename(path.replace("\\", "/"))


def _without_folder(match: re.Match[str]) -> str:
    """The rest of a path up to its last slash: where it is in a library."""
    folder = match[0]
    shortened = redacted_path(folder)
    return shortened if shortened != os.path.basename(shortened) and " " not in shortened else ""


def _without_relative_folder(match: re.Match[str]) -> str:
    is_path = _EXTENSION.search(match["file"]) is not None or os.path.lexists(match[1])
    return match["file"] if is_path else match[0]


def _pattern_of(words: Sequence[str]) -> re.Pattern[str]:
    """The pattern that finds each of the words where it stands by itself."""
    if not words:
        return re.compile(r"(?!)")
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)")
