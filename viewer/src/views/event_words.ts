// One event in words.

import { BORN, DIED, FREED, type Track } from "../data/track";
import { count, shortPlace, size, time } from "../base/format";

export function eventWords(track: Track, event: number): string {
  if (event < 0) return "before the first event";
  const at = `event ${count(event)}${track.header.timed ? ` at ${time(track.timeOf(event))}` : ""}`;
  return `${at}: ${deed(track, event)}`;
}

/**
 * Whether a block waits for a stream that uses it (`record_stream`). Of any other block the allocator records that it is
 * free right after it was asked to free it, with no event between.
 */
function isHeldByStream(track: Track, row: number): boolean {
  return track.died[row] > track.freed[row] + 1;
}

/** What an event did. */
export function deed(track: Track, event: number): string {
  const failure = track.header.failures.find((one) => one.event === event);
  if (failure) return `a request for ${size(failure.bytes)} fails`;
  const row = track.eventRow[event];
  if (row >= 0) {
    const kind = track.eventKind[event];
    const line = track.line(row);
    const who = line ? `, ${shortPlace(line)}` : "";
    const bytes = size(track.row.bytes[row]);
    if (kind & BORN) return `${bytes} allocated${who}`;
    if (kind & DIED) return `${bytes} free again${who}`;
    if (kind & FREED)
      return `${bytes} freed${who}${isHeldByStream(track, row) ? "; another stream still uses it" : ""}`;
  }
  for (let i = 0; i < track.header.segments.n; i++) {
    if (track.segmentBorn[i] === event)
      return `${size(track.segment.bytes[i])} reserved from the GPU`;
    if (track.segment.died[i] === event)
      return `${size(track.segment.bytes[i])} given back to the GPU`;
  }
  return "nothing that holds memory";
}
