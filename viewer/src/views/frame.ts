// What every picture over time has in common: its margins, its axes, the strips of steps and regions, its markers.

import { count, shortSize, size, time } from "../base/format";
import type { Surface } from "../draw/surface";
import { byteTicks, ticks } from "../draw/ticks";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";
import type { Theme } from "../state/theme";
import { lowerBound } from "../data/search";
import { type Band, callAt, drawCalls } from "./calls_band";

export interface Plot {
  left: number;
  top: number;
  width: number;
  height: number;
  from: number;
  to: number;
}

const LEFT = 74;
const RIGHT = 14;
const TOP = 24;
const AXIS = 20;
const STEP = 17;
const BAND = 14;
const MOST_BANDS = 3;

export function bandRows(scene: Scene): number {
  const { bands } = scene.track;
  let deepest = -1;
  for (let i = 0; i < bands.depth.length; i++) deepest = Math.max(deepest, bands.depth[i]);
  return Math.min(MOST_BANDS, deepest + 1);
}

export function plotOf(
  scene: Scene,
  state: State,
  width: number,
  height: number,
  strips = true,
): Plot {
  const below =
    AXIS +
    (strips && scene.track.calls?.n ? BAND : 0) +
    (strips && scene.track.stepStarts.length ? STEP : 0) +
    (strips ? bandRows(scene) * BAND : 0);
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

export function drawTimeAxis(
  surface: Surface,
  plot: Plot,
  scene: Scene,
  state: State,
  theme: Theme,
): void {
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

export function drawStrips(
  surface: Surface,
  plot: Plot,
  scene: Scene,
  state: State,
  theme: Theme,
): void {
  const { track } = scene;
  const axis = scene.axis(state.axis);
  let y = plot.top + plot.height + AXIS;
  const band = callsBand(scene, plot);
  if (band) {
    surface.text("collective", plot.left - 8, y + BAND / 2, theme.soft, "right");
    drawCalls(surface, band, track.calls!, axis, theme, state.call, (call, x, room) => {
      if (room > 32)
        surface.text(
          fit(surface, track.text(track.calls!.column.name[call]), room - 6),
          x + 3,
          y + BAND / 2,
          "#10151c",
        );
    });
    y += BAND;
  }
  const steps = track.stepStarts;
  if (steps.length) {
    surface.text("step", plot.left - 8, y + STEP / 2, theme.soft, "right");
    const first = Math.max(0, track.stepOf(axis.event(plot.from)));
    const last = Math.max(first, track.stepOf(axis.event(plot.to)));
    const every = Math.max(1, Math.ceil((last - first + 1) / (plot.width / 26)));
    for (let step = first - (first % every); step <= last; step += every) {
      const a = clampX(plot, xOf(plot, axis.place(steps[step] ?? 0)));
      const end = step + every < steps.length ? axis.place(steps[step + every]) : axis.end;
      const b = clampX(plot, xOf(plot, end));
      if (b - a < 1) continue;
      surface.rect(a, y + 2, Math.max(1, b - a - 1), STEP - 4, theme.faint);
      const label = every > 1 ? `${step}…` : String(step);
      if (surface.measure(label) < b - a - 4)
        surface.text(label, (a + b) / 2, y + STEP / 2, theme.soft, "center");
    }
    y += STEP;
  }
  const rows = bandRows(scene);
  if (rows) {
    drawBands(surface, plot, scene, state, theme, y);
    surface.text("region", plot.left - 8, y + BAND / 2, theme.soft, "right");
  }
}

/** Where the collectives are drawn; null where there are none. */
function callsBand(scene: Scene, plot: Plot): Band | null {
  if (!scene.track.calls?.n) return null;
  return {
    left: plot.left,
    width: plot.width,
    top: plot.top + plot.height + AXIS + 2,
    height: BAND - 4,
    from: plot.from,
    to: plot.to,
  };
}

/** The collective under a point of the strips; -1 where there is none. */
export function callUnder(scene: Scene, state: State, plot: Plot, x: number, y: number): number {
  const band = callsBand(scene, plot);
  if (
    !band ||
    y < band.top - 2 ||
    y > band.top + band.height + 2 ||
    x < plot.left - 4 ||
    x > plot.left + plot.width + 4
  )
    return -1;
  return callAt(band, scene.track.calls!, scene.axis(state.axis), x);
}

/** Regions as they nest; those under a pixel are left to the zoom, and neighbours that touch become one bar. */
function drawBands(
  surface: Surface,
  plot: Plot,
  scene: Scene,
  state: State,
  theme: Theme,
  top: number,
): void {
  const { bands } = scene.track;
  const axis = scene.axis(state.axis);
  const place = (us: number) => (axis.kind === "time" ? us : lowerBound(scene.track.clock, us));
  const reached = [-1, -1, -1];
  for (let i = 0; i < bands.begin.length; i++) {
    const depth = bands.depth[i];
    if (depth >= MOST_BANDS) continue;
    const a = clampX(plot, xOf(plot, place(bands.begin[i])));
    const b = clampX(plot, xOf(plot, place(bands.end[i])));
    if (b <= plot.left || a >= plot.left + plot.width || b - a < 0.4 || b < reached[depth] + 0.7)
      continue;
    const x = Math.max(a, reached[depth]);
    reached[depth] = b;
    const y = top + depth * BAND;
    surface.rect(x, y + 1, Math.max(0.7, b - x - 0.5), BAND - 2, theme.faint);
    const room = Math.floor(b - x - 8);
    if (room > 24)
      surface.text(
        fit(surface, scene.track.text(bands.name[i]), room),
        x + 4,
        y + BAND / 2,
        theme.soft,
      );
  }
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

export function drawMarkers(
  surface: Surface,
  plot: Plot,
  scene: Scene,
  state: State,
  theme: Theme,
): void {
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

const clampX = (plot: Plot, x: number): number =>
  Math.min(plot.left + plot.width, Math.max(plot.left, x));
