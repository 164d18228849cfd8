// Frames that are one place of a program: a recording may name a place more than once.

import type { Track } from "./track";

/** By frame, the first one of the same file, line and function. */
export function samePlaces({ frames }: Pick<Track, "frames">): Uint32Array {
  const first = new Map<string, number>();
  return Uint32Array.from(frames.file, (file, frame) => {
    const place = `${file},${frames.line[frame]},${frames.function[frame]}`;
    const number = first.get(place) ?? frame;
    first.set(place, number);
    return number;
  });
}
