// Memory over time: the stack of allocations, the allocator's lines over it, and what is under the pointer.

import { size } from "../draw/format";
import { Raster } from "../draw/raster";
import type { Surface } from "../draw/surface";
import { type Hit, hit, stack, type Stacked } from "../layout/stacked";
import type { Scene } from "../ui/scene";
import type { State } from "../ui/store";
import type { Theme } from "../ui/theme";
import { drawByteAxis, drawMarkers, drawStrips, drawTimeAxis, type Plot, plotOf } from "./frame";

export interface Line {
  name: string;
  colour: string;
  dash: number[];
  /** By column, bytes. */
  bytes: ArrayLike<number>;
}

export class Memory {
  private readonly raster = new Raster();
  stacked: Stacked | null = null;
  plot: Plot | null = null;
  private key = "";

  /** Lays out what is shown, unless that is what was laid out last. */
  layout(scene: Scene, state: State, width: number, height: number): Stacked {
    const plot = plotOf(scene, state, width, height);
    const [low, high] = state.bytes ?? [0, this.ceiling(scene, state)];
    const key = [state.track, state.by, scene.axis(state.axis).kind, plot.from, plot.to, low, high, plot.width, plot.height].join();
    this.plot = plot;
    if (this.stacked && key === this.key) return this.stacked;
    this.key = key;
    const window = { from: plot.from, to: plot.to, low, high, width: plot.width, height: plot.height };
    this.stacked = stack(scene.track, scene.groups(state.by), scene.lifetimes, scene.axis(state.axis), window);
    return this.stacked;
  }

  /** The most that any line over the whole run reaches, with some air. */
  ceiling(scene: Scene, state: State): number {
    const { counters, limit_bytes: limit, what_if: whatIf } = scene.track.header;
    let most = counters.requested[1];
    if (state.lines.reserved) most = Math.max(most, counters.reserved[1]);
    if (state.lines.active) most = Math.max(most, counters.active[1]);
    if (state.lines.allocated) most = Math.max(most, counters.allocated[1]);
    for (const line of whatIf) most = Math.max(most, line.reserved);
    if (limit && limit < most * 1.35) most = Math.max(most, limit);
    return Math.max(1, most) * 1.05;
  }

  draw(surface: Surface, scene: Scene, state: State, theme: Theme, marked: Uint8Array | null): void {
    const stacked = this.layout(scene, state, surface.width, surface.height);
    const plot = this.plot!;
    const { low, high } = stacked.window;
    drawByteAxis(surface, plot, low, high, theme);
    const image = this.raster.paint(stacked, scene.groups(state.by), { marked, paper: theme.paper });
    surface.pixels(image, plot.left, plot.top, plot.width, plot.height);
    surface.clip(plot.left, plot.top, plot.width, plot.height, () => {
      if (state.selected >= 0) outline(surface, plot, stacked, state.selected, theme);
      for (const line of this.lines(scene, state, theme)) drawLine(surface, plot, stacked, line, theme);
      drawLevels(surface, plot, scene, low, high, theme);
    });
    drawTimeAxis(surface, plot, scene, state, theme);
    drawStrips(surface, plot, scene, state, theme);
    drawMarkers(surface, plot, scene, state, theme);
  }

  lines(scene: Scene, state: State, theme: Theme): Line[] {
    const { track } = scene;
    const { event, first, last } = this.stacked!.moments;
    const found: Line[] = [];
    const highest = (curve: typeof track.allocated) =>
      Float64Array.from(event, (_, i) => curve.at(last[i]! > first[i]! ? curve.peak(first[i]!, last[i]! + 1) : first[i]!));
    if (state.lines.allocated) found.push({ name: "allocated", colour: theme.accent, dash: [2, 2], bytes: highest(track.allocated) });
    if (state.lines.active) found.push({ name: "active", colour: theme.accent, dash: [], bytes: highest(track.active) });
    if (state.lines.reserved) {
      const reserved = Float64Array.from(event, (_, i) => track.reserved.highest(first[i]!, last[i]! + 1));
      found.push({ name: "reserved", colour: theme.ink, dash: [], bytes: reserved });
    }
    return found;
  }

