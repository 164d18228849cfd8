// Memory over time: the stack of allocations, the allocator's lines over it, and what is under the pointer.

import type { Groups } from "../data/groups";
import type { WhatIfLine } from "../data/what_if";
import { size } from "../base/format";
import { Raster } from "../draw/raster";
import type { Surface } from "../draw/surface";
import { type Hit, hit, stack, type Stacked } from "../layout/stacked";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";
import type { Theme } from "../state/theme";
import { drawByteAxis, drawMarkers, drawTimeAxis, type Plot, plotOf, xOf } from "./frame";
import { drawFlushes, drawRange } from "./ruler";
import { drawStrips, stripsHeight } from "./strips";
import { drawDeath, endLabel, isOff, Labels, type Line, whatIfLines } from "./what_if_lines";

/** Where the line of a replayed setting ends within the picture. */
interface End {
  line: WhatIfLine;
  colour: string;
  dies: boolean;
  x: number;
  y: number;
}

export class Memory {
  private readonly raster = new Raster();
  stacked: Stacked | null = null;
  plot: Plot | null = null;
  private key = "";

  /** Lays out what is shown, unless that is what was laid out last. */
  layout(scene: Scene, state: State, width: number, height: number): Stacked {
    const plot = plotOf(scene, state, width, height, stripsHeight(scene));
    const [low, high] = state.bytes ?? [0, scene.ceiling(state)];
    const key = [
      state.track,
      state.by,
      state.only,
      scene.axis(state.axis).kind,
      plot.from,
      plot.to,
      low,
      high,
      plot.width,
      plot.height,
    ].join();
    this.plot = plot;
    if (this.stacked && key === this.key) return this.stacked;
    this.key = key;
    const window = {
      from: plot.from,
      to: plot.to,
      low,
      high,
      width: plot.width,
      height: plot.height,
    };
    this.stacked = stack(
      scene.track,
      scene.shownGroups(state),
      scene.lifetimes,
      scene.axis(state.axis),
      window,
    );
    return this.stacked;
  }

  draw(
    surface: Surface,
    scene: Scene,
    state: State,
    theme: Theme,
    marked: Uint8Array | null,
  ): void {
    const stacked = this.layout(scene, state, surface.width, surface.height);
    const plot = this.plot!;
    const drawing = { surface, plot, scene, state, theme };
    const { low, high } = stacked.window;
    drawByteAxis(surface, plot, low, high, theme);
    const image = this.raster.paint(stacked, scene.shownGroups(state), {
      marked,
      isWhole: this.wholeGroups(scene.shownGroups(state), marked),
      paper: theme.paper,
    });
    surface.pixels(image, plot.left, plot.top, plot.width, plot.height);
    const whatIf = whatIfLines(scene.track, stacked.moments, theme, state.off);
    const ends = this.ends(scene, state, whatIf);
    const reserved = state.lines.reserved && !isAlone(state) ? this.reserved(scene) : null;
    surface.clip(plot.left, plot.top, plot.width, plot.height, () => {
      if (state.selected >= 0) outline(surface, plot, stacked, state.selected, theme);
      const own = isAlone(state) ? [] : this.lines(scene, state, theme, reserved);
      drawLines(surface, plot, stacked, isAlone(state) ? [] : [...own, ...whatIf], theme);
      drawRange(drawing);
      const labels = new Labels(surface, plot, theme);
      if (reserved) this.labelReserved(labels, scene, reserved, theme);
      drawLevels(surface, plot, scene, low, high, theme, labels);
      for (const end of ends)
        labels.put(
          endLabel(end.line, end.dies),
          end.x - (end.dies ? 8 : 4),
          end.y,
          end.colour,
          "right",
        );
    });
    drawTimeAxis(drawing);
    drawStrips(drawing);
    drawFlushes(drawing);
    drawMarkers(drawing);
    for (const { dies, x, y } of ends) if (dies) drawDeath(surface, x, y, theme);
  }

  private whole: { groups: Groups; marked: Uint8Array; isWhole: Uint8Array } | null = null;

