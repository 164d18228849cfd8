// The strips below a picture of time: collectives, steps, phases, regions. Each of them can be clicked.

import { css, phase as phaseColours, OTHER_COLOUR } from "../base/palette";
import { time } from "../base/format";
import { lowerBound, upperBound } from "../data/search";
import type { Axis } from "../layout/axis";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";
import { type Band, callAt, drawCalls } from "./calls_band";
import { clampX, type Drawing, fit, type Plot, xOf } from "./frame";

const AXIS = 20;
const STEP = 17;
const PHASE = 12;
const BAND = 14;
const MOST_BANDS = 3;

type Kind = "collective" | "step" | "phase" | "region";
const HEIGHTS: Record<Kind, number> = {
  collective: BAND,
  step: STEP,
  phase: PHASE,
  region: BAND,
};

/** Some events that a strip names: a step, a stretch of one phase, a region of the program's. */
export interface Stretch {
  name: string;
  first: number;
  last: number;
}

/** Which strips a recording has, from the top, and how many rows of each. */
function rowsOf(scene: Scene): [Kind, number][] {
  const { track } = scene;
  const rows: [Kind, number][] = [
    ["collective", track.calls?.n ? 1 : 0],
    ["step", track.stepStarts.length ? 1 : 0],
    ["phase", hasPhases(scene) ? 1 : 0],
    ["region", regionRows(scene)],
  ];
  return rows.filter(([, count]) => count > 0);
}

export const stripsHeight = (scene: Scene): number =>
  rowsOf(scene).reduce((sum, [kind, count]) => sum + count * HEIGHTS[kind], 0);

const phasesKnown = new WeakMap<Scene, boolean>();

/** Whether the recording tells two phases apart, or more. */
function hasPhases(scene: Scene): boolean {
  let tellsPhases = phasesKnown.get(scene);
  if (tellsPhases === undefined) {
    const { phase } = scene.track.row;
    tellsPhases = phase.some((number) => number !== phase[0]);
    phasesKnown.set(scene, tellsPhases);
  }
  return tellsPhases;
}

const regionRowsOf = new WeakMap<Scene, number>();

function regionRows(scene: Scene): number {
  let rows = regionRowsOf.get(scene);
  if (rows === undefined) {
    let deepest = -1;
    for (const depth of scene.track.bands.depth) deepest = Math.max(deepest, depth);
    rows = Math.min(MOST_BANDS, deepest + 1);
    regionRowsOf.set(scene, rows);
  }
  return rows;
}

/** Where each kind of strip begins, below the axis. */
function topsOf(scene: Scene, plot: Plot): Map<Kind, number> {
  const tops = new Map<Kind, number>();
  let y = plot.top + plot.height + AXIS;
  for (const [kind, count] of rowsOf(scene)) {
    tops.set(kind, y);
    y += count * HEIGHTS[kind];
  }
  return tops;
}

export function drawStrips(drawing: Drawing): void {
  const { surface, plot, scene, theme } = drawing;
  for (const [kind, top] of topsOf(scene, plot)) {
    const name = kind === "step" ? scene.track.header.steps.name : kind;
    surface.text(name, plot.left - 8, top + HEIGHTS[kind] / 2, theme.soft, "right");
    DRAWERS[kind](drawing, top);
  }
}

type Drawer = (drawing: Drawing, top: number) => void;

const DRAWERS: Record<Kind, Drawer> = {
  collective: drawCollectives,
  step: drawSteps,
  phase: drawPhases,
  region: drawRegions,
};

function drawCollectives({ surface, plot, scene, state, theme }: Drawing, top: number): void {
  const { track } = scene;
  const calls = track.calls!;
  const axis = scene.axis(state.axis);
  drawCalls(surface, callsBand(plot, top), calls, axis, theme, state.call, (call, x, room) => {
    if (room <= 32) return;
    const name = fit(surface, track.text(calls.column.name[call]), room - 6);
    surface.text(name, x + 3, top + BAND / 2, "#10151c");
  });
}

