// A frame in the middle: what called it stands above it, what it called below.

import type { Surface } from "../draw/surface";
import { levelsIn } from "../layout/flame_tree";
import type { Sandwich } from "../layout/sandwich";
import { Bars, type FlameLook, LINE } from "./flame";

const callerLevels = ({ callers }: Sandwich): number =>
  callers.reduce((levels, caller) => Math.max(levels, 1 + levelsIn(caller)), 0);

/** Where the frame stands: below its callers and a line of words. */
export const centerTop = (sandwich: Sandwich): number => (callerLevels(sandwich) + 1) * LINE;

export const sandwichHeight = (sandwich: Sandwich): number =>
  centerTop(sandwich) + (levelsIn(sandwich.center) + 2) * LINE;

export function drawSandwich(surface: Surface, sandwich: Sandwich, look: FlameLook): Bars {
  const { center, callers } = sandwich;
  const bars = new Bars(surface, look);
  const y = centerTop(sandwich);
  const above = callers.length ? "↑ called from" : "↑ nothing that is shown calls it";
  const below = center.inside.length ? "↓ calls" : "↓ calls nothing that is shown";
  const words = (text: string, top: number): void =>
    surface.text(text, 5, top + LINE / 2, look.theme.soft);
  words(above, y - LINE);
  words(below, y + LINE);
  const place = { flame: center, x: 0, y, width: surface.width };
  bars.inside(callers, { ...place, y: y - LINE }, -1);
  bars.bar(place);
  bars.inside(center.inside, { ...place, y: y + LINE }, 1);
  bars.outline(look.chosen ?? center);
  return bars;
}
