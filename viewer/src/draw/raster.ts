// Paints a stack into pixels: a run of one colour for each piece of each column.

import type { Group, Groups } from "../data/groups";
import type { Stacked } from "../layout/stacked";
import { type Colour, mix, pixel, shade, SHADES } from "../base/palette";

export interface Emphasis {
  /** By allocation: whether it is marked; null when nothing is. */
  marked: Uint8Array | null;
  /** By group, whether all of it is marked: what is merged of it is then bright, too. */
  isWhole: Uint8Array | null;
  paper: Colour;
}

export class Raster {
  private image: ImageData | null = null;
  private words = new Uint32Array(0);

  // eslint-disable-next-line complexity -- one pass over every pixel: a call for each would be felt
  paint(stacked: Stacked, groups: Groups, emphasis: Emphasis): ImageData {
    const { width, height, low, high } = stacked.window;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = new ImageData(width, height);
      this.words = new Uint32Array(this.image.data.buffer);
    }
    const { words } = this;
    words.fill(0);
    const { starts, what, top } = stacked;
    const { full, faint, edge, merged, mergedFaint } = tables(groups.groups, emphasis.paper);
    const { marked, isWhole } = emphasis;
    const scale = height / (high - low);
    for (let column = 0; column < width; column++) {
      let below = height + Math.round(low * scale); // in pixels from the top, the lower end of the next piece
      for (let p = starts[column], end = starts[column + 1]; p < end; p++) {
        const upper = height - Math.round((top[p] - low) * scale);
        if (upper >= below) continue;
        if (below <= 0) break;
        const piece = what[p];
        let colour: number;
        let border: number;
        if (piece >= 0) {
          const at = groups.of[piece] * SHADES + (piece % SHADES);
          const shown = marked === null || marked[piece] === 1;
          colour = (shown ? full : faint)[at]!;
          border = shown ? edge[groups.of[piece]] : colour;
        } else {
          const isBright = marked === null || isWhole?.[-1 - piece] === 1;
          colour = border = (isBright ? merged : mergedFaint)[-1 - piece]!;
        }
        const first = upper < 0 ? 0 : upper;
        const last = below > height ? height : below;
        let at = first * width + column;
        if (upper >= 0 && below - upper >= 4) {
          words[at] = border;
          at += width;
        }
        for (const stop = last * width; at < stop; at += width) words[at] = colour;
        below = upper;
      }
    }
    return this.image;
  }
}

function tables(groups: Group[], paper: Colour) {
  const full = new Uint32Array(groups.length * SHADES);
  const faint = new Uint32Array(groups.length * SHADES);
  groups.forEach((group, g) => {
    for (let s = 0; s < SHADES; s++) {
      full[g * SHADES + s] = pixel(shade(group.colour, s));
      faint[g * SHADES + s] = pixel(mix(shade(group.colour, s), paper, 0.78));
    }
  });
  return {
    full,
    faint,
    edge: Uint32Array.from(groups, (group) => pixel(mix(group.colour, [0, 0, 0], 0.32))),
    merged: Uint32Array.from(groups, (group) => pixel(group.colour)),
    mergedFaint: Uint32Array.from(groups, (group) => pixel(mix(group.colour, paper, 0.68))),
  };
}
