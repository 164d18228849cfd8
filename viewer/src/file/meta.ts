// What a .vram file says of the program and the machine (src/vramlens/read/parts/recording_facts.py).

import type { Archive } from "./archive";
import { isRecord } from "./snapshot";
import { shortened } from "./texts";

const LARGEST_BYTES = 1 << 20;
const LARGEST_NUMBER = 2 ** 50;

export class Meta {
  readonly rank: number | null;
  readonly worldSize: number | null;
  readonly gpu: string | null;
  readonly torch: string | null;

  private constructor(private readonly part: Record<string, unknown>) {
    this.rank = asNumber(part.rank);
    this.worldSize = asNumber(part.world_size);
    this.gpu = asText(part.device_name);
    this.torch = asText(part.torch);
  }

  static async of(archive: Archive | null): Promise<Meta> {
    const part = await archive?.json("meta.json", LARGEST_BYTES);
    return new Meta(isRecord(part) ? part : {});
  }

  /** A device's memory, and what the process could use of it where that is less; null where unknown. */
  device(number: number): { totalBytes: number | null; limitBytes: number | null } {
    const facts = entryOf(this.part.devices, number);
    const entry = isRecord(facts) ? facts : {};
    const total =
      asNumber(entryOf(this.part.total_bytes, number)) || asNumber(entry.total_bytes) || null;
    const deviceTotal = asNumber(entry.total_bytes) || null;
    return { totalBytes: total, limitBytes: limitOf(entry, deviceTotal) };
  }

  /** Whether the ring of a device's events was full; null where the recording does not say. */
  wrapped(device: number): boolean | null {
    const entry = entryOf(this.part.wrapped, device);
    return typeof entry === "boolean" ? entry : null;
  }
}

function limitOf(entry: Record<string, unknown>, total: number | null): number | null {
  let limit = asNumber(entry.limit_bytes) || null;
  const { memory_fraction: fraction } = entry;
  if (typeof fraction === "number") {
    if (fraction <= 0 || fraction >= 1) return null;
    if (limit === null && total !== null) limit = Math.trunc(total * fraction);
  }
  return limit !== null && total !== null && limit >= total ? null : limit;
}

const entryOf = (entries: unknown, device: number): unknown =>
  isRecord(entries) && Object.hasOwn(entries, device) ? entries[device] : null;

const asNumber = (value: unknown): number | null =>
  Number.isInteger(value) && (value as number) >= 0 && (value as number) <= LARGEST_NUMBER
    ? (value as number)
    : null;

const asText = (value: unknown): string | null =>
  typeof value === "string" ? shortened(value) : null;
