// What every picture over time has in common: its margins, its axes, the strips of steps and regions, its markers.

import { count, shortSize, size, time } from "../base/format";
import type { Surface } from "../draw/surface";
import { byteTicks, ticks } from "../draw/ticks";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";
import type { Theme } from "../state/theme";

export interface Plot {
  left: number;
  top: number;
  width: number;
  height: number;
  from: number;
  to: number;
}

/** What a picture is drawn with, and of. */
export interface Drawing {
  surface: Surface;
  plot: Plot;
  scene: Scene;
  state: State;
  theme: Theme;
}

const LEFT = 74;
const RIGHT = 14;
const TOP = 24;
const AXIS = 20;

export function plotOf(
  scene: Scene,
  state: State,
  width: number,
  height: number,
  /** How high what lies below the axis is. */
  strips = 0,
): Plot {
  const below = AXIS + strips;
  const [from, to] = scene.window(state);
  return {
    left: LEFT,
    top: TOP,
    width: Math.max(20, Math.floor(width - LEFT - RIGHT)),
    height: Math.max(20, Math.floor(height - TOP - below - 4)),
    from,
    to,
  };
}

export const xOf = (plot: Plot, place: number): number =>
  plot.left + ((place - plot.from) / (plot.to - plot.from)) * plot.width;

export function drawByteAxis(
  surface: Surface,
  plot: Plot,
  low: number,
  high: number,
  theme: Theme,
): void {
  for (const bytes of byteTicks(low, high, plot.height / 44)) {
    const y = plot.top + plot.height - ((bytes - low) / (high - low)) * plot.height;
    surface.rect(plot.left, Math.round(y), plot.width, 1, theme.grid);
    surface.text(shortSize(bytes), plot.left - 8, y, theme.soft, "right");
  }
}

export function drawTimeAxis({ surface, plot, scene, state, theme }: Drawing): void {
  const byTime = scene.axis(state.axis).kind === "time";
  const y = plot.top + plot.height;
  surface.rect(plot.left, y, plot.width, 1, theme.faint);
  const { step, at } = ticks(plot.from, plot.to, plot.width / 95, byTime ? 0 : 1);
  for (const place of at) {
    const x = xOf(plot, place);
    surface.rect(Math.round(x), y, 1, 4, theme.soft);
    const label = byTime ? time(place, step) : count(place);
    if (x > plot.left + 14 && x < plot.left + plot.width - 14)
      surface.text(label, x, y + 12, theme.soft, "center");
  }
  surface.text(byTime ? "time" : "event", plot.left - 8, y + 12, theme.soft, "right");
}

/** The text, or as much of it as there is room for. */
export function fit(surface: Surface, text: string, room: number, bold = false): string {
  if (surface.measure(text, bold) <= room) return text;
  let length = Math.max(1, Math.floor((text.length * room) / surface.measure(text, bold)));
  while (length > 1 && surface.measure(`${text.slice(0, length)}…`, bold) > room) length--;
  return length > 1 ? `${text.slice(0, length)}…` : "";
}

export interface Marker {
  event: number;
  label: string;
  kind: "peak" | "failure" | "cursor";
}

export function markersOf(scene: Scene, state: State): Marker[] {
  const { header } = scene.track;
  const [, peakBytes, peakEvent] = header.counters.requested;
  const found: Marker[] = [{ event: peakEvent, label: `peak ${size(peakBytes)}`, kind: "peak" }];
  for (const failure of header.failures) {
    const label = header.failures.length > 4 ? "failed" : `failed: ${size(failure.bytes)} wanted`;
    found.push({ event: failure.event, label, kind: "failure" });
  }
  found.push({ event: state.cursor, label: "", kind: "cursor" });
  return found;
}

export function drawMarkers({ surface, plot, scene, state, theme }: Drawing): void {
  const axis = scene.axis(state.axis);
  let taken: [number, number][] = [];
  const rank = { failure: 0, peak: 1, cursor: 2 };
  const all = markersOf(scene, state);
  const known = new Set(
    all.filter((marker) => marker.kind === "failure").map((marker) => marker.event),
  );
  for (const marker of all
    .filter((one) => one.kind !== "cursor" || !known.has(one.event))
    .sort((a, b) => rank[a.kind] - rank[b.kind])) {
    const x = xOf(plot, axis.place(marker.event) + (axis.kind === "events" ? 0.5 : 0));
    if (x < plot.left - 1 || x > plot.left + plot.width + 1) continue;
    const colour =
      marker.kind === "failure" ? theme.alarm : marker.kind === "peak" ? theme.ink : theme.accent;
    surface.line(
      [x, plot.top - 4, x, plot.top + plot.height],
      colour,
      marker.kind === "peak" ? 1 : 1.5,
      marker.kind === "peak" ? [3, 3] : [],
    );
    if (!marker.label) continue;
    const wide = surface.measure(marker.label, true);
    const start = Math.min(Math.max(plot.left, x - wide / 2), plot.left + plot.width - wide);
    if (taken.some(([a, b]) => start < b + 8 && start + wide > a - 8)) continue;
    taken = [...taken, [start, start + wide]];
    surface.text(marker.label, start, plot.top - 13, colour, "left", true);
  }
}

export const clampX = (plot: Plot, x: number): number =>
  Math.min(plot.left + plot.width, Math.max(plot.left, x));
