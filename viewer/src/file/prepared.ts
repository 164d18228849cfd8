// Columns that were made here, for whoever reads them from a page's data.

import type { ColumnSource, Numbers } from "../data/container";

/** As in a page's data (src/vramlens/view/columns.py): what a browser's numbers hold exactly. */
const LARGEST = 2 ** 53;

export class PreparedColumns implements ColumnSource {
  private readonly all: (Numbers | null)[] = [];

  /** The number of a new column of whole numbers, not negative; in the narrowest array that holds them. */
  add(values: ArrayLike<number>): number {
    let largest = 0;
    for (let i = 0; i < values.length; i++) if (values[i] > largest) largest = values[i];
    const narrow =
      largest < 1 << 8
        ? new Uint8Array(values.length)
        : largest < 1 << 16
          ? new Uint16Array(values.length)
          : largest < 2 ** 32
            ? new Uint32Array(values.length)
            : new Float64Array(values.length);
    for (let i = 0; i < values.length; i++) narrow[i] = Math.min(LARGEST, Math.max(0, values[i]));
    return this.all.push(narrow) - 1;
  }

  /** A column, which is let go of here: each is read once. */
  column(number: number): Promise<Numbers> {
    const column = this.all[number];
    this.all[number] = null;
    return column ? Promise.resolve(column) : Promise.reject(new Error(`no column ${number}`));
  }
}
