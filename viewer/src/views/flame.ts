// The flame graph: the outermost frame on top, as wide as what was asked for through it.

import { css, mix, type Colour } from "../base/palette";
import type { Surface } from "../draw/surface";
import type { Flame } from "../layout/flame_tree";
import type { Theme } from "../state/theme";
import { fit } from "./frame";

export const LINE = 19;

export interface Shown {
  flame: Flame;
  x: number;
  y: number;
  width: number;
}

/** How bars look. */
export interface FlameLook {
  theme: Theme;
  /** Bars that do not match are pale; null is none. */
  wanted: RegExp | null;
  /** The frame that is outlined. */
  chosen: Flame | null;
  value: (weight: number) => string;
}

const OWN: Colour = [239, 177, 74];
const LIBRARY: Colour = [164, 178, 194];
/** Bars that are narrower are left to the zoom. */
const NARROWEST = 0.5;

/** Draws bars, and knows where each is. */
export class Bars {
  readonly shown: Shown[] = [];
  hidden = 0;

  constructor(
    private readonly surface: Surface,
    private readonly look: FlameLook,
  ) {}

  bar(place: Shown, isPale = false): void {
    const { surface, look } = this;
    const { flame, x, y, width } = place;
    const { theme } = look;
    const base = flame.user ? OWN : LIBRARY;
    const isMiss = look.wanted !== null && !look.wanted.test(flame.long);
    const usual = theme.dark ? 0.22 : 0.08;
    const paleness = isMiss ? 0.75 : isPale ? 0.5 : usual;
    const colour = css(mix(base, theme.paper, paleness));
    surface.rect(x, y, Math.max(NARROWEST, width - 1), LINE - 1, colour);
    this.label(place, theme.dark && (isMiss || isPale) ? theme.ink : "#1c2430");
    this.shown.push(place);
  }

  /** What is inside of a frame, level by level away from it: downward, or upward. */
  inside(inside: Flame[], outer: Shown, by: 1 | -1): void {
    const { weight } = outer.flame;
    const y = outer.y + by * LINE;
    if (y > this.surface.height) return;
    let { x } = outer;
    for (const flame of inside) {
      const width = weight ? (outer.width * flame.weight) / weight : 0;
      const place = { flame, x, y, width };
      x += width;
      if (width < NARROWEST) {
        this.hidden++;
        continue;
      }
      this.bar(place);
      this.inside(flame.inside, place, by);
    }
  }

  outline(flame: Flame | null): void {
    const place = this.shown.find((bar) => bar.flame === flame);
    if (!place) return;
    const { x, y, width } = place;
    const [a, b] = [x + 1, Math.max(x + 4, x + width - 2)];
    const points = [a, y + 1, b, y + 1, b, y + LINE - 2, a, y + LINE - 2, a, y];
    this.surface.line(points, this.look.theme.ink, 2);
  }

  private label({ flame, x, y, width }: Shown, ink: string): void {
    const { surface } = this;
    const room = width - 10;
    if (room <= 20) return;
    const bytes = this.look.value(flame.weight);
    const name = fit(surface, flame.name, room);
    surface.text(name, x + 5, y + LINE / 2, ink);
    if (room - surface.measure(name) > surface.measure(bytes) + 14)
      surface.text(bytes, x + width - 7, y + LINE / 2, ink, "right");
  }
}

/** Draws what is inside a frame below the frames that it lies in. */
export function drawFlame(surface: Surface, focus: Flame, look: FlameLook): Bars {
  const bars = new Bars(surface, look);
  const path: Flame[] = [];
  for (let node = focus.parent; node; node = node.parent) path.unshift(node);
  path.forEach((flame, i) => bars.bar({ flame, x: 0, y: i * LINE, width: surface.width }, true));
  const place = { flame: focus, x: 0, y: path.length * LINE, width: surface.width };
  bars.bar(place);
  bars.inside(focus.inside, place, 1);
  bars.outline(look.chosen);
  return bars;
}

export function frameAt(shown: Shown[], x: number, y: number): Flame | null {
  return (
    shown.find((one) => x >= one.x && x < one.x + one.width && y >= one.y && y < one.y + LINE)
      ?.flame ?? null
  );
}
