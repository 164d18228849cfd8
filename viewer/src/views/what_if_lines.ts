// Lines of replayed settings over the recorded ones: how each looks, its name where it ends, its bytes in words.

import type { Track } from "../data/track";
import type { WhatIfLine } from "../data/what_if";
import { count, size } from "../base/format";
import type { Surface } from "../draw/surface";
import type { Moments } from "../layout/moments";
import { h } from "../draw/dom";
import type { Theme } from "../state/theme";
import { fit, type Plot } from "./frame";

export interface Line {
  colour: string;
  dash: number[];
  /** By column, bytes; fewer than there are columns where it ends before. */
  bytes: ArrayLike<number>;
}

/** Dashed, so that what lies under it shows where they are alike: the recorded line, or another setting's. */
const DASHES = [
  [9, 4],
  [5, 3],
  [13, 5],
  [3, 3],
  [7, 7],
];

/** Each in a colour and with dashes of its own; colours begin again after the last. */
export function look(theme: Theme, number: number): { colour: string; dash: number[] } {
  return { colour: theme.lines[number % theme.lines.length], dash: DASHES[number % DASHES.length] };
}

/** A line for each replayed setting; those that are switched off have no points. */
export function whatIfLines(
  track: Track,
  { first, last }: Moments,
  theme: Theme,
  off: string,
): Line[] {
  return track.whatIf.map((line, i) => ({
    ...look(theme, i),
    bytes: isOff(off, i) ? [] : line.highest(first, last),
  }));
}

/** Whether a replayed setting is switched off, of those that `off` names as `0_2`. */
export const isOff = (off: string, number: number): boolean =>
  off !== "" && off.split("_").includes(String(number));

/** The settings that are off once one more is, or is no longer. */
export function turnedOff(off: string, number: number): string {
  const numbers = off ? off.split("_").map(Number) : [];
  const others = numbers.filter((other) => other !== number);
  const turned = others.length === numbers.length ? [...numbers, number] : others;
  return turned.sort((a, b) => a - b).join("_");
}

/** The name of a line, where it ends: at the edge of the picture, or where its program dies. */
export function endLabel({ header }: WhatIfLine, dies: boolean): string {
  const [low, high] = [size(header.low), size(header.high)];
  const end = dies ? (header.oom ? ", runs out here" : ", may run out here") : "";
  return `${header.conf}: peak ${low === high ? size(header.reserved) : `${low} to ${high}`}${end}`;
}

/** A place for one label after another, so that none lies over another. */
export class Labels {
  private readonly taken: { left: number; right: number; y: number }[] = [];

  constructor(
    private readonly surface: Surface,
    private readonly plot: Plot,
    private readonly theme: Theme,
  ) {}

  /** Writes a label over a point, or as near to that as there is room. */
  put(text: string, x: number, y: number, colour: string, align: "left" | "right"): void {
    const { surface, plot, theme } = this;
    const shown = fit(surface, text, plot.width - 20, true);
    const wide = surface.measure(shown, true) + 8;
    const left = Math.min(
      Math.max(plot.left + 4, align === "left" ? x : x - wide),
      plot.left + plot.width - wide - 4,
    );
    const free = (at: number) =>
      !this.taken.some(
        (one) => one.left < left + wide && one.right > left && Math.abs(one.y - at) < 15,
      );
    let at = y - 10;
    for (let step = 0; step < 40; step++) {
      const tried = y + (step % 2 ? 10 + ((step - 1) / 2) * 15 : -10 - (step / 2) * 15);
      if (tried < plot.top + 8 || tried > plot.top + plot.height - 8 || !free(tried)) continue;
      at = tried;
      break;
    }
    this.taken.push({ left, right: left + wide, y: at });
    surface.rect(
      left,
      at - 7,
      wide,
      14,
      theme.dark ? "rgb(22 26 32 / 0.75)" : "rgb(255 255 255 / 0.75)",
    );
    surface.text(shown, left + 4, at, colour, "left", true);
  }
}

/** A cross where the program would have died. */
export function drawDeath(surface: Surface, x: number, y: number, theme: Theme): void {
  for (const [colour, width] of [
    [theme.dark ? "#000" : "#fff", 5],
    [theme.alarm, 2.5],
  ] as const) {
    surface.line([x - 5, y - 5, x + 5, y + 5], colour, width);
    surface.line([x - 5, y + 5, x + 5, y - 5], colour, width);
  }
}

/** What is reserved after an event, as recorded and under each setting, beside the pointer: made once, then only filled in. */
export class ReservedTable {
  readonly element: HTMLElement;
  private readonly cells: HTMLElement[] = [];

  constructor(
    private readonly track: Track,
    theme: Theme,
  ) {
    const row = (colour: string, words: string) => {
      const bytes = h("b", {});
      this.cells.push(bytes);
      return h("div", {}, lineSwatch(colour), bytes, ` ${words}`);
    };
    const recorded = row(theme.ink, "reserved, as recorded");
    const others = track.whatIf.map((line, i) =>
      row(look(theme, i).colour, `with ${line.header.conf}`),
    );
    this.element = h("div", { class: "reserved" }, recorded, ...others);
  }

  at(event: number): HTMLElement {
    this.cells[0].textContent = size(this.track.reserved.at(event));
    this.track.whatIf.forEach(
      (line, i) => (this.cells[i + 1].textContent = bytesWords(line, event)),
    );
    return this.element;
  }
}

/** What is reserved after an event, as far as the program comes. */
export function bytesWords(line: WhatIfLine, event: number): string {
  const bytes = line.at(event);
  return bytes === null
    ? "out of memory"
    : `${line.header.changes > 1 ? "at most " : ""}${size(bytes)}`;
}

/** What each setting comes to, below the picture. */
export function whatIfWords(track: Track, theme: Theme): HTMLElement[] {
  return track.whatIf.map(({ header }, i) => {
    const merged =
      header.changes > 1
        ? ` Each step of its line is the highest of ${count(header.changes)} changes.`
        : "";
    return h("p", {}, lineSwatch(look(theme, i).colour), `${header.words}${merged}`);
  });
}

export function lineSwatch(colour: string): HTMLElement {
  const element = h("i", { class: "swatch of-line" });
  element.style.background = colour;
  return element;
}
