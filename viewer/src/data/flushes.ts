// When the allocator gave segments back to the GPU: runs of such events, and whether a request was tried again after one.

import type { Track } from "./track";

export interface Flush {
  /** The events, the first and the last. */
  first: number;
  last: number;
  segments: number;
  bytes: number;
  /** Whether the next thing is a new segment: the request that made room was tried again. */
  isRetry: boolean;
}

export function flushesOf(track: Track): Flush[] {
  const { segment, segmentBorn, events } = track;
  const given: [number, number][] = [];
  for (let i = 0; i < segmentBorn.length; i++)
    if (segment.died[i] < events) given.push([segment.died[i], segment.bytes[i]]);
  given.sort((a, b) => a[0] - b[0]);
  const born = new Set<number>(segmentBorn);
  const flushes: Flush[] = [];
  for (const [event, bytes] of given) {
    const before = flushes[flushes.length - 1];
    if (before && event <= before.last + 1) {
      before.last = event;
      before.segments++;
      before.bytes += bytes;
    } else flushes.push({ first: event, last: event, segments: 1, bytes, isRetry: false });
  }
  for (const flush of flushes) flush.isRetry = born.has(flush.last + 1);
  return flushes;
}
