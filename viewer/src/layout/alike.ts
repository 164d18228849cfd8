// Ranks that look alike: their memory over time is the same within a few hundredths.

import type { Axis } from "./axis";
import { highestOf } from "./highest";

const COLUMNS = 24;
/** A rank counts as like another where no part of it differs by more than this share of the highest peak. */
const NEAR = 0.03;

export interface Strip {
  /** The one that is drawn for all. */
  track: number;
  /** The others that look like it, in order. */
  alike: number[];
}

/** One strip for each kind of rank, in the order in which the first of each comes; those that stand apart are by themselves. */
export function strips(order: number[], axes: Axis[], apart: Set<number>): Strip[] {
  const shapes = axes.map((axis) => highestOf(axis, COLUMNS).requested);
  const most = Math.max(1, ...shapes.map((shape) => Math.max(...shape)));
  const folded: Strip[] = [];
  for (const track of order) {
    const like = apart.has(track)
      ? undefined
      : folded.find(
          (strip) => !apart.has(strip.track) && isNear(shapes[strip.track], shapes[track], most),
        );
    if (like) like.alike.push(track);
    else folded.push({ track, alike: [] });
  }
  return folded;
}

const isNear = (a: Float64Array, b: Float64Array, most: number): boolean =>
  a.every((bytes, i) => Math.abs(bytes - b[i]) <= NEAR * most);
