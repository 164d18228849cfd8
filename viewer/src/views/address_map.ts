// The address map: addresses upward, time to the right. Coloured is in use, pale is reserved and free: the holes.

import type { Groups } from "../data/groups";
import { freeColour, mix, pale, pixel, shade, SHADES, type Colour } from "../base/palette";
import { columnsOf, type Moments, momentsOf } from "../layout/moments";
import type { Space } from "../layout/space";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";
import type { Plot } from "./frame";

const MOST = 300_000;

export interface AddressMap {
  image: ImageData;
  moments: Moments;
  low: number;
  high: number;
  drawn: number;
  /** Of these, allocations under a pixel, drawn pale as one pixel; grey ones in their own grey. */
  small: number;
  /** One of so many small ones is drawn. */
  every: number;
}

export function addressMap(
  scene: Scene,
  state: State,
  space: Space,
  groups: Groups,
  plot: Plot,
  range: [number, number],
  marked: Uint8Array | null,
  paper: Colour,
): AddressMap {
  const { track } = scene;
  const [low, high] = range;
  const { width, height } = plot;
  const image = new ImageData(width, height);
  const words = new Uint32Array(image.data.buffer);
  const moments = momentsOf(scene.axis(state.axis), plot.from, plot.to, width);
  const { event } = moments;
  const scale = height / (high - low);
  const fill = (from: number, to: number, a: number, b: number, colour: number): void => {
    const top = Math.max(0, height - b);
    const end = Math.min(height, height - a);
    for (let y = top; y < end; y++) words.fill(colour, y * width + from, y * width + to);
  };
  const free = pixel(freeColour(paper));
  for (let i = 0; i < track.header.segments.n; i++) {
    const [from, to] = columnsOf(event, track.segmentBorn[i], track.segment.died[i]);
    if (to <= from) continue;
    const at = space.height(track.segment.address[i]);
    fill(
      from,
      to,
      Math.round((at - low) * scale),
      Math.max(
        Math.round((at - low) * scale) + 1,
        Math.round((at + track.segment.bytes[i] - low) * scale),
      ),
      free,
    );
  }
  const colours = groups.groups.map((group) =>
    Uint32Array.from({ length: SHADES }, (_, s) => pixel(shade(group.colour, s))),
  );
  const faint = groups.groups.map((group) => pixel(mix(group.colour, paper, 0.72)));
  const merged = groups.groups.map((group) => pixel(pale(group.colour, paper)));
  const large: number[] = [];
  const small: number[] = [];
  const perColumn = (moments.last[width - 1] - moments.first[0]) / width;
  scene.lifetimes.each(event[0], event[width - 1], perColumn / 2, (row) => {
    (track.taken[row] * scale >= 1 ? large : small).push(row);
  });
  const every = Math.max(1, Math.ceil(small.length / MOST));
  let drawn = 0;
  let tinyDrawn = 0;
  const paint = (row: number, tiny: boolean): void => {
    const [from, to] = columnsOf(event, track.born[row], track.died[row]);
    if (to <= from) return;
    const at = space.height(space.address(row));
    const a = Math.round((at - low) * scale);
    const b = Math.max(a + 1, Math.round((at + track.taken[row] - low) * scale));
    if (b <= 0 || a >= height) return;
    const group = groups.of[row];
    const bright = !marked || marked[row];
    fill(
      from,
      to,
      a,
      b,
      !bright ? faint[group] : tiny ? merged[group] : colours[group][row % SHADES],
    );
    drawn++;
    if (tiny) tinyDrawn++;
  };
  for (let i = 0; i < small.length; i += every) paint(small[i], true);
  for (const row of large) paint(row, false);
  return { image, moments, low, high, drawn, small: tinyDrawn, every };
}
