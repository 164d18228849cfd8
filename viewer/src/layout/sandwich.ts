// A frame between its callers and its callees: what was asked for through it, however it was reached.

import type { Track } from "../data/track";
import { beside, flame, type Flame, FlameTree, frameBar } from "./flame_tree";
import { type FrameKind, framesOf, stackSums } from "./stack_sums";
import type { Weighed } from "./tally";

export interface Sandwich {
  /** The frame; inside of it are its callees. */
  center: Flame;
  /** Those that called it; inside of each are its own callers. */
  callers: Flame[];
  /** What likely belongs to the frame's line, and has no stack through it: the backward pass asked. */
  lent: number;
}

/** Of a frame that a stack names more than once (a recursion), the outermost one counts. */
export function sandwichOf(
  track: Track,
  weighed: Weighed,
  frame: number,
  kind: FrameKind,
): Sandwich {
  const number = track.samePlaces[frame];
  const callees = new FlameTree(track, flame(frameBar(track, number), null));
  const callers = new FlameTree(track, flame(frameBar(track, number), null));
  const through = new Set<number>();
  for (const [stack, sum] of stackSums(track, weighed)) {
    if (stack <= 0) continue;
    const frames = framesOf(track, stack, kind, number);
    const at = frames.indexOf(number);
    if (at < 0) continue;
    through.add(stack);
    callees.grow(frames.slice(at + 1), sum);
    callers.grow(frames.slice(0, at).reverse(), sum);
  }
  callees.sort();
  callers.sort();
  const center = callees.root;
  for (const caller of callers.root.inside) caller.parent = center;
  const lent = lentTo(track, weighed, number, through);
  return { center, callers: callers.root.inside, lent };
}

/** What counts for the line of a frame with no stack through it. */
function lentTo(track: Track, weighed: Weighed, frame: number, through: Set<number>): number {
  const { frames, header, row } = track;
  const isIts = header.lines.map(
    ([file, line, name]) =>
      file === frames.file[frame] && line === frames.line[frame] && name === frames.function[frame],
  );
  let lent = 0;
  for (let i = 0; i < weighed.rows.length; i++) {
    const of = weighed.rows[i];
    if (isIts[row.line[of] - 1] && !through.has(row.stack[of])) lent += weighed.weight(of);
  }
  return lent;
}

/** Whether a frame lies on the callers' side. */
export function isCaller({ center, callers }: Sandwich, flame: Flame): boolean {
  let node = flame;
  while (node.parent && node.parent !== center) node = node.parent;
  return callers.includes(node);
}

/** Those that lie beside a frame, itself among them. */
export function siblingsOf(sandwich: Sandwich, flame: Flame): Flame[] {
  if (flame === sandwich.center) return [flame];
  const isNextToCenter = flame.parent === sandwich.center;
  return isNextToCenter && isCaller(sandwich, flame) ? sandwich.callers : flame.parent!.inside;
}

/** The frame that an arrow key leads to: up is toward callers, down toward callees. */
export function sandwichNeighbor(sandwich: Sandwich, flame: Flame, key: string): Flame | null {
  const { center, callers } = sandwich;
  if (key !== "ArrowUp" && key !== "ArrowDown")
    return beside(flame, siblingsOf(sandwich, flame), key);
  if (flame === center) return (key === "ArrowUp" ? callers[0] : center.inside[0]) ?? null;
  const isOutward = (key === "ArrowUp") === isCaller(sandwich, flame);
  return isOutward ? (flame.inside[0] ?? null) : flame.parent;
}
