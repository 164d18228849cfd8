// What was asked for through each stack.

import type { Track } from "../data/track";
import type { Weighed } from "./tally";

/** How much some allocations count together, and the one that counts most. */
export interface Sum {
  weight: number;
  example: number;
  most: number;
}

/** Whose frames: the user's alone, a library's code as well, or every one. */
export type FrameKind = "own" | "code" | "all";

/** By stack, what was asked for there; by -1 - line, what has none and belongs to the line that it was lent (0: none). */
export function stackSums(track: Track, weighed: Weighed): Map<number, Sum> {
  const { starts } = track.frames;
  const sums = new Map<number, Sum>();
  for (let i = 0; i < weighed.rows.length; i++) {
    const row = weighed.rows[i];
    const stack = track.row.stack[row];
    const isEmpty = !stack || starts[stack] === starts[stack - 1];
    const weight = weighed.weight(row);
    include(sums, isEmpty ? -1 - track.row.line[row] : stack, {
      weight,
      example: row,
      most: weight,
    });
  }
  return sums;
}

/** Adds to what counts for a key. */
export function include<Key>(sums: Map<Key, Sum>, key: Key, sum: Sum): void {
  const before = sums.get(key);
  if (before) add(before, sum);
  else sums.set(key, { ...sum });
}

export function add(to: Sum, sum: Sum): void {
  to.weight += sum.weight;
  if (sum.most <= to.most) return;
  to.most = sum.most;
  to.example = sum.example;
}

/** The frames of a stack, outermost first; of those that are left out the innermost stays: what of PyTorch was called. */
export function framesOf(
  track: Track,
  stack: number,
  kind: FrameKind,
  always: number = -1,
): number[] {
  const { starts, of_stacks: frames } = track.frames;
  const isShown = (frame: number): boolean =>
    kind === "all" || track.isUserFrame(frame) || (kind === "code" && !track.isPlumbing(frame));
  const shown: number[] = [];
  for (let at = starts[stack] - 1; at >= starts[stack - 1]; at--) {
    const place = track.samePlaces[frames[at]];
    if (at === starts[stack - 1] || place === always || isShown(frames[at])) shown.push(place);
  }
  return shown;
}

/** The frame of the user's through which most was asked for, innermost ones alone; where there is none, any innermost one. */
export function heaviestFrame(track: Track, sums: Map<number, Sum>): number {
  const [own, any] = [new Map<number, Sum>(), new Map<number, Sum>()];
  for (const [stack, sum] of sums) {
    if (stack <= 0) continue;
    const frames = framesOf(track, stack, "own");
    const innermost = frames[frames.length - 1];
    const user = [...frames].reverse().find((frame) => track.isUserFrame(frame));
    if (user !== undefined) include(own, user, sum);
    include(any, innermost, sum);
  }
  const heaviest = [...(own.size ? own : any)].sort(([, a], [, b]) => b.weight - a.weight)[0];
  return heaviest?.[0] ?? -1;
}
