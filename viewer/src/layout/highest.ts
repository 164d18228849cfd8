// A whole run in a few hundred columns: the highest requested and reserved bytes of each.

import type { Axis } from "./axis";
import type { StepAxis } from "./step_axis";

export interface Highest {
  requested: Float64Array;
  reserved: Float64Array;
}

/** The columns lie between two places of the axis; past the run's own end there are zeros. */
export function highestOf(axis: Axis | StepAxis, width: number, from = 0, to = axis.end): Highest {
  const { track } = axis;
  const requested = new Float64Array(width);
  const reserved = new Float64Array(width);
  let a = from > 0 ? axis.event(from) : -1;
  for (let i = 0; i < width && from + ((to - from) * i) / width < axis.end; i++) {
    const b = Math.max(a, axis.event(from + ((to - from) * (i + 1)) / width));
    requested[i] = track.requested.at(b > a ? track.requested.peak(a, b + 1) : a);
    reserved[i] = track.reserved.highest(a, b + 1);
    a = b;
  }
  return { requested, reserved };
}
