// What two recordings hold at their peaks, line by line or by another kind.

import { longPlace, shortPlace } from "../base/format";
import type { Place } from "../base/place";
import type { Difference as DiffAnswer } from "../data/header";
import type { Track } from "../data/track";
import { tally, type TableKind, weighAt } from "./tally";

export interface Difference {
  long: string;
  name: string;
  before: number;
  after: number;
  /** An allocation of it; row -1 where there is none. */
  example: [track: number, row: number];
}

interface Shown {
  track: Track;
}

const atPeak = (track: Track, kind: TableKind) =>
  tally(track, weighAt(track, track.header.counters.requested[2]), kind);

/** The lines that changed as `vramlens diff` has them, aligned where they moved. */
export function changedLines(
  difference: DiffAnswer,
  scenes: Shown[],
  [before, after]: [number, number],
): Difference[] {
  const examples = new Map<string, [number, number]>();
  for (const number of [before, after])
    for (const entry of atPeak(scenes[number].track, "line"))
      examples.set(entry.long, [number, entry.example]);
  const exampleOf = (place: Place) => examples.get(`${longPlace(place)} in ${place.function}`);
  const none: [number, number] = [after, -1];
  const rows = difference.lines.map((line) => {
    const moved = line.was ? ` (was ${shortPlace(line.was)})` : "";
    return {
      name: shortPlace(line.place) + moved,
      long: longPlace(line.place) + moved,
      before: line.before,
      after: line.after,
      example: exampleOf(line.place) ?? exampleOf(line.was ?? line.place) ?? none,
    };
  });
  const change = difference.unattributed;
  if (!change) return rows;
  const [less, more] = change < 0 ? [-change, 0] : [0, change];
  const name = "no line of yours";
  return [...rows, { name, long: name, before: less, after: more, example: none }];
}

/** All that both hold at their peaks. */
export function heldRows(scenes: Shown[], pair: [number, number], kind: TableKind): Difference[] {
  const rows = new Map<string, Difference>();
  pair.forEach((number, i) => {
    for (const { long, name, weight, example } of atPeak(scenes[number].track, kind)) {
      const row = rows.get(long) ?? { long, name, before: 0, after: 0, example: [number, example] };
      rows.set(long, row);
      if (i) row.after += weight;
      else row.before += weight;
    }
  });
  return [...rows.values()];
}
