// The members of a .vram file, which is a zip: found by the list at its end.

import { FileError } from "./file_error";
import { inflated } from "./inflate";

export interface Member {
  /** Its bytes as they lie in the file. */
  blob: Blob;
  isDeflated: boolean;
}

/** The records of a zip (APPNOTE.TXT of PKWARE, 4.3.7, 4.3.12 and 4.3.16): signatures, sizes. */
const END = { signature: 0x06054b50, bytes: 22 };
const ENTRY = { signature: 0x02014b50, bytes: 46 };
const LOCAL = { signature: 0x04034b50, bytes: 30 };
const LONGEST_COMMENT = 0xffff;
const STORED = 0;
const DEFLATED = 8;
const LARGEST_LIST = 1 << 20;
/** In the place of a number that lies elsewhere, as in files of 4 GiB. */
const ELSEWHERE = 0xffffffff;

interface Entry {
  method: number;
  bytes: number;
  at: number;
}

export class Archive {
  constructor(
    private readonly file: Blob,
    private readonly entries: Map<string, Entry>,
    /** By member, where its bytes begin. */
    private readonly starts: Map<string, number>,
  ) {}

  member(name: string): Member | null {
    const entry = this.entries.get(name);
    const start = this.starts.get(name);
    if (!entry || start === undefined) return null;
    if (entry.method !== STORED && entry.method !== DEFLATED)
      throw new FileError("a .vram file that is compressed in a way that none is");
    return {
      blob: this.file.slice(start, start + entry.bytes),
      isDeflated: entry.method === DEFLATED,
    };
  }

  /** A small member's JSON; null where there is none, or none that can be read. */
  async json(name: string, mostBytes: number): Promise<unknown> {
    try {
      const member = this.member(name);
      if (!member || member.blob.size > mostBytes) return null;
      const text = new TextDecoder("utf-8", { fatal: true });
      let all = "";
      if (!member.isDeflated) all = text.decode(await member.blob.arrayBuffer());
      else
        for await (const part of inflated(member.blob, "deflate-raw")) {
          all += text.decode(part, { stream: true });
          if (all.length > mostBytes) return null;
        }
      return JSON.parse(all) as unknown;
    } catch {
      return null; // an optional member must not matter
    }
  }
}

export async function archiveOf(file: Blob): Promise<Archive> {
  const tail = await bytesOf(file, Math.max(0, file.size - END.bytes - LONGEST_COMMENT), file.size);
  const end = lastOf(tail, END.signature, END.bytes);
  if (end < 0) throw new FileError("a .vram file that is cut off: it was not written completely");
  const listBytes = tail.getUint32(end + 12, true);
  const listAt = tail.getUint32(end + 16, true);
  if (listBytes > LARGEST_LIST || listAt + listBytes > file.size)
    throw new FileError("a .vram file that is damaged, or too large for a page");
  const entries = entriesOf(await bytesOf(file, listAt, listAt + listBytes));
  const starts = new Map<string, number>();
  for (const name of ["snapshot.pickle", "meta.json"]) {
    const entry = entries.get(name);
    if (entry) starts.set(name, await startOf(file, entry));
  }
  return new Archive(file, entries, starts);
}

function entriesOf(list: DataView): Map<string, Entry> {
  const entries = new Map<string, Entry>();
  let at = 0;
  while (at + ENTRY.bytes <= list.byteLength && list.getUint32(at, true) === ENTRY.signature) {
    const [name, extra, comment] = [28, 30, 32].map((field) => list.getUint16(at + field, true));
    const next = at + ENTRY.bytes + name + extra + comment;
    if (next > list.byteLength) break;
    const text = new TextDecoder().decode(
      new Uint8Array(list.buffer, list.byteOffset + at + ENTRY.bytes, name),
    );
    entries.set(text, {
      method: list.getUint16(at + 10, true),
      bytes: list.getUint32(at + 20, true),
      at: list.getUint32(at + 42, true),
    });
    at = next;
  }
  return entries;
}

async function startOf(file: Blob, { at, bytes }: Entry): Promise<number> {
  if (at === ELSEWHERE || bytes === ELSEWHERE) throw new FileError("it is too large for a page");
  const head = await bytesOf(file, at, at + LOCAL.bytes);
  if (head.byteLength < LOCAL.bytes || head.getUint32(0, true) !== LOCAL.signature)
    throw new FileError("a .vram file that is damaged");
  return at + LOCAL.bytes + head.getUint16(26, true) + head.getUint16(28, true);
}

const bytesOf = async (file: Blob, from: number, to: number): Promise<DataView> =>
  new DataView(await file.slice(from, to).arrayBuffer());

/** The place of the last record with a signature; -1 where there is none. */
function lastOf(view: DataView, signature: number, bytes: number): number {
  let at = view.byteLength - bytes;
  while (at >= 0 && view.getUint32(at, true) !== signature) at--;
  return Math.max(-1, at);
}