const callsBand = (plot: Plot, top: number): Band => ({
  left: plot.left,
  width: plot.width,
  top: top + 2,
  height: BAND - 4,
  from: plot.from,
  to: plot.to,
});

function drawSteps({ surface, plot, scene, state, theme }: Drawing, top: number): void {
  const { track } = scene;
  const axis = scene.axis(state.axis);
  const steps = track.stepStarts;
  const first = Math.max(0, track.stepOf(axis.event(plot.from)));
  const last = Math.max(first, track.stepOf(axis.event(plot.to)));
  const every = Math.max(1, Math.ceil((last - first + 1) / (plot.width / 26)));
  for (let step = first - (first % every); step <= last; step += every) {
    const a = clampX(plot, xOf(plot, axis.place(steps[step] ?? 0)));
    const end = step + every < steps.length ? axis.place(steps[step + every]) : axis.end;
    const b = clampX(plot, xOf(plot, end));
    if (b - a < 1) continue;
    surface.rect(a, top + 2, Math.max(1, b - a - 1), STEP - 4, theme.faint);
    const label = every > 1 ? `${step}…` : String(step);
    if (surface.measure(label) < b - a - 4)
      surface.text(label, (a + b) / 2, top + STEP / 2, theme.soft, "center");
  }
}

/** By pixel, the phase of the last request: runs of one phase are one bar. */
function drawPhases({ surface, plot, scene, state, theme }: Drawing, top: number): void {
  const { track } = scene;
  const axis = scene.axis(state.axis);
  let from = 0;
  let before = -1;
  const flush = (to: number): void => {
    if (before < 0 || to <= from) return;
    const name = track.header.phases[before];
    const colour = css(phaseColours[name] ?? OTHER_COLOUR);
    surface.rect(plot.left + from, top + 2, Math.max(0.7, to - from - 0.5), PHASE - 4, colour);
    const wide = surface.measure(name);
    if (to - from > wide + 12) {
      surface.rect(plot.left + from + 3, top + 1, wide + 6, PHASE - 2, css(theme.paper, 0.75));
      surface.text(name, plot.left + from + 6, top + PHASE / 2, theme.ink);
    }
  };
  for (let x = 0; x <= plot.width; x++) {
    const phase = x < plot.width ? phaseAt(scene, eventAtX(axis, plot, x)) : -2;
    if (phase === before) continue;
    flush(x);
    from = x;
    before = phase;
  }
}

const eventAtX = (axis: Axis, plot: Plot, x: number): number =>
  axis.event(plot.from + ((x + 0.5) / plot.width) * (plot.to - plot.from));

/** The phase of the last request before or at an event; -1 where there was none. */
function phaseAt(scene: Scene, event: number): number {
  const { born, row } = scene.track;
  const last = upperBound(born, event) - 1;
  return last < 0 || born[last] < 0 ? -1 : row.phase[last];
}

/** Regions as they nest; those under a pixel are left to the zoom, and neighbours that touch become one bar. */
function drawRegions({ surface, plot, scene, state, theme }: Drawing, top: number): void {
  const { bands } = scene.track;
  const place = placesOfRegions(scene, state);
  const reached = [-1, -1, -1];
  for (let i = 0; i < bands.begin.length; i++) {
    const depth = bands.depth[i];
    if (depth >= MOST_BANDS) continue;
    const a = clampX(plot, xOf(plot, place(bands.begin[i])));
    const b = clampX(plot, xOf(plot, place(bands.end[i])));
    const isOutside = b <= plot.left || a >= plot.left + plot.width;
    if (isOutside || b - a < 0.4 || b < reached[depth] + 0.7) continue;
    const x = Math.max(a, reached[depth]);
    reached[depth] = b;
    const y = top + depth * BAND;
    surface.rect(x, y + 1, Math.max(0.7, b - x - 0.5), BAND - 2, theme.faint);
    const room = Math.floor(b - x - 8);
    if (room <= 24) continue;
    const name = fit(surface, scene.track.text(bands.name[i]), room);
    surface.text(name, x + 4, y + BAND / 2, theme.soft);
  }
}

