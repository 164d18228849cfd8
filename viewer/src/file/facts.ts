// What the page says of a dropped file: facts of the recording. It judges nothing: the analyses are `vramlens explain`.

import { counted, size } from "../base/format";
import type { Verdict } from "../data/header";
import type { Device } from "./device";
import type { Meta } from "./meta";
import type { Snapshot } from "./snapshot";
import type { FileFacts } from "./track_header";

export function verdictOf(device: Device, { name, missing }: FileFacts): Verdict {
  const failure = device.failures.at(-1);
  const [, peak] = device.counters.requested;
  const [, reserved] = device.counters.reserved;
  return {
    failed: failure !== undefined,
    headline: failure
      ? `A request of ${size(failure.bytes)} failed.`
      : `Peak: ${size(peak)} requested.`,
    sentences: [
      ...(device.failures.length > 1
        ? [`It is the last of ${device.failures.length} requests that failed.`]
        : []),
      `For the verdict: \`vramlens explain ${quoted(name)}\``,
      "Categories, phases and modules need the analyses, too: the same file in `vramlens view` shows them.",
    ],
    figures: [
      ...(failure ? ([[failure.bytes, "the request that failed"]] as [number, string][]) : []),
      ...(failure?.free != null
        ? ([[failure.free, "free on the GPU at that moment"]] as [number, string][])
        : []),
      [peak, "requested at the peak"],
      [reserved, "reserved at its peak"],
    ],
    ledger: [],
    ledger_when: "",
    findings: [],
    steps: "",
    unknown: missing.map((part) => `Missing: ${part}.`),
    origin: [],
    next: [],
    exact: [],
  };
}

/** A file's name as a shell takes it. */
function quoted(name: string): string {
  const path = name.startsWith("-") ? `./${name}` : name;
  return /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", `'"'"'`)}'`;
}

/** What a whole file would hold and this one does not, one sentence each (src/vramlens/read/snapshot.py). */
export function missingParts(
  snapshot: Snapshot,
  devices: Device[],
  settings: Record<string, unknown>,
  meta: Meta,
): string[] {
  const missing: string[] = [];
  if (snapshot.truncatedAt !== null) {
    missing.push(
      `the file ends early, at byte ${snapshot.truncatedAt}: what came after it is lost`,
    );
    for (const { device, isWhole, action } of devices)
      if (!isWhole)
        missing.push(
          `device ${device}: events after the first ${action.length.toLocaleString("en")}`,
        );
  }
  const hasFinalState = snapshot.numbers("final.rows").length > 0 || snapshot.top.has("segments");
  if (!hasFinalState && snapshot.numbers("traces.count").length)
    missing.push("the final state (segments), so memory from before the recording is unknown");
  for (const device of devices) {
    const reason = reasonOf(settings.trace_alloc_overflowed === true, meta.wrapped(device.device));
    missing.push(...missingOfDevice(device, reason));
  }
  return missing;
}

/** Why early events are not there. */
function reasonOf(isOverwritten: boolean, wrapped: boolean | null): string {
  if (wrapped === false) return "before recording began";
  if (isOverwritten || wrapped) return "overwritten by later events";
  return "before recording began or overwritten by later events";
}

function missingOfDevice(
  { device, action, counters, rows, orphans, isWhole }: Device,
  reason: string,
): string[] {
  const missing: string[] = [];
  const [base] = counters.requested;
  if (!action.length)
    missing.push(
      `device ${device}: events (nothing was recorded there, only the state at the end)`,
    );
  else if (base || counters.reserved[0]) {
    const blocks = counted(rows.born.filter((event) => event < 0).length, "block");
    missing.push(
      `device ${device}: the earliest events (${reason}): ${size(base)} in ${blocks} were there`,
    );
  }
  if (orphans && isWhole)
    missing.push(
      `device ${device}: the rest contradicts ${counted(orphans, "event")}; numbers are estimates`,
    );
  return missing;
}