  hit(scene: Scene, state: State, x: number, y: number): Hit | null {
    const { stacked, plot } = this;
    if (!stacked || !plot || x < plot.left || x >= plot.left + plot.width || y < plot.top || y >= plot.top + plot.height) return null;
    const { low, high } = stacked.window;
    const bytes = low + ((plot.top + plot.height - y) / plot.height) * (high - low);
    return hit(scene.track, scene.groups(state.by), stacked, Math.floor(x - plot.left), bytes);
  }
}

function yOf(plot: Plot, stacked: Stacked, bytes: number): number {
  const { low, high } = stacked.window;
  return plot.top + plot.height - ((bytes - low) / (high - low)) * plot.height;
}

function drawLine(surface: Surface, plot: Plot, stacked: Stacked, line: Line, theme: Theme): void {
  const points: number[] = [];
  for (let i = 0; i < line.bytes.length; i++) {
    const y = yOf(plot, stacked, line.bytes[i]!);
    if (i && line.bytes[i] === line.bytes[i - 1] && i + 1 < line.bytes.length) continue;
    if (i) points.push(plot.left + i, points[points.length - 1]!);
    points.push(plot.left + i, y);
  }
  points.push(plot.left + line.bytes.length, points[points.length - 1] ?? 0);
  surface.line(points, theme.dark ? "rgb(0 0 0 / 0.55)" : "rgb(255 255 255 / 0.75)", 3.5);
  surface.line(points, line.colour, 1.5, line.dash);
}

/** Levels over the whole width: the limit, the device's memory, and what other settings would have reserved at most. */
function drawLevels(surface: Surface, plot: Plot, scene: Scene, low: number, high: number, theme: Theme): void {
  const { limit_bytes: limit, total_bytes: total, what_if: whatIf } = scene.track.header;
  const taken: number[] = [];
  const level = (bytes: number, label: string, colour: string, dash: number[]) => {
    if (bytes < low || bytes > high) return;
    const y = Math.round(plot.top + plot.height - ((bytes - low) / (high - low)) * plot.height) + 0.5;
    surface.line([plot.left, y, plot.left + plot.width, y], colour, 1.25, dash);
    let at = y - 8 < plot.top + 4 ? y + 9 : y - 8;
    while (taken.some((other) => Math.abs(other - at) < 13)) at += 13;
    taken.push(at);
    const wide = surface.measure(label, true);
    surface.rect(plot.left + 6, at - 7, wide + 8, 14, theme.dark ? "rgb(22 26 32 / 0.8)" : "rgb(255 255 255 / 0.8)");
    surface.text(label, plot.left + 10, at, colour, "left", true);
  };
  if (limit) level(limit, `limit ${size(limit)}`, theme.alarm, [7, 4]);
  else if (total) level(total, `the GPU's ${size(total)}`, theme.soft, [7, 4]);
  for (const line of whatIf) {
    const sure = line.confidence === "exact" ? "" : ` (${line.confidence})`;
    const died = line.oom === true ? ", runs out" : "";
    level(line.reserved, `${line.conf}: at most ${size(line.reserved)}${died}${sure}`, theme.ink, [2, 3]);
  }
}

/** The outline of one allocation where it is drawn by itself. */
function outline(surface: Surface, plot: Plot, stacked: Stacked, row: number, theme: Theme): void {
  for (const shape of shapesOf(stacked, row)) {
    const upper: number[] = [];
    const lower: number[] = [];
    for (const [column, from, to] of shape) {
      upper.push(plot.left + column, yOf(plot, stacked, to), plot.left + column + 1, yOf(plot, stacked, to));
      lower.unshift(plot.left + column + 1, yOf(plot, stacked, from), plot.left + column, yOf(plot, stacked, from));
    }
    surface.area([...upper, ...lower], theme.dark ? "rgb(255 255 255 / 0.25)" : "rgb(255 255 255 / 0.35)", theme.ink);
  }
}

/** Runs of columns in which an allocation is drawn by itself: [column, from bytes, to bytes]. */
export function shapesOf(stacked: Stacked, row: number): [number, number, number][][] {
  const { starts, what, top } = stacked;
  const shapes: [number, number, number][][] = [];
  let last = -2;
  for (let column = 0; column < stacked.window.width; column++) {
    for (let p = starts[column]!, end = starts[column + 1]!; p < end; p++) {
      if (what[p] !== row) continue;
      if (last !== column - 1) shapes.push([]);
      shapes[shapes.length - 1]!.push([column, p > starts[column]! ? top[p - 1]! : 0, top[p]!]);
      last = column;
      break;
    }
  }
  return shapes;
}