/** Where a time of a region is on the axis. */
function placesOfRegions(scene: Scene, state: State): (us: number) => number {
  const { kind } = scene.axis(state.axis);
  return (us) => (kind === "time" ? us : lowerBound(scene.track.clock, us));
}

/** The collective under a point of the strips; -1 where there is none. */
export function callUnder(scene: Scene, state: State, plot: Plot, x: number, y: number): number {
  const top = topsOf(scene, plot).get("collective");
  if (top === undefined) return -1;
  const band = callsBand(plot, top);
  if (y < band.top - 2 || y > band.top + band.height + 2 || !isBeside(plot, x)) return -1;
  return callAt(band, scene.track.calls!, scene.axis(state.axis), x);
}

const isBeside = (plot: Plot, x: number): boolean =>
  x >= plot.left - 4 && x <= plot.left + plot.width + 4;

/** The step, phase or region under a point of the strips; null where there is none. */
export function stretchUnder(
  scene: Scene,
  state: State,
  plot: Plot,
  x: number,
  y: number,
): Stretch | null {
  if (x < plot.left || x >= plot.left + plot.width) return null;
  const tops = topsOf(scene, plot);
  const event = eventAtX(scene.axis(state.axis), plot, Math.floor(x - plot.left));
  const isWithin = (kind: Kind, rows = 1): boolean => {
    const top = tops.get(kind);
    return top !== undefined && y >= top && y < top + rows * HEIGHTS[kind];
  };
  if (isWithin("step")) return stepStretch(scene, scene.track.stepOf(event));
  if (isWithin("phase")) return phaseStretch(scene, event);
  if (!isWithin("region", regionRows(scene))) return null;
  const depth = Math.floor((y - tops.get("region")!) / BAND);
  return regionStretch(scene, state, plot, x, depth);
}

/** The events of a step; null where there is no such step. */
export function stepStretch(scene: Scene, step: number): Stretch | null {
  const { stepStarts, events, header } = scene.track;
  if (step < 0 || step >= stepStarts.length) return null;
  const last = (stepStarts[step + 1] ?? events) - 1;
  const name = header.steps.name === "step" ? "Step" : "Cycle";
  return { name: `${name} ${step}`, first: stepStarts[step], last };
}

function phaseStretch(scene: Scene, event: number): Stretch | null {
  const { born, row, header, n, events } = scene.track;
  const at = upperBound(born, event) - 1;
  if (at < 0 || born[at] < 0) return null;
  const phase = row.phase[at];
  let [first, next] = [at, at + 1];
  while (first > 0 && born[first - 1] >= 0 && row.phase[first - 1] === phase) first--;
  while (next < n && row.phase[next] === phase) next++;
  const last = (next < n ? born[next] : events) - 1;
  return { name: `Phase ${header.phases[phase]}`, first: born[first], last };
}

function regionStretch(
  scene: Scene,
  state: State,
  plot: Plot,
  x: number,
  depth: number,
): Stretch | null {
  const { bands, clock, text } = withText(scene);
  const place = placesOfRegions(scene, state);
  for (let i = 0; i < bands.begin.length; i++) {
    if (bands.depth[i] !== depth) continue;
    const a = xOf(plot, place(bands.begin[i]));
    const b = Math.max(a + 1.5, xOf(plot, place(bands.end[i])));
    if (x < a || x >= b) continue;
    const first = Math.max(0, lowerBound(clock, bands.begin[i]));
    const last = Math.max(first, upperBound(clock, bands.end[i]) - 1);
    const long = time(bands.end[i] - bands.begin[i]);
    return { name: `Region ${text(bands.name[i])} (${long})`, first, last };
  }
  return null;
}

function withText({ track }: Scene) {
  return {
    bands: track.bands,
    clock: track.clock,
    text: (number: number) => track.text(number),
  };
}
