// Steps as an axis: a place is a step's number and how far in it, so that the same work of two runs lies at the same place.

import type { Track } from "../data/track";

export class StepAxis {
  readonly kind = "steps";

  constructor(readonly track: Track) {}

  /** What comes before the first step is one step long. */
  get end(): number {
    return this.track.stepStarts.length + 1;
  }

  event(at: number): number {
    const { stepStarts, events } = this.track;
    const number = Math.floor(at) - 1;
    const first = number < 0 ? 0 : (stepStarts[number] ?? events);
    const next = stepStarts[number + 1] ?? events;
    return Math.min(events - 1, Math.floor(first + (at - Math.floor(at)) * (next - first)));
  }
}
