// The band of a rank's collectives: one bar a call, those that never finished in the colour of alarm up to the end.

import type { Calls, Places } from "../data/calls";
import type { Axis } from "../layout/axis";
import type { Surface } from "../draw/surface";
import type { Theme } from "../state/theme";

/** Where a band lies, and which part of the axis it shows. */
export interface Band {
  left: number;
  width: number;
  top: number;
  height: number;
  from: number;
  to: number;
}

const LEAST = 1.6;
const NEAR = 4;

const xOf = (band: Band, place: number): number =>
  band.left + Math.min(1, Math.max(0, (place - band.from) / (band.to - band.from))) * band.width;

/** Draws the calls; `label` writes a name into a bar that has room for it. */
export function drawCalls(
  surface: Surface,
  band: Band,
  calls: Calls,
  axis: Axis,
  theme: Theme,
  chosen: number,
  label?: (call: number, x: number, room: number) => void,
): void {
  const { from, to } = calls.places(axis);
  const [first, end] = calls.between(axis, band.from, band.to);
  const flagged: number[] = [];
  let reached = -1;
  for (let i = first; i < end; i++) {
    if (calls.flagged[i]) flagged.push(i);
    if (to[i] < band.from || calls.flagged[i]) continue;
    const a = xOf(band, from[i]);
    const b = Math.max(a + LEAST, xOf(band, to[i]));
    if (b < reached + 0.7) continue;
    const x = Math.max(a, reached);
    reached = b;
    surface.rect(
      x,
      band.top,
      Math.max(0.7, b - x - (b - x > 3 ? 0.5 : 0)),
      band.height,
      theme.call,
    );
    label?.(i, x, b - x);
  }
  // Before the window, too: what never finished goes on.
  for (const i of calls.open) {
    if (i >= end) break;
    const a = xOf(band, from[i]);
    surface.rect(a, band.top + band.height / 2 - 1, band.left + band.width - a, 2, theme.alarm);
  }
  for (const i of flagged) {
    const a = xOf(band, from[i]);
    if (to[i] >= band.from)
      surface.rect(a - 0.5, band.top, Math.max(3, xOf(band, to[i]) - a), band.height, theme.alarm);
  }
  frameChosen(surface, band, { from, to }, theme, chosen);
}

/** A frame around the call that is chosen, where it is in sight. */
function frameChosen(
  surface: Surface,
  band: Band,
  { from, to }: Pick<Places, "from" | "to">,
  theme: Theme,
  chosen: number,
): void {
  if (chosen < 0 || chosen >= from.length || from[chosen] > band.to || to[chosen] < band.from)
    return;
  const a = xOf(band, from[chosen]) - 2;
  const b = Math.max(a + 6, xOf(band, to[chosen]) + 2);
  surface.line(
    [
      a,
      band.top - 1,
      b,
      band.top - 1,
      b,
      band.top + band.height + 1,
      a,
      band.top + band.height + 1,
      a,
      band.top - 2,
    ],
    theme.ink,
    1.5,
  );
}

/** The call nearest to a point of the band; -1 where there is none. */
export function callAt(band: Band, calls: Calls, axis: Axis, x: number): number {
  const { from, to } = calls.places(axis);
  const room = (NEAR / band.width) * (band.to - band.from);
  const at = band.from + ((x - band.left) / band.width) * (band.to - band.from);
  const [first, end] = calls.between(axis, at - room, at + room);
  let best = -1;
  let least = Infinity;
  for (let i = first; i < end; i++) {
    const away = at < from[i] ? from[i] - at : Math.max(0, at - to[i]);
    // Of several under the pointer, those that did not go well come first, then the shortest.
    const worth = away + (to[i] - from[i]) * 1e-6 - calls.flagged[i] * room;
    if (away <= room && worth < least) [best, least] = [i, worth];
  }
  if (best >= 0) return best;
  const open = calls.open.filter((call) => from[call] <= at);
  return open[open.length - 1] ?? -1;
}
