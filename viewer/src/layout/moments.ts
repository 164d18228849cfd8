// One moment for each pixel column: the one at which most is requested. What a column shows is exact at that moment.

import { lowerBound } from "../data/search";
import type { Track } from "../data/track";
import type { Axis } from "./axis";

export interface Moments {
  /** By column, the event right after which it is drawn; they never decrease. */
  event: Int32Array;
  /** By column, the first and the last event of its stretch. */
  first: Int32Array;
  last: Int32Array;
}

export function momentsOf(axis: Axis, from: number, to: number, columns: number): Moments {
  const event = new Int32Array(columns);
  const first = new Int32Array(columns);
  const last = new Int32Array(columns);
  const width = (to - from) / columns;
  let a = axis.event(from);
  for (let i = 0; i < columns; i++) {
    const b = axis.event(from + width * (i + 1));
    first[i] = a;
    last[i] = b;
    event[i] = b > a ? axis.track.requested.peak(a, b + 1) : a;
    a = b;
  }
  return { event, first, last };
}

/** The columns [from, to) in whose moments an allocation is alive. */
export function columnsOf(moments: Int32Array, born: number, died: number): [number, number] {
  const from = lowerBound(moments, born);
  return [from, lowerBound(moments, died, from)];
}

/** Allocations by how long they live (in events, powers of two), each list in order of birth. */
export class Lifetimes {
  private readonly classes: Int32Array[];

  constructor(private readonly track: Track) {
    const { n, born, died } = track;
    const counts = new Int32Array(33);
    for (let i = 0; i < n; i++) counts[classOf(born[i], died[i])]++;
    this.classes = Array.from(counts, (count) => new Int32Array(count));
    counts.fill(0);
    for (let i = 0; i < n; i++) {
      const kind = classOf(born[i], died[i]);
      this.classes[kind][counts[kind]++] = i;
    }
  }

  /** Calls back with the allocations that live in [first, last] and for at least about `shortest` events. */
  each(first: number, last: number, shortest: number, call: (row: number) => void): void {
    const { born, died } = this.track;
    for (let kind = 0; kind < this.classes.length; kind++) {
      const longest = 2 ** (kind + 1);
      if (longest <= shortest) continue;
      const rows = this.classes[kind];
      let low = 0;
      let high = rows.length;
      const earliest = first - longest;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (born[rows[middle]] < earliest) low = middle + 1;
        else high = middle;
      }
      for (; low < rows.length; low++) {
        const row = rows[low];
        if (born[row] > last) break;
        if (died[row] > first) call(row);
      }
    }
  }
}

function classOf(born: number, died: number): number {
  return 31 - Math.clz32(Math.max(1, died - born));
}
