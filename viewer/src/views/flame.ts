// The flame graph: the outermost frame on top, as wide as what was asked for through it.

import { css, mix, type Colour } from "../base/palette";
import type { Surface } from "../draw/surface";
import type { Flame } from "../layout/tally";
import type { Theme } from "../state/theme";
import { fit } from "./frame";

export const LINE = 19;

export interface Shown {
  flame: Flame;
  x: number;
  y: number;
  width: number;
}

const OWN: Colour = [239, 177, 74];
const LIBRARY: Colour = [164, 178, 194];

/** Draws what is inside a frame, and says where each frame is. Frames under half a pixel are left to the zoom. */
export function drawFlame(
  surface: Surface,
  root: Flame,
  focus: Flame,
  theme: Theme,
  wanted: RegExp | null,
  value: (weight: number) => string,
  chosen: Flame | null = null,
): { shown: Shown[]; hidden: number } {
  const shown: Shown[] = [];
  let hidden = 0;
  const path: Flame[] = [];
  for (let node = focus.parent; node; node = node.parent) path.unshift(node);
  const bar = (flame: Flame, x: number, y: number, width: number, above: boolean): void => {
    const base = flame.user ? OWN : LIBRARY;
    const miss = wanted && !wanted.test(flame.long);
    const colour = miss
      ? mix(base, theme.paper, 0.75)
      : above
        ? mix(base, theme.paper, 0.5)
        : mix(base, theme.paper, theme.dark ? 0.22 : 0.08);
    surface.rect(x, y, Math.max(0.5, width - 1), LINE - 1, css(colour));
    const room = width - 10;
    if (room > 20) {
      const ink = theme.dark && (miss || above) ? theme.ink : "#1c2430";
      const bytes = value(flame.weight);
      const name = fit(surface, flame.name, room);
      surface.text(name, x + 5, y + LINE / 2, ink);
      const used = surface.measure(name);
      if (room - used > surface.measure(bytes) + 14)
        surface.text(bytes, x + width - 7, y + LINE / 2, ink, "right");
    }
    shown.push({ flame, x, y, width });
  };
  const outline = ({ x, y, width }: Shown): void => {
    const [a, b] = [x + 1, Math.max(x + 4, x + width - 2)];
    surface.line([a, y + 1, b, y + 1, b, y + LINE - 2, a, y + LINE - 2, a, y], theme.ink, 2);
  };
  path.forEach((flame, i) => bar(flame, 0, i * LINE, surface.width, true));
  const walk = (flame: Flame, x: number, width: number, depth: number): void => {
    const y = depth * LINE;
    if (y > surface.height) return;
    bar(flame, x, y, width, false);
    let at = x;
    for (const inside of flame.inside) {
      const wide = flame.weight ? (width * inside.weight) / flame.weight : 0;
      if (wide < 0.5) hidden++;
      else walk(inside, at, wide, depth + 1);
      at += wide;
    }
  };
  walk(root === focus ? root : focus, 0, surface.width, path.length);
  const at = shown.find((one) => one.flame === chosen);
  if (at) outline(at);
  return { shown, hidden };
}

/** The frame that an arrow key leads to from another: down is into the largest, up is out, sideways are its neighbours. */
export function neighbour(flame: Flame, key: string): Flame | null {
  const { parent, inside } = flame;
  if (key === "ArrowDown") return inside[0] ?? null;
  if (key === "ArrowUp") return parent;
  const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
  return (by && parent?.inside[parent.inside.indexOf(flame) + by]) || null;
}

export function frameAt(shown: Shown[], x: number, y: number): Flame | null {
  return (
    shown.find((one) => x >= one.x && x < one.x + one.width && y >= one.y && y < one.y + LINE)
      ?.flame ?? null
  );
}

export function heightOf(flame: Flame): number {
  let deepest = flame.depth;
  const walk = (node: Flame): void => {
    deepest = Math.max(deepest, node.depth);
    node.inside.forEach(walk);
  };
  walk(flame);
  return (deepest + 1) * LINE;
}

/** The way from the root to a frame: at each level, which of the frames beside each other. */
export function pathOf(flame: Flame): string {
  const places: number[] = [];
  for (let node = flame; node.parent; node = node.parent)
    places.unshift(node.parent.inside.indexOf(node));
  return places.join(".");
}

/** The frame that a way leads to, or as far as it leads. */
export function flameAt(root: Flame, path: string): Flame {
  let flame = root;
  for (const place of path ? path.split(".").map(Number) : []) {
    const next = flame.inside[place];
    if (!next) break;
    flame = next;
  }
  return flame;
}