  /** By group, whether all of its allocations are marked. */
  private wholeGroups(groups: Groups, marked: Uint8Array | null): Uint8Array | null {
    if (!marked) return null;
    if (this.whole?.groups !== groups || this.whole.marked !== marked) {
      const isWhole = new Uint8Array(groups.groups.length).fill(1);
      for (let row = 0; row < marked.length; row++) if (!marked[row]) isWhole[groups.of[row]] = 0;
      this.whole = { groups, marked, isWhole };
    }
    return this.whole.isWhole;
  }

  lines(scene: Scene, state: State, theme: Theme, reserved: Float64Array | null): Line[] {
    const { track } = scene;
    const { event, first, last } = this.stacked!.moments;
    const found: Line[] = [];
    const highest = (curve: typeof track.allocated) =>
      Float64Array.from(event, (_, i) =>
        curve.at(last[i] > first[i] ? curve.peak(first[i], last[i] + 1) : first[i]),
      );
    if (state.lines.allocated)
      found.push({ colour: theme.accent, dash: [2, 2], bytes: highest(track.allocated) });
    if (state.lines.active)
      found.push({ colour: theme.accent, dash: [], bytes: highest(track.active) });
    if (reserved) found.push({ colour: theme.ink, dash: [], bytes: reserved });
    return found;
  }

  /** By column, the most reserved bytes. */
  private reserved({ track }: Scene): Float64Array {
    const { event, first, last } = this.stacked!.moments;
    return Float64Array.from(event, (_, i) => track.reserved.highest(first[i], last[i] + 1));
  }

  /** Names the reserved line where it is highest, and the gap below it where that is widest. */
  private labelReserved(labels: Labels, scene: Scene, reserved: Float64Array, theme: Theme): void {
    const stacked = this.stacked!;
    const plot = this.plot!;
    const y = (bytes: number) => yOf(plot, stacked, bytes);
    const isInside = (at: number) => at > plot.top + 10 && at < plot.top + plot.height - 10;
    const side = (column: number) => (column > plot.width / 2 ? "right" : "left");
    const highest = reserved.indexOf(Math.max(...reserved));
    const top = y(reserved[highest]);
    const reservedWords = `reserved ${size(reserved[highest])}`;
    if (top > plot.top && top < plot.top + plot.height)
      labels.put(reservedWords, plot.left + highest, top, theme.ink, side(highest));
    const free = reserved.map(
      (bytes, i) => bytes - scene.track.active.at(stacked.moments.event[i]),
    );
    const widest = free.indexOf(Math.max(...free));
    const middle = y(reserved[widest] - free[widest] / 2);
    const room = y(reserved[widest] - free[widest]) - y(reserved[widest]);
    const freeWords = `${size(free[widest])} reserved and free`;
    if (room > 34 && isInside(middle))
      labels.put(freeWords, plot.left + widest, middle + 10, theme.soft, side(widest));
  }

  /** Where the lines of replayed settings end within the picture, the highest first: at its edge, or where the program dies. */
  private ends(scene: Scene, state: State, lines: Line[]): End[] {
    const { track } = scene;
    const stacked = this.stacked!;
    const plot = this.plot!;
    const axis = scene.axis(state.axis);
    const found = lines.map(({ bytes, colour }, i) => {
      const line = track.whatIf[i];
      const { died } = line.header;
      const right = plot.left + plot.width;
      const x =
        died === null ? Infinity : xOf(plot, axis.place(died) + (axis.kind === "events" ? 0.5 : 0));
      const dies = x <= right;
      return {
        line,
        colour,
        dies,
        x: dies ? x : right,
        y: yOf(plot, stacked, bytes[bytes.length - 1] ?? -1),
      };
    });
    return found
      .filter((_, i) => !isOff(state.off, i))
      .filter(({ y }) => y >= plot.top && y <= plot.top + plot.height)
      .sort((a, b) => a.y - b.y);
  }

  hit(scene: Scene, state: State, x: number, y: number): Hit | null {
    const { stacked, plot } = this;
    if (
      !stacked ||
      !plot ||
      x < plot.left ||
      x >= plot.left + plot.width ||
      y < plot.top ||
      y >= plot.top + plot.height
    )
      return null;
    const { low, high } = stacked.window;
    const bytes = low + ((plot.top + plot.height - y) / plot.height) * (high - low);
    return hit(scene.track, scene.shownGroups(state), stacked, Math.floor(x - plot.left), bytes);
  }
}

