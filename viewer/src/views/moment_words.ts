// Which bytes the view "Who" is about, in words.

import { count, shortPlace } from "../base/format";
import type { Scene } from "../state/scene";
import type { Moment, State } from "../state/store";

export const MOMENT_WORDS: Record<Moment, string> = {
  cursor: "at the cursor",
  peak: "at the peak",
  lifetime: "bytes × lifetime, in the window",
};

/** The same for somebody who sees a picture alone. */
export function momentWords({ track }: Scene, { of, cursor, around, search }: State): string {
  const event = of === "peak" ? track.header.counters.requested[2] : cursor;
  const moment = of === "lifetime" ? MOMENT_WORDS[of] : `bytes after event ${count(event)}`;
  const named = of === "peak" ? `${moment}, the peak` : moment;
  const frame = around >= 0 && `callers and callees of ${shortPlace(track.frame(around))}`;
  const filter = search.trim() && `of allocations that match ${search.trim()}`;
  return [named, frame, filter].filter(Boolean).join("; ");
}
