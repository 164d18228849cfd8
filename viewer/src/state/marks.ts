// Which allocations are marked: those of a finding, or those that a search finds.

import type { Finding } from "../data/header";
import type { Track } from "../data/track";

export interface Marked {
  flags: Uint8Array;
  count: number;
  /** Bytes of them that are alive at an event. */
  bytesAt(event: number): number;
}

function marked(track: Track, chosen: (row: number) => boolean): Marked {
  const flags = new Uint8Array(track.n);
  let count = 0;
  for (let i = 0; i < track.n; i++) {
    if (!chosen(i)) continue;
    flags[i] = 1;
    count++;
  }
  return {
    flags,
    count,
    bytesAt(event) {
      let bytes = 0;
      for (let i = 0; i < track.n; i++) {
        if (flags[i] && track.born[i] <= event && track.died[i] > event)
          bytes += track.row.bytes[i];
      }
      return bytes;
    },
  };
}

/** The allocations that a finding is about, alive at its moment; null where it is about no allocations in particular. */
export function markedByFinding(track: Track, finding: Finding): Marked | null {
  const { mark, event } = finding;
  if (!mark) return null;
  const stacks = new Set(mark.stacks);
  const place = mark.place;
  const line = place
    ? track.header.lines.findIndex(
        ([file, number, name]) =>
          track.text(file) === place.file &&
          number === place.line &&
          track.text(name) === place.function,
      ) + 1
    : 0;
  const categories = new Set(mark.categories);
  const { row, born, died } = track;
  return marked(track, (i) => {
    if (born[i] > event || died[i] <= event) return false;
    if (place) return (line > 0 && row.line[i] === line) || stacks.has(row.stack[i]);
    return categories.has(row.category[i]);
  });
}

/** A regular expression where the text is one, else the text itself; case counts only where capitals are typed. */
export function pattern(text: string): RegExp {
  const flags = text === text.toLowerCase() ? "iu" : "u";
  try {
    return new RegExp(text, flags);
  } catch {
    return new RegExp(text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"), flags);
  }
}

/** The allocations whose stack, line, module or name a text is found in. */
export function markedBySearch(track: Track, text: string): Marked {
  const wanted = pattern(text);
  const texts = track.header.texts.map((each) => wanted.test(each.slice(0, 400)));
  const { frames, header, row } = track;
  const frameHit = Uint8Array.from(frames.file, (file, i) => {
    if (texts[file] || texts[frames.function[i]]) return 1;
    return wanted.test(`${track.text(file).slice(-300)}:${frames.line[i]}`) ? 1 : 0;
  });
  const stacks = new Uint8Array(frames.starts.length + 1);
  for (let s = 0; s + 1 < frames.starts.length; s++) {
    for (let at = frames.starts[s]; at < frames.starts[s + 1]; at++)
      if (frameHit[frames.of_stacks[at]]) stacks[s + 1] = 1;
  }
  const lines = header.lines.map(
    ([file, number, name]) =>
      texts[file] || texts[name] || wanted.test(`${track.text(file).slice(-300)}:${number}`),
  );
  const modules = header.modules.map((module) => texts[module]);
  const names = header.rows.names.map((name) => texts[name]);
  const categories = header.categories.map((name) => wanted.test(name.replaceAll("_", " ")));
  return marked(
    track,
    (i) =>
      stacks[row.stack[i]] === 1 ||
      Boolean(lines[row.line[i] - 1]) ||
      Boolean(modules[row.module[i] - 1]) ||
      Boolean(names[row.name[i] - 1]) ||
      Boolean(categories[row.category[i]]),
  );
}
