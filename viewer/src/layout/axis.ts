// The horizontal axis: by time or by event. A place on it and an event turn into each other here and nowhere else.

import { upperBound } from "../data/search";
import type { Track } from "../data/track";

export type AxisKind = "time" | "events";

export class Axis {
  constructor(
    readonly track: Track,
    readonly kind: AxisKind,
  ) {}

  get end(): number {
    return this.kind === "time"
      ? Math.max(1, this.track.timeOf(this.track.events - 1)) * 1.0005
      : Math.max(1, this.track.events);
  }

  /** The last event that has happened at a place; -1 before the first. */
  event(at: number): number {
    return this.kind === "time"
      ? upperBound(this.track.clock, at) - 1
      : Math.min(this.track.events - 1, Math.floor(at));
  }

  /** Where an event is. */
  place(event: number): number {
    return this.kind === "time" ? this.track.timeOf(event) : Math.max(0, event);
  }

  /** The shortest stretch that can be looked at. */
  get shortest(): number {
    return this.kind === "time" ? 4 : 4;
  }
}
