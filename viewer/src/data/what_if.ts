// A setting that was replayed: what would have been reserved after each event, as far as the program would have come.

import type { ColumnSource } from "./container";
import { StepCurve } from "./curve";
import type { WhatIf } from "./header";

export class WhatIfLine {
  private constructor(
    readonly header: WhatIf,
    readonly curve: StepCurve,
  ) {}

  static async read(container: ColumnSource, header: WhatIf): Promise<WhatIfLine> {
    const [event, bytes] = await Promise.all([
      container.column(header.event),
      container.column(header.bytes),
    ]);
    return new WhatIfLine(
      header,
      new StepCurve(
        Float64Array.from(event, (one) => one - 1),
        bytes,
      ),
    );
  }

  /** Bytes right after an event, at most those where a step stands for several changes; null once the program is gone. */
  at(event: number): number | null {
    return this.isOver(event) ? null : this.curve.at(event);
  }

  isOver(event: number): boolean {
    return this.header.died !== null && event > this.header.died;
  }

  /** The most bytes within [first, last] by column; shorter than they are where the program ends before. */
  highest(first: ArrayLike<number>, last: ArrayLike<number>): Float64Array {
    const { died } = this.header;
    let columns = first.length;
    while (columns > 0 && this.isOver(first[columns - 1])) columns--;
    // The column in which it dies is the last: those that begin at that very event show nothing new.
    while (died !== null && columns > 1 && last[columns - 2] >= died) columns--;
    return Float64Array.from({ length: columns }, (_, i) =>
      this.curve.highest(first[i], Math.min(last[i], died ?? Infinity) + 1),
    );
  }
}
