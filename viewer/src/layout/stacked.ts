// The stacked picture: in each pixel column, group upon group, and within a group its allocations in order of birth.
//
// Allocations too small for a pixel, or that no column's moment meets, lie merged on top of their group: the group's bytes
// are exact (they come from its sums, not from what is drawn), and zooming in takes them out of the merged part.

import type { Groups } from "../data/groups";
import type { Track } from "../data/track";
import type { Axis } from "./axis";
import { columnsOf, type Lifetimes, momentsOf, type Moments } from "./moments";

export interface Window {
  from: number;
  to: number;
  low: number;
  high: number;
  width: number;
  height: number;
}

export interface Stacked {
  window: Window;
  moments: Moments;
  /** The pieces of column i are those from starts[i] to starts[i + 1]. */
  starts: Int32Array;
  /** By piece: the allocation, or -1 - group for what is merged. */
  what: Int32Array;
  /** By piece: where it ends, in bytes; it begins where the one before ends, or at 0. */
  top: Float64Array;
  /** Allocations drawn by themselves. */
  drawn: number;
  /** Whether the budget was used up, so that some that would fill a pixel are merged too. */
  cut: boolean;
}

const BUDGET = 60_000;
const MOST_PIECES = 1_500_000;

export function stack(
  track: Track,
  groups: Groups,
  lifetimes: Lifetimes,
  axis: Axis,
  window: Window,
): Stacked {
  const { width } = window;
  const moments = momentsOf(axis, window.from, window.to, width);
  const { rows, from, to, cut } = candidates(track, groups, lifetimes, moments, window);
  const count = groups.groups.length;
  const lists = byGroup(groups, rows);

  const starts = new Int32Array(width + 1);
  let what = new Int32Array(1 << 14);
  let top = new Float64Array(1 << 14);
  let pieces = 0;
  const sums = new Float64Array(count);
  const push = (piece: number, end: number): void => {
    if (pieces === what.length) {
      const wider = new Int32Array(pieces * 2);
      wider.set(what);
      what = wider;
      const higher = new Float64Array(pieces * 2);
      higher.set(top);
      top = higher;
    }
    what[pieces] = piece;
    top[pieces++] = end;
  };
  const live: number[][] = Array.from({ length: count }, () => []);
  const next = new Int32Array(count);
  let known = -2; // the event that `sums` is of
  for (let column = 0; column < width; column++) {
    starts[column] = pieces;
    if (column > 0 && moments.event[column] === moments.event[column - 1] && pieces < MOST_PIECES) {
      for (let p = starts[column - 1], end = pieces; p < end; p++) push(what[p], top[p]);
      continue;
    }
    groups.at(moments.event[column], sums, known);
    known = moments.event[column]!;
    let height = 0;
    for (let group = 0; group < count; group++) {
      const list = lists[group];
      const here = live[group];
      while (next[group] < list.length && from[list[next[group]]] <= column)
        here.push(list[next[group]++]);
      const end = height + sums[group];
      let kept = 0;
      for (const place of here) {
        if (to[place] <= column) continue;
        here[kept++] = place;
        height += track.row.bytes[rows[place]];
        if (pieces < MOST_PIECES) push(rows[place], height);
      }
      here.length = kept;
      if (end > height) push(-1 - group, end);
      height = Math.max(height, end);
    }
  }
  starts[width] = pieces;
  return { window, moments, starts, what, top, drawn: rows.length, cut };
}

/** What is worth drawing by itself: a pixel high, and alive at some column's moment. In order of birth. */
function candidates(
  track: Track,
  groups: Groups,
  lifetimes: Lifetimes,
  moments: Moments,
  window: Window,
) {
  const { only, of } = groups;
  const { event, first, last } = moments;
  const width = window.width;
  const perColumn = (last[width - 1] - first[0]) / width;
  let least = (window.high - window.low) / window.height;
  const bytes = track.row.bytes;
  let chosen: number[] = [];
  let cut = false;
  lifetimes.each(event[0], event[width - 1], perColumn / 2, (row) => {
    if (bytes[row] < least || (only >= 0 && of[row] !== only)) return;
    const [a, b] = columnsOf(event, track.born[row], track.died[row]);
    if (b <= a) return;
    chosen.push(row);
    if (chosen.length < BUDGET * 2) return;
    cut = true;
    least *= 2;
    chosen = chosen.filter((kept) => bytes[kept] >= least);
  });
  const rows = Int32Array.from(chosen).sort();
  const from = new Int32Array(rows.length);
  const to = new Int32Array(rows.length);
  rows.forEach((row, i) => {
    [from[i], to[i]] = columnsOf(event, track.born[row], track.died[row]);
  });
  return { rows, from, to, cut };
}

function byGroup(groups: Groups, rows: Int32Array): number[][] {
  const lists: number[][] = groups.groups.map(() => []);
  rows.forEach((row, i) => lists[groups.of[row]].push(i));
  return lists;
}

export interface Hit {
  event: number;
  column: number;
  /** The allocation under the point; -1 for none. */
  row: number;
  group: number;
  /** Whether it lies in a merged part of the picture. */
  merged: boolean;
  from: number;
  to: number;
}

/** What is under a point of the picture; null above the stack. */
export function hit(
  track: Track,
  groups: Groups,
  stacked: Stacked,
  column: number,
  bytes: number,
): Hit | null {
  const { starts, what, top, moments } = stacked;
  if (column < 0 || column >= stacked.window.width || bytes < 0) return null;
  let low = starts[column];
  const end = starts[column + 1];
  const first = low;
  let high = end;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (top[middle] <= bytes) low = middle + 1;
    else high = middle;
  }
  if (low >= end) return null;
  const from = low > first ? top[low - 1] : 0;
  const event = moments.event[column];
  const piece = what[low];
  if (piece >= 0)
    return {
      event,
      column,
      row: piece,
      group: groups.of[piece],
      merged: false,
      from,
      to: top[low],
    };
  // Among what is merged, the one whose turn it is: they lie in order of birth, too.
  const group = -1 - piece;
  const drawn = new Set<number>();
  for (let p = first; p < low; p++) if (what[p] >= 0) drawn.add(what[p]);
  let at = from;
  for (const row of track.alive(event)) {
    if (groups.of[row] !== group || drawn.has(row)) continue;
    const next = at + track.row.bytes[row];
    if (bytes < next) return { event, column, row, group, merged: true, from: at, to: next };
    at = next;
  }
  return { event, column, row: -1, group, merged: true, from, to: top[low] };
}
