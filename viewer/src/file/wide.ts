// Columns of 64-bit numbers as a browser computes with them: exact up to 2^53, which no address or size of a device exceeds.

import type { Column } from "./native";

export type Wide = Uint8Array | Int32Array | Uint32Array | Float64Array;

const HIGH = 2 ** 32;

export function wide(column: Column): Wide {
  if (!(column instanceof BigInt64Array || column instanceof BigUint64Array)) return column;
  const halves = new Uint32Array(column.buffer, column.byteOffset, 2 * column.length);
  const isSigned = column instanceof BigInt64Array;
  const out = new Float64Array(column.length);
  for (let i = 0; i < out.length; i++) {
    const high = halves[2 * i + 1];
    out[i] = (isSigned ? high | 0 : high) * HIGH + halves[2 * i];
  }
  return out;
}

/** The rows of a column, in this order. */
export function taken<C extends Column>(column: C, rows: ArrayLike<number>): C {
  const out = new (column.constructor as new (count: number) => C)(rows.length);
  const from = column as unknown as number[]; // of one type with `to`, whichever that is
  const to = out as unknown as number[];
  for (let i = 0; i < rows.length; i++) to[i] = from[rows[i]];
  return out;
}

/** By row, a number; several times as quick as `Float64Array.from`. */
export function madeOf(rows: number, value: (row: number) => number): Float64Array {
  const out = new Float64Array(rows);
  for (let row = 0; row < rows; row++) out[row] = value(row);
  return out;
}
