// Undo of every view change, and the browser's own Back for changes of place.

import { fromHash, toHash, UNSET } from "./address";
import type { State, Store } from "./store";

/** A change of these is a place of its own, which Back leads to; others only correct the address. */
const PLACES = [
  "tab",
  "track",
  "finding",
  "call",
  "by",
  "table",
  "range",
  "group",
  "only",
  "frames",
  "zoom",
  "around",
  "pair",
  "of",
] as const;
const QUIET_MS = 150;
const MOST = 200;

export class History {
  private readonly past: State[] = [];
  private future: State[] = [];
  private settled: State;
  private timer = 0;
  private written = location.hash;
  private isReturning = false;

  constructor(
    private readonly store: Store,
    private readonly within: (state: State) => State,
    private readonly closed: AbortSignal,
  ) {
    this.settled = store.state;
    store.subscribe(() => this.later());
    window.addEventListener("hashchange", () => this.follow(), { signal: closed });
  }

  undo(): boolean {
    this.settle();
    return this.go(this.past, this.future);
  }

  redo(): boolean {
    this.settle();
    return this.go(this.future, this.past);
  }

  private go(from: State[], to: State[]): boolean {
    const state = from.pop();
    if (!state) return false;
    to.push(this.settled);
    this.isReturning = true;
    this.store.set(this.within(state));
    this.settle();
    this.isReturning = false;
    return true;
  }

  /** The address was typed, or Back was pressed. */
  private follow(): void {
    this.written = location.hash;
    if (location.hash !== `#${toHash(this.store.state)}`)
      this.store.set(this.within({ ...this.store.state, ...UNSET, ...fromHash(location.hash) }));
  }

  private later(): void {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.settle(), QUIET_MS);
  }

  /** Once things are quiet: remembers what was shown before, and writes what is shown into the address. */
  private settle(): void {
    clearTimeout(this.timer);
    if (this.closed.aborted) return;
    const { state } = this.store;
    const before = this.settled;
    if (toHash(before) === toHash(state) && this.written) return;
    this.settled = state;
    if (!this.isReturning && toHash(before) !== toHash(state)) {
      this.past.push(before);
      if (this.past.length > MOST) this.past.shift();
      this.future = [];
    }
    if (location.hash !== this.written) return; // never over an address that has just been typed
    const isPlace = this.written !== "" && PLACES.some((part) => state[part] !== before[part]);
    this.written = `#${toHash(state)}`;
    if (this.written === location.hash) return;
    try {
      if (isPlace) history.pushState(null, "", this.written);
      else history.replaceState(null, "", this.written);
    } catch {
      this.written = location.hash; // inside a notebook a page has no address of its own
    }
  }
}
