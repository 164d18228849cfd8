// One track with what is derived from it, made when first asked for.

import { Groups, type GroupingName } from "../data/groups";
import type { Track } from "../data/track";
import { Axis, type AxisKind } from "../layout/axis";
import { Lifetimes } from "../layout/moments";
import type { State } from "./store";

export class Scene {
  private readonly groupings = new Map<GroupingName, Groups>();
  private alone: Groups | null = null;
  private lives: Lifetimes | null = null;
  private readonly axes = new Map<AxisKind, Axis>();

  constructor(readonly track: Track) {}

  groups(by: GroupingName): Groups {
    let found = this.groupings.get(by);
    if (!found) this.groupings.set(by, (found = new Groups(this.track, by)));
    return found;
  }

  /** The groups as the picture shows them: all, or one alone. */
  shownGroups({ by, only }: State): Groups {
    if (only < 0 || only >= this.groups(by).groups.length) return this.groups(by);
    if (this.alone?.by !== by || this.alone.only !== only)
      this.alone = new Groups(this.track, by, only);
    return this.alone;
  }

  get lifetimes(): Lifetimes {
    return (this.lives ??= new Lifetimes(this.track));
  }

  axis(kind: AxisKind): Axis {
    const real = this.track.header.timed ? kind : "events";
    let found = this.axes.get(real);
    if (!found) this.axes.set(real, (found = new Axis(this.track, real)));
    return found;
  }

  /** What part of the axis is looked at. */
  window(state: State): [number, number] {
    const end = this.axis(state.axis).end;
    if (!state.window) return [0, end];
    return clamp(state.window[0], state.window[1], end, this.axis(state.axis).shortest);
  }

  /** The most that any line over the whole run reaches, with some air. */
  ceiling(state: State): number {
    const { onlyPeak } = this.shownGroups(state);
    if (onlyPeak) return onlyPeak * 1.05;
    const { counters, limit_bytes: limit, what_if: whatIf } = this.track.header;
    let most = counters.requested[1];
    for (const line of ["allocated", "active", "reserved"] as const)
      if (state.lines[line]) most = Math.max(most, counters[line][1]);
    for (const line of whatIf) most = Math.max(most, line.reserved);
    if (limit && limit < most * 1.35) most = Math.max(most, limit);
    return Math.max(1, most) * 1.05;
  }

  /**
   * Where the page opens: a few steps around the answer, or all of a short run. By time, no more than some lengths of the
   * answer's step: a first step may begin with a minute of loading.
   */
  opening(kind: AxisKind): [number, number] | null {
    const { track } = this;
    const steps = track.stepStarts;
    const axis = this.axis(kind);
    if (!steps.length) return null;
    const answer = Math.max(0, track.answer);
    const step = Math.max(0, track.stepOf(answer));
    const end = (at: number) => (at < steps.length ? axis.place(steps[at]) : axis.end);
    const first = Math.max(0, Math.min(step - 4, steps.length - 7));
    let from = axis.place(steps[first]);
    let to = end(first + 7);
    const lengths = Array.from(
      { length: Math.min(7, steps.length - first) },
      (_, i) => end(first + i + 1) - axis.place(steps[first + i]),
    );
    lengths.sort((a, b) => a - b);
    const usual = lengths[(lengths.length - 1) >> 1];
    if (axis.kind === "time" && usual > 0) {
      const at = axis.place(answer);
      from = Math.max(from, at - 6 * usual);
      to = Math.min(to, Math.max(at + 4 * usual, from + usual));
    }
    return to - from > axis.end * 0.9 ? null : [from, to];
  }
}

/** Where a run is worth looking at when it lies beside others: what comes before is loading. */
export function startOf(scene: Scene, kind: AxisKind): number {
  return scene.opening(kind)?.[0] ?? 0;
}

/** A window moved and narrowed so that it lies within [0, end]. */
export function clamp(from: number, to: number, end: number, shortest: number): [number, number] {
  const length = Math.min(end, Math.max(Math.min(shortest, end), to - from));
  const middle = (from + to) / 2;
  const start = to - from === length ? from : middle - length / 2;
  const low = Math.max(0, Math.min(start, end - length));
  return [low, low + length];
}
