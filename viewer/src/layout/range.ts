// What happens in a range of events: what is born in it, what is freed in it, and what of it stays.

import { lowerBound, upperBound } from "../data/search";
import { DIED, type Track } from "../data/track";
import { type Entry, tally, type TableKind } from "./tally";

export interface Range {
  first: number;
  last: number;
  /** The allocations that are born in it, those that go in it, and those born in it that live on. */
  born: number[];
  freed: number[];
  kept: number[];
  /** Those of them that nothing freed up to the end. */
  unfreed: number[];
  /** Requested bytes just before it, and after its last event. */
  before: number;
  after: number;
}

export function rangeOf(track: Track, first: number, last: number): Range {
  const born: number[] = [];
  const kept: number[] = [];
  const end = upperBound(track.born, last);
  for (let row = lowerBound(track.born, Math.max(0, first)); row < end; row++) {
    born.push(row);
    if (track.died[row] > last) kept.push(row);
  }
  const freed: number[] = [];
  for (let event = Math.max(0, first); event <= last; event++)
    if (track.eventRow[event] >= 0 && track.eventKind[event] & DIED)
      freed.push(track.eventRow[event]);
  const unfreed = kept.filter((row) => track.died[row] >= track.events);
  const before = track.requested.at(first - 1);
  return { first, last, born, freed, kept, unfreed, before, after: track.requested.at(last) };
}

export const bytesOf = (track: Track, rows: number[]): number =>
  rows.reduce((sum, row) => sum + track.row.bytes[row], 0);

/** One line or module of a range. */
export interface RangeRow {
  name: string;
  long: string;
  born: number;
  freed: number;
  kept: number;
  /** An allocation of it: the largest. */
  example: number;
}

/** The bytes of a range by line, module and so on: what keeps most first. */
export function rangeRows(track: Track, range: Range, kind: TableKind): RangeRow[] {
  const rows = new Map<string, RangeRow>();
  const add = (part: "born" | "freed" | "kept", entries: Entry[]): void => {
    for (const { long, name, weight, example } of entries) {
      const row = rows.get(long) ?? { name, long, born: 0, freed: 0, kept: 0, example };
      row[part] += weight;
      rows.set(long, row);
    }
  };
  for (const part of ["born", "freed", "kept"] as const)
    add(
      part,
      tally(
        track,
        { rows: range[part], weight: (row) => track.row.bytes[row], unit: "bytes" },
        kind,
      ),
    );
  return [...rows.values()].sort((a, b) => b.kept - a.kept || b.born - a.born);
}
