// A page's texts: each once, on one line (src/vramlens/view/texts.py).

import { visible } from "./file_error";
import type { Snapshot } from "./snapshot";

const LONGEST = 2000;

export class Texts {
  private readonly numbers = new Map<string, number>();
  private readonly ofIds = new Map<number, number>();

  /** The number of a snapshot's text. */
  number(snapshot: Snapshot, id: number): number {
    let number = this.ofIds.get(id);
    if (number === undefined) this.ofIds.set(id, (number = this.numberOf(snapshot.text(id))));
    return number;
  }

  get all(): string[] {
    return [...this.numbers.keys()];
  }

  private numberOf(text: string): number {
    const shown = shortened(text);
    let number = this.numbers.get(shown);
    if (number === undefined) this.numbers.set(shown, (number = this.numbers.size));
    return number;
  }
}

/** A text on one line, cut where it is longer than any name. */
export function shortened(text: string, longest = LONGEST): string {
  const shown = visible(text.slice(0, longest));
  return text.length <= longest && shown.length <= longest ? shown : `${shown.slice(0, longest)}…`;
}
