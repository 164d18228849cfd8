// Reads what src/vramlens/view/columns.py writes: a JSON header, and columns of whole numbers as compressed byte planes.

export type Numbers = Uint8Array | Uint16Array | Uint32Array | Float64Array;

/** Whatever has the columns that a header names by number. */
export interface ColumnSource {
  column(number: number): Promise<Numbers>;
}

interface ColumnInfo {
  n: number;
  planes: number;
  delta: boolean;
  max: number;
  /** The chunk that its planes lie in, and from which byte of it on. */
  chunk: number;
  from: number;
}

interface ChunkPlace {
  at: number;
  size: number;
}

/** More are not inflated at once: a browser has room for some thousands of streams, not for all of many ranks. */
const MOST_AT_ONCE = 32;

const MAGIC = "vramview";

export class Container implements ColumnSource {
  private constructor(
    readonly header: Record<string, unknown>,
    private readonly infos: ColumnInfo[],
    private readonly places: ChunkPlace[],
    private readonly chunks: Uint8Array<ArrayBuffer>,
  ) {
    this.unread = places.map(() => 0);
    for (const { chunk } of infos) this.unread[chunk]++;
  }

  /** By chunk, how many of its columns have not been read; and those that are inflated and still wanted. */
  private readonly unread: number[];
  private readonly inflated = new Map<number, Promise<Uint8Array>>();
  private readonly waiting: (() => void)[] = [];
  private running = 0;

  static async open(bytes: Uint8Array<ArrayBuffer>): Promise<Container> {
    const magic = String.fromCharCode(...bytes.subarray(0, MAGIC.length));
    if (magic !== MAGIC) throw new Error("this page's data is damaged");
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(8, true);
    const text = await inflate(bytes.subarray(12, 12 + length));
    const header = JSON.parse(new TextDecoder().decode(text)) as Record<string, unknown>;
    const { columns, chunks } = header as { columns: ColumnInfo[]; chunks: ChunkPlace[] };
    return new Container(header, columns, chunks, bytes.subarray(12 + length));
  }

  /** A column's numbers, in the narrowest array that holds them. */
  async column(number: number): Promise<Numbers> {
    const info = this.infos[number];
    if (!info) throw new Error("this page's data is damaged");
    const isLast = --this.unread[info.chunk] <= 0;
    if (!info.max) return new Uint8Array(info.n);
    const planes = await this.chunk(info.chunk);
    if (isLast) this.inflated.delete(info.chunk);
    return decode(planes.subarray(info.from, info.from + info.n * info.planes), info);
  }

  private chunk(number: number): Promise<Uint8Array> {
    let bytes = this.inflated.get(number);
    if (!bytes) this.inflated.set(number, (bytes = this.inTurn(number)));
    return bytes;
  }

  private async inTurn(number: number): Promise<Uint8Array> {
    if (this.running >= MOST_AT_ONCE) await new Promise<void>((go) => this.waiting.push(go));
    this.running++;
    const { at, size } = this.places[number];
    try {
      return await inflate(this.chunks.subarray(at, at + size));
    } finally {
      this.running--;
      this.waiting.shift()?.();
    }
  }
}

export function decode(planes: Uint8Array, info: Omit<ColumnInfo, "chunk" | "from">): Numbers {
  const { n, max } = info;
  const out =
    max < 1 << 8
      ? new Uint8Array(n)
      : max < 1 << 16
        ? new Uint16Array(n)
        : max < 2 ** 32
          ? new Uint32Array(n)
          : new Float64Array(n);
  if (!info.delta && info.planes === 1) {
    out.set(planes.subarray(0, n));
    return out;
  }
  if (info.planes <= 4) decodeShort(planes, info, out);
  else decodeLong(planes, info, out);
  return out;
}

/** Numbers of up to 32 bits: whole-number arithmetic, which is several times as quick. */
function decodeShort(
  planes: Uint8Array,
  { n, planes: count, delta }: Omit<ColumnInfo, "chunk" | "from">,
  out: Numbers,
): void {
  const second = count > 1 ? n : 0;
  const third = count > 2 ? 2 * n : 0;
  const fourth = count > 3 ? 3 * n : 0;
  let before = 0;
  for (let i = 0; i < n; i++) {
    let value = planes[i];
    if (second) value |= planes[second + i] << 8;
    if (third) value |= planes[third + i] << 16;
    if (fourth) value |= planes[fourth + i] << 24;
    if (delta) {
      before += (value >>> 1) ^ -(value & 1);
      out[i] = before;
    } else {
      out[i] = value >>> 0;
    }
  }
}

function decodeLong(
  planes: Uint8Array,
  { n, planes: count, delta }: Omit<ColumnInfo, "chunk" | "from">,
  out: Numbers,
): void {
  let before = 0;
  for (let i = 0; i < n; i++) {
    let value = 0;
    let weight = 1;
    for (let plane = 0, at = i; plane < count; plane++, at += n) {
      value += planes[at] * weight;
      weight *= 256;
    }
    if (delta) before += value % 2 ? -(value + 1) / 2 : value / 2;
    out[i] = delta ? before : value;
  }
}

export async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The page's own data, or what the server that it came from holds. */
export async function pageData(): Promise<Uint8Array<ArrayBuffer>> {
  const element = document.getElementById("data");
  const text = element?.textContent ?? "";
  if (text) {
    element?.remove();
    return fromBase64(text);
  }
  const answer = await fetch(`data${location.search}`, { credentials: "omit" });
  if (!answer.ok)
    throw new Error(
      `the program behind this page answers ${answer.status}: start vramlens view again`,
    );
  return new Uint8Array(await answer.arrayBuffer());
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const native = (
    Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> }
  ).fromBase64;
  if (native) return native.call(Uint8Array, text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}
