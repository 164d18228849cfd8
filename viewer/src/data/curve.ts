// Bytes over events, in blocks: exact at any event, and the highest of any range without walking through it.

import type { Numbers } from "./container";
import { lowerBound, upperBound } from "./search";
import { BORN, type Track } from "./track";

const BLOCK = 64;
const FAN = 16;

export class Curve {
  /** Before the first event of each block; one more than there are blocks. */
  private readonly before: Float64Array;
  /** The highest of each block, of FAN blocks, of FAN * FAN blocks and so on. */
  private readonly highest: Float64Array[] = [];
  readonly base: number;

  constructor(
    private readonly track: Track,
    private readonly sizes: Numbers,
    private readonly ends: number,
  ) {
    const { events, eventRow, eventKind, born } = track;
    let now = 0;
    for (let row = 0; row < track.n && born[row] < 0; row++) now += sizes[row];
    this.base = now;
    const blocks = Math.ceil(events / BLOCK);
    this.before = new Float64Array(blocks + 1);
    let level = new Float64Array(blocks);
    for (let block = 0, event = 0; block < blocks; block++) {
      this.before[block] = now;
      let most = -Infinity;
      for (const end = Math.min(events, event + BLOCK); event < end; event++) {
        const row = eventRow[event];
        if (row >= 0) {
          const kind = eventKind[event];
          if (kind & BORN) now += sizes[row];
          if (kind & ends) now -= sizes[row];
        }
        if (now > most) most = now;
      }
      level[block] = most;
    }
    this.before[blocks] = now;
    for (this.highest.push(level); level.length > FAN; this.highest.push(level)) {
      const wider = new Float64Array(Math.ceil(level.length / FAN)).fill(-Infinity);
      for (let i = 0; i < level.length; i++) {
        const up = (i / FAN) | 0;
        if (level[i] > wider[up]) wider[up] = level[i]!;
      }
      level = wider;
    }
  }

  /** Bytes right after an event. */
  at(event: number): number {
    if (event < 0) return this.base;
    const block = (event / BLOCK) | 0;
    let now = this.before[block];
    for (let e = block * BLOCK; e <= event; e++) now += this.change(e);
    return now;
  }

  /** The first event in [from, to) after which most bytes are there; -1 stands for before the first event. */
  peak(from: number, to: number): number {
    let best = from;
    let most = this.at(from);
    const consider = (event: number, bytes: number) => {
      if (bytes > most) [best, most] = [event, bytes];
    };
    const walk = (start: number, end: number) => {
      if (start >= end) return;
      let now = this.at(start - 1);
      for (let e = start; e < end; e++) consider(e, (now += this.change(e)));
    };
    const first = from + 1;
    const firstBlock = Math.ceil(first / BLOCK);
    const lastBlock = (to / BLOCK) | 0;
    if (firstBlock >= lastBlock) {
      walk(first, to);
      return best;
    }
    walk(first, firstBlock * BLOCK);
    const block = this.highestBlock(firstBlock, lastBlock);
    if (this.highest[0][block] > most) walk(block * BLOCK, (block + 1) * BLOCK);
    walk(lastBlock * BLOCK, to);
    return best;
  }

  private highestBlock(from: number, to: number): number {
    let best = from;
    for (let block = from; block < to;) {
      let level = 0;
      let size = 1;
      while (
        level + 1 < this.highest.length &&
        block % (size * FAN) === 0 &&
        block + size * FAN <= to
      ) {
        level++;
        size *= FAN;
      }
      if (this.highest[level][block / size] > this.highest[0][best]) {
        let inside = block / size;
        for (; level > 0; level--) {
          const below = this.highest[level - 1];
          const wanted = this.highest[level][inside];
          inside *= FAN;
          while (below[inside] !== wanted) inside++;
        }
        best = inside;
      }
      block += size;
    }
    return best;
  }

  private change(event: number): number {
    const row = this.track.eventRow[event];
    if (row < 0) return 0;
    const kind = this.track.eventKind[event];
    return (kind & BORN ? this.sizes[row] : 0) - (kind & this.ends ? this.sizes[row] : 0);
  }
}

/** Bytes that change at few events: one step a change. */
export class StepCurve {
  /** By step, the event from which its bytes count; they never decrease, and the first is -1. */
  constructor(
    private readonly when: ArrayLike<number>,
    private readonly bytes: ArrayLike<number>,
  ) {}

  /** The sum of what is born and dies at some events. */
  static ofLives(
    born: ArrayLike<number>,
    died: ArrayLike<number>,
    sizes: ArrayLike<number>,
    base: number,
    events: number,
  ): StepCurve {
    const changes: [number, number][] = [];
    for (let i = 0; i < born.length; i++) {
      if (born[i] >= 0) changes.push([born[i], sizes[i]]);
      if (died[i] < events) changes.push([died[i], -sizes[i]]);
    }
    changes.sort((a, b) => a[0] - b[0]);
    const when = [-1];
    const bytes = [base];
    for (const [event, change] of changes) {
      const now = bytes[bytes.length - 1] + change;
      if (event === when[when.length - 1]) bytes[bytes.length - 1] = now;
      else {
        when.push(event);
        bytes.push(now);
      }
    }
    return new StepCurve(Float64Array.from(when), Float64Array.from(bytes));
  }

  at(event: number): number {
    return this.bytes[upperBound(this.when, event) - 1] ?? this.bytes[0];
  }

  /** The most bytes during or after any of the events in [from, to). */
  highest(from: number, to: number): number {
    const { when, bytes } = this;
    let most = this.at(from);
    for (let place = lowerBound(when, from); place < when.length && when[place] < to; place++)
      most = Math.max(most, bytes[place]);
    return most;
  }
}
