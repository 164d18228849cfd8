// One axis for two runs: by step where both have steps, else each from where it is worth looking at.

import { count, time } from "../base/format";
import type { Surface } from "../draw/surface";
import { ticks } from "../draw/ticks";
import type { Axis, AxisKind } from "../layout/axis";
import { StepAxis } from "../layout/step_axis";
import { type Scene, startOf } from "../state/scene";
import type { State } from "../state/store";
import type { Theme } from "../state/theme";
import { type Plot, xOf } from "./frame";

export interface SharedAxis {
  kind: "steps" | "time" | "events";
  axes: (Axis | StepAxis)[];
  starts: number[];
  end: number;
}

export const plotIn = (surface: Surface, [from, to]: [number, number]): Plot => ({
  left: 74,
  top: 12,
  width: Math.max(20, Math.floor(surface.width - 88)),
  height: surface.height - 36,
  from,
  to,
});

export function placeWords(kind: SharedAxis["kind"], place: number): string {
  if (kind === "time") return time(place);
  if (kind === "events") return `event ${count(Math.floor(place))}`;
  return place < 1 ? "before the first step" : `step ${count(Math.floor(place) - 1)}`;
}

export function drawAxis(
  surface: Surface,
  plot: Plot,
  kind: SharedAxis["kind"],
  theme: Theme,
): void {
  const bottom = plot.top + plot.height;
  const { step, at } = ticks(plot.from, plot.to, plot.width / 95, kind === "time" ? 0 : 1);
  surface.rect(plot.left, bottom, plot.width, 1, theme.faint);
  for (const place of at) {
    if (kind === "steps" && place < 1) continue;
    const label = kind === "time" ? time(place, step) : count(kind === "steps" ? place - 1 : place);
    const x = xOf(plot, place);
    surface.rect(Math.round(x), bottom, 1, 4, theme.soft);
    surface.text(label, x, bottom + 12, theme.soft, "center");
  }
  const name = { steps: "step", time: "time", events: "event" }[kind];
  surface.text(name, plot.left - 8, bottom + 12, theme.soft, "right");
}

/** Whether both have steps that can lie beside each other. */
export const haveSteps = (scenes: Scene[]): boolean =>
  scenes.every((scene) => scene.track.stepStarts.length > 1);

export function sharedAxis(scenes: Scene[], align: State["align"], kind: AxisKind): SharedAxis {
  if (align === "steps" && haveSteps(scenes)) {
    const axes = scenes.map((scene) => new StepAxis(scene.track));
    const end = Math.max(...axes.map((axis) => axis.end));
    return { kind: "steps", axes, starts: [0, 0], end };
  }
  const axes = scenes.map((scene) => scene.axis(kind));
  const starts = scenes.map((scene) => startOf(scene, kind));
  const end = Math.max(...axes.map((axis, i) => axis.end - starts[i]));
  const isTimed = axes.every((axis) => axis.kind === "time");
  return { kind: isTimed ? "time" : "events", axes, starts, end };
}
