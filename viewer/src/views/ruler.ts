// The range that is asked about, as a ruler over the picture; and marks where the cache was flushed.

import { css } from "../base/palette";
import { count, size, time } from "../base/format";
import { type Flush, flushesOf } from "../data/flushes";
import type { Track } from "../data/track";
import type { Axis } from "../layout/axis";
import type { Host } from "../state/pane";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";
import { clampX, type Drawing, type Plot, xOf } from "./frame";
import { stepStretch } from "./strips";

/** How long a range is, and by how much the memory changes in it. */
export function rangeWords(track: Track, [first, last]: [number, number]): string {
  const change = track.requested.at(last) - track.requested.at(first - 1);
  const bytes = `${change < 0 ? "−" : "+"}${size(Math.abs(change))}`;
  const events = `${count(last - first + 1)} event${last > first ? "s" : ""}`;
  const long = track.header.timed ? `${time(track.timeOf(last) - track.timeOf(first))}, ` : "";
  return `${long}${events}, ${bytes}`;
}

/** `Step 3`, or the events of a range that is no step. */
export function rangeName(scene: Scene, [first, last]: [number, number]): string {
  const step = scene.track.stepOf(first);
  const stretch = stepStretch(scene, step);
  if (stretch && stretch.first === first && stretch.last === last) return stretch.name;
  return `Events ${count(first)} to ${count(last)}`;
}

/** Asks about the events between two places of the axis. */
export function askBetween(host: Host, from: number, to: number): void {
  const { track } = host.scene();
  const axis = host.scene().axis(host.store.state.axis);
  const first = Math.max(0, axis.event(from) + (axis.kind === "time" ? 1 : 0));
  const last = Math.min(track.events - 1, axis.event(to));
  if (track.events && last >= first) host.store.set({ range: [first, last] });
}

/** Where the events of a range begin and end on the axis. */
export function placesOf(axis: Axis, [first, last]: [number, number]): [number, number] {
  const from = axis.place(first);
  const to = axis.kind === "events" ? last + 1 : axis.place(last);
  return [from, Math.max(to, from)];
}

export function drawRange({ surface, plot, scene, state, theme }: Drawing): void {
  if (!state.range) return;
  const [from, to] = placesOf(scene.axis(state.axis), state.range);
  const a = clampX(plot, xOf(plot, from));
  const b = clampX(plot, xOf(plot, to));
  if (b <= plot.left || a >= plot.left + plot.width) return;
  const wash = theme.dark ? "rgb(125 178 255 / 0.14)" : "rgb(31 95 191 / 0.10)";
  surface.rect(a, plot.top, Math.max(1, b - a), plot.height, wash);
  for (const x of [a, b])
    surface.line([x, plot.top, x, plot.top + plot.height], theme.accent, 1.25);
  const y = plot.top + 10;
  surface.line([a, y, b, y], theme.accent, 1);
  const words = `${rangeName(scene, state.range)}: ${rangeWords(scene.track, state.range)}`;
  const wide = surface.measure(words, true) + 10;
  const right = plot.left + plot.width - wide;
  const x = Math.max(plot.left, Math.min((a + b - wide) / 2, right));
  surface.rect(x, y - 8, wide, 16, css(theme.paper, 0.88));
  surface.text(words, x + 5, y, theme.accent, "left", true);
}

const flushesOfTrack = new WeakMap<Track, Flush[]>();

export function flushes(track: Track): Flush[] {
  let made = flushesOfTrack.get(track);
  if (!made) flushesOfTrack.set(track, (made = flushesOf(track)));
  return made;
}

/** Small triangles at the upper edge: memory that was given back to the GPU; filled where a request was tried again. */
export function drawFlushes({ surface, plot, scene, state, theme }: Drawing): void {
  const axis = scene.axis(state.axis);
  let reached = -Infinity;
  for (const flush of flushes(scene.track)) {
    const x = xOf(plot, axis.place(flush.first));
    if (x < plot.left || x > plot.left + plot.width || x < reached) continue;
    reached = x + 5;
    const colour = flush.isRetry ? theme.alarm : theme.soft;
    surface.area([x - 4, plot.top - 6, x + 4, plot.top - 6, x, plot.top], colour);
  }
}

/** The mark under a point of the upper edge; null where there is none. */
export function flushUnder(
  scene: Scene,
  state: State,
  plot: Plot,
  x: number,
  y: number,
): Flush | null {
  if (y < plot.top - 10 || y > plot.top + 2) return null;
  const axis = scene.axis(state.axis);
  const near = flushes(scene.track).filter(
    (flush) => Math.abs(xOf(plot, axis.place(flush.first)) - x) < 5,
  );
  return near[0] ?? null;
}

export function flushWords({ bytes, segments, isRetry, first }: Flush): string {
  const words = `${size(bytes)} in ${count(segments)} segment${segments === 1 ? "" : "s"} given back to the GPU at event ${count(first)}`;
  return isRetry ? `${words}; then a request was tried again and got a new segment` : words;
}
