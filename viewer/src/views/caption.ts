// What stands around a saved picture: whose it is, the verdict, what part of the run it shows, and the legend.

import { css } from "../base/palette";
import { count, size, time } from "../base/format";
import type { Surface } from "../draw/surface";
import type { Host } from "../state/pane";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";
import { fit } from "./frame";
import { momentWords } from "./moment_words";

const MARGIN = 14;
const LINE = 17;
const ENTRY_GAP = 18;

/** Lines of words above a picture, the first of them bold. */
export function captionLines(host: Host): string[] {
  const scene = host.scene();
  const { state } = host.store;
  const { header, events } = scene.track;
  const title = [header.name, header.gpu, header.torch && `torch ${header.torch}`];
  const axis = scene.axis(state.axis);
  const [from, to] = scene.window(state);
  const window =
    axis.kind === "time"
      ? `${time(from)} to ${time(to)} of ${time(axis.end)}`
      : `events ${count(Math.floor(from))} to ${count(Math.ceil(to))} of ${count(events)}`;
  const bytes = state.bytes ? `, ${size(state.bytes[0])} to ${size(state.bytes[1])}` : "";
  const part = state.tab === "who" ? whoPart(scene, state, window) : window + bytes;
  const [lead = ""] = header.verdict.sentences;
  return [title.filter(Boolean).join(" · "), header.verdict.headline, lead, part].filter(Boolean);
}

/** A flame graph is about a moment, or about the whole window. */
const whoPart = (scene: Scene, state: State, window: string): string =>
  state.of === "lifetime" ? `${momentWords(scene, state)}; ${window}` : momentWords(scene, state);

export const captionHeight = (host: Host): number => MARGIN + captionLines(host).length * LINE;

export function drawCaption(surface: Surface, host: Host): void {
  const theme = host.theme();
  captionLines(host).forEach((words, i) => {
    const isTitle = i === 0;
    const shown = fit(surface, words, surface.width - 2 * MARGIN, isTitle);
    const y = MARGIN + i * LINE;
    surface.text(shown, MARGIN, y, i < 2 ? theme.ink : theme.soft, "left", isTitle);
  });
}

interface Placed {
  name: string;
  colour: string;
  x: number;
  row: number;
}

/** The groups of the picture, each where it stands in rows of a width. */
function placed(surface: Surface, host: Host): Placed[] {
  const { state } = host.store;
  if (state.tab !== "memory" && state.tab !== "addresses") return [];
  let [x, row] = [MARGIN, 0];
  return host
    .scene()
    .groups(state.by)
    .groups.map(({ name, colour }) => {
      const wide = surface.measure(name) + 16 + ENTRY_GAP;
      if (x > MARGIN && x + wide > surface.width - MARGIN) [x, row] = [MARGIN, row + 1];
      const entry = { name, colour: css(colour), x, row };
      x += wide;
      return entry;
    });
}

export function legendHeight(surface: Surface, host: Host): number {
  const entries = placed(surface, host);
  return entries.length ? (entries[entries.length - 1].row + 1) * LINE + 6 : 0;
}

/** The legend, from a height on. */
export function drawLegend(surface: Surface, host: Host, top: number): void {
  for (const { name, colour, x, row } of placed(surface, host)) {
    const y = top + 8 + row * LINE;
    surface.rect(x, y - 5, 10, 10, colour);
    surface.text(name, x + 15, y, host.theme().ink);
  }
}
