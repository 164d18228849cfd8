// The line of code of each allocation: the innermost one outside of PyTorch's plumbing, a library's too.

import type { Place } from "../base/place";
import type { Track } from "./track";

export interface Codes {
  /** By allocation, the number of its line; 0 is none. */
  of: Uint32Array;
  /** By number, the line; null for none. */
  places: (Place | null)[];
}

/** What the backward pass asked for, and what has no stack, counts for its line of the user's. */
export function codesOf(track: Track): Codes {
  const { row, frames, header } = track;
  const numbers = new Map<string, number>();
  const places: (Place | null)[] = [null];
  const number = (file: number, line: number, name: number): number => {
    const key = `${file},${line},${name}`;
    let place = numbers.get(key);
    if (place === undefined) {
      numbers.set(key, (place = places.length));
      places.push({ file: track.text(file), line, function: track.text(name) });
    }
    return place;
  };
  const ofStack = Uint32Array.from(frames.code, (code) =>
    code ? number(frames.file[code - 1], frames.line[code - 1], frames.function[code - 1]) : 0,
  );
  const ofLine = Uint32Array.from(header.lines, (place) => number(...place));
  const of = new Uint32Array(track.n);
  for (let i = 0; i < track.n; i++) {
    const own = row.inferred[i] || !row.stack[i] ? 0 : ofStack[row.stack[i] - 1];
    of[i] = own || (row.line[i] ? ofLine[row.line[i] - 1] : 0);
  }
  return { of, places };
}
