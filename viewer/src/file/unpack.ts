// A dropped file's snapshot, unpacked: plain, compressed, or inside of a .vram file; within bounds.

import { Decompress } from "fzstd";
import { XzReadableStream } from "xz-decompress";
import { count } from "../base/format";
import { type Archive, archiveOf } from "./archive";
import { FileError } from "./file_error";
import { inflated, partsOf } from "./inflate";

/** A snapshot's bytes in order; each part is let go of once it has been read. */
export class Bytes {
  private at = 0;
  private next = 0;
  private taken = 0;
  private readonly total: number;

  constructor(private readonly parts: (Uint8Array | null)[]) {
    this.total = parts.reduce((sum, part) => sum + (part?.length ?? 0), 0);
  }

  /** How much of them has been taken, in tens of percent: whoever hears it is not told every one. */
  share(): string {
    return `${10 * Math.floor((10 * this.taken) / this.total)}%`;
  }

  /** At most so many more of them; none at the end. */
  take(capacity: number): Uint8Array {
    let part = this.parts[this.next];
    while (part && this.at === part.length) {
      this.parts[this.next] = null;
      this.at = 0;
      part = this.parts[++this.next];
    }
    const from = this.at;
    this.at = Math.min(part?.length ?? 0, from + capacity);
    this.taken += this.at - from;
    return part?.subarray(from, this.at) ?? new Uint8Array(0);
  }
}

export interface Unpacked {
  bytes: Bytes;
  /** What lies beside the snapshot in a .vram file; null for all else. */
  archive: Archive | null;
}

/** As `vramlens explain` bounds it (allowance.py): real snapshots shrink 10 to 70 times, bombs 1,000 times and more. */
const EXPANDS_TIMES = 100;
const EXPANDS_ALWAYS_BYTES = 16 << 20;
/** A browser has no room for more of it beside the tables that are made of it. */
const MOST_BYTES = 2 ** 31;
const PART_BYTES = 1 << 20;

type Unpacker = (blob: Blob) => AsyncIterable<Uint8Array>;

/** By the first bytes of a file, what unpacks it. */
const UNPACKERS: [head: number[], unpacker: Unpacker][] = [
  [[0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00], (blob) => partsOf(new XzReadableStream(blob.stream()))],
  [[0x1f, 0x8b], (blob) => inflated(blob, "gzip")],
  [[0x28, 0xb5, 0x2f, 0xfd], unzstd],
];
const ZIP = [0x50, 0x4b, 0x03, 0x04];

export async function unpack(file: File): Promise<Unpacked> {
  if (!file.size) throw new FileError("it is empty");
  const head = new Uint8Array(await readable(file.slice(0, 8)));
  const begins = (with_: number[]): boolean => with_.every((byte, i) => head[i] === byte);
  if (begins(ZIP)) {
    const archive = await archiveOf(file);
    const member = archive.member("snapshot.pickle");
    if (!member) throw new FileError("a zip file, but not a vramlens recording");
    const parts = member.isDeflated ? inflated(member.blob, "deflate-raw") : whole(member.blob);
    return { bytes: await collected(parts, file.size), archive };
  }
  const unpacker = UNPACKERS.find(([magic]) => begins(magic))?.[1] ?? whole;
  return { bytes: await collected(unpacker(file), file.size), archive: null };
}

/** All parts up to damage: what lies before it can be read, and the reader says where it ends. */
async function collected(parts: AsyncIterable<Uint8Array>, packedBytes: number): Promise<Bytes> {
  const limit = Math.max(EXPANDS_ALWAYS_BYTES, EXPANDS_TIMES * packedBytes);
  const all: Uint8Array[] = [];
  let bytes = 0;
  try {
    for await (const part of parts) {
      bytes += part.length;
      if (bytes > limit)
        throw new FileError(`it expands more than ${EXPANDS_TIMES} times: no recording does`);
      if (bytes > MOST_BYTES)
        throw new FileError(`it holds more than ${count(MOST_BYTES)} bytes, too many for a page`);
      if (part.length) all.push(part);
    }
  } catch (error) {
    if (error instanceof FileError) throw error;
    if (!all.length) throw new FileError("it is damaged from the start");
  }
  if (!isPickle(all)) throw new FileError("not a PyTorch memory snapshot or a vramlens recording");
  return new Bytes(all);
}

/** Whether it begins as pickles of protocol 2 to 5 do. */
function isPickle([first, second]: Uint8Array[]): boolean {
  const protocol = first?.[1] ?? second?.[0] ?? 0;
  return first?.[0] === 0x80 && protocol >= 2 && protocol <= 5;
}

async function* whole(blob: Blob): AsyncGenerator<Uint8Array> {
  if (blob.size > MOST_BYTES)
    throw new FileError(`it holds more than ${count(MOST_BYTES)} bytes, too many for a page`);
  yield new Uint8Array(await readable(blob));
}

/** Its bytes; a folder, or a file that has gone, has none. */
async function readable(blob: Blob): Promise<ArrayBuffer> {
  try {
    return await blob.arrayBuffer();
  } catch {
    throw new FileError("it cannot be read: it is a folder, or it has changed since");
  }
}

async function* unzstd(blob: Blob): AsyncGenerator<Uint8Array> {
  let parts: Uint8Array[] = [];
  const decoder = new Decompress((part) => parts.push(part));
  for (let at = 0; at < blob.size; at += PART_BYTES) {
    const end = at + PART_BYTES;
    decoder.push(new Uint8Array(await readable(blob.slice(at, end))), end >= blob.size);
    yield* parts;
    parts = [];
  }
}