/** Whether one group is shown alone: the allocator's lines are about all of them. */
const isAlone = (state: State): boolean => state.only >= 0;

function yOf(plot: Plot, stacked: Stacked, bytes: number): number {
  const { low, high } = stacked.window;
  return plot.top + plot.height - ((bytes - low) / (high - low)) * plot.height;
}

/** All lines, over a pale edge of each: what lies under a dashed line shows through it. */
function drawLines(
  surface: Surface,
  plot: Plot,
  stacked: Stacked,
  lines: Line[],
  theme: Theme,
): void {
  const all = lines.map((line) => pointsOf(plot, stacked, line.bytes));
  for (const points of all)
    surface.line(points, theme.dark ? "rgb(0 0 0 / 0.55)" : "rgb(255 255 255 / 0.75)", 3.5);
  all.forEach((points, i) => surface.line(points, lines[i].colour, 1.5, lines[i].dash));
}

function pointsOf(plot: Plot, stacked: Stacked, bytes: ArrayLike<number>): number[] {
  const points: number[] = [];
  for (let i = 0; i < bytes.length; i++) {
    const y = yOf(plot, stacked, bytes[i]);
    if (i && bytes[i] === bytes[i - 1] && i + 1 < bytes.length) continue;
    if (i) points.push(plot.left + i, points[points.length - 1]);
    points.push(plot.left + i, y);
  }
  if (bytes.length) points.push(plot.left + bytes.length, points[points.length - 1]);
  return points;
}

/** Levels over the whole width: the limit, or the device's memory. */
function drawLevels(
  surface: Surface,
  plot: Plot,
  scene: Scene,
  low: number,
  high: number,
  theme: Theme,
  labels: Labels,
): void {
  const { limit_bytes: limit, total_bytes: total } = scene.track.header;
  const level = (bytes: number, label: string, colour: string, dash: number[]) => {
    if (bytes < low || bytes > high) return;
    const y =
      Math.round(plot.top + plot.height - ((bytes - low) / (high - low)) * plot.height) + 0.5;
    surface.line([plot.left, y, plot.left + plot.width, y], colour, 1.25, dash);
    labels.put(label, plot.left + 6, y, colour, "left");
  };
  if (limit) level(limit, `limit ${size(limit)}`, theme.alarm, [7, 4]);
  else if (total) level(total, `the GPU's ${size(total)}`, theme.soft, [7, 4]);
}

/** The outline of one allocation where it is drawn by itself. */
function outline(surface: Surface, plot: Plot, stacked: Stacked, row: number, theme: Theme): void {
  for (const shape of shapesOf(stacked, row)) {
    const upper: number[] = [];
    const lower: number[] = [];
    for (const [column, from, to] of shape) {
      upper.push(
        plot.left + column,
        yOf(plot, stacked, to),
        plot.left + column + 1,
        yOf(plot, stacked, to),
      );
      lower.unshift(
        plot.left + column + 1,
        yOf(plot, stacked, from),
        plot.left + column,
        yOf(plot, stacked, from),
      );
    }
    surface.area(
      [...upper, ...lower],
      theme.dark ? "rgb(255 255 255 / 0.25)" : "rgb(255 255 255 / 0.35)",
      theme.ink,
    );
  }
}

/** Runs of columns in which an allocation is drawn by itself: [column, from bytes, to bytes]. */
export function shapesOf(stacked: Stacked, row: number): [number, number, number][][] {
  const { starts, what, top } = stacked;
  const shapes: [number, number, number][][] = [];
  let last = -2;
  for (let column = 0; column < stacked.window.width; column++) {
    for (let p = starts[column], end = starts[column + 1]; p < end; p++) {
      if (what[p] !== row) continue;
      if (last !== column - 1) shapes.push([]);
      shapes[shapes.length - 1].push([column, p > starts[column] ? top[p - 1] : 0, top[p]]);
      last = column;
      break;
    }
  }
  return shapes;
}
