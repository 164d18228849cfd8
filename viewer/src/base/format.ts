// How numbers and places are written: as the rest of vramlens writes them.

import type { Place } from "./place";

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

/** `512 bytes`, `1.50 KiB`, `57.00 MiB`, `3.71 GiB`. */
export function size(bytes: number): string {
  const positive = Math.abs(bytes);
  if (positive < 1024) return `${Math.round(bytes)} byte${positive === 1 ? "" : "s"}`;
  const power = positive < 1024 ** 2 ? 1 : positive < 1024 ** 3 ? 2 : 3;
  return `${hundredths(bytes / 1024 ** power)} ${UNITS[power]}`;
}

/** With two digits, a tie to the even one as Python writes it: 899.125 is 899.12 in every text. */
function hundredths(value: number): string {
  const scaled = value * 100;
  const below = Math.floor(scaled);
  const isTie = scaled - below === 0.5;
  return ((isTie ? below + Math.abs(below % 2) : Math.round(scaled)) / 100).toFixed(2);
}

/** A size on an axis: no more digits than it has. */
export function shortSize(bytes: number): string {
  if (!bytes) return "0";
  const power = Math.min(4, Math.floor(Math.log2(Math.abs(bytes)) / 10));
  const value = bytes / 1024 ** power;
  return `${Number(value.toPrecision(4))} ${UNITS[power]}`;
}

export const count = (number: number): string => number.toLocaleString("en");

export const counted = (number: number, noun: string): string =>
  `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** A time in microseconds: `812 µs`, `1.24 ms`, `3.05 s`, `2 min 5 s`. */
export function time(us: number, step = 0): string {
  const [unit, name] =
    Math.abs(us) >= 1e6 || step >= 1e6
      ? [1e6, "s"]
      : Math.abs(us) >= 1e3 || step >= 1e3
        ? [1e3, "ms"]
        : [1, "µs"];
  if (us === 0) return "0";
  const seconds = Math.round(us / 1e6);
  if (!step && us >= 12e7) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const digits = step
    ? Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9))
    : digitsOf(us / unit);
  return `${(us / unit).toFixed(Math.min(6, digits))} ${name}`;
}

const digitsOf = (value: number): number =>
  Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0;

export function share(part: number, whole: number): string {
  if (whole <= 0) return "";
  const rounded = Math.round((100 * part) / whole);
  if (part > 0 && rounded === 0) return "<1%";
  if (part < whole && rounded === 100) return ">99%";
  return `${rounded}%`;
}

export const fileName = (file: string): string => file.split(/[/\\]/).pop() || file;

/** `model.py:39 in forward` */
export function shortPlace(place: Place): string {
  return `${fileName(place.file)}${place.line > 0 ? `:${place.line}` : ""}${place.function ? ` in ${place.function}` : ""}`;
}

/** `…/train/model.py:39` */
export function longPlace(place: Place): string {
  return `${place.file}${place.line > 0 ? `:${place.line}` : ""}`;
}
