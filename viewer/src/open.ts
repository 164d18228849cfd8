// The page that opens files (src/vramlens/view/file_opener.py): the same as every other page, once a file has been dropped onto it.

import { fromBase64, inflate } from "./data/container";
import { visible, FileError } from "./file/file_error";
import { type Opened, opened } from "./file/opened";
import type { Progress } from "./file/pauses";
import { rulesOf } from "./file/rules";
import { Scene } from "./state/scene";
import { App } from "./ui/app";
import { Dropping } from "./ui/dropping";

const textOf = (id: string): string => document.getElementById(id)?.textContent ?? "";

const rules = rulesOf(textOf("rules"));
const packedReader = textOf("reader");
const reader = inflate(fromBase64(packedReader));
let shown: App | null = null;

async function open(file: File, progress: Progress): Promise<void> {
  shown?.close();
  const isFirst = !shown;
  shown = null;
  const { header, tracks } = await read(file, progress);
  // An address that somebody was sent is about the first file; it says nothing of the next one.
  if (!isFirst) history.replaceState(null, "", location.pathname + location.search);
  document.body.replaceChildren();
  shown = new App(
    header,
    tracks.map((track) => new Scene(track)),
    [dropping.button()],
  );
}

async function read(file: File, progress: Progress): Promise<Opened> {
  try {
    return await opened(file, await reader, rules, progress);
  } catch (error) {
    const name = visible(file.name);
    if (error instanceof FileError) throw new FileError(`${name}: ${error.message}`);
    // A trap of the reader, or no memory for what the file asks for.
    throw new FileError(`${name}: this page cannot read it; try vramlens explain`);
  }
}

const dropping = new Dropping(open);
