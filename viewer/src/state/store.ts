// What is shown: one plain object, changed in one place, told to whoever draws. It is also the page's address.

import type { GroupingName } from "../data/groups";
import type { AxisKind } from "../layout/axis";

export const TABS = ["memory", "addresses", "who", "list", "compare", "ranks"] as const;
export type Tab = (typeof TABS)[number];
export const MOMENTS = ["cursor", "peak", "lifetime"] as const;
export type Moment = (typeof MOMENTS)[number];
export const FRAMES = ["own", "code", "all"] as const;
export const ORDERS = ["accused", "rank", "peak", "difference"] as const;
export type Order = (typeof ORDERS)[number];
export const TABLE_KINDS = ["line", "code", "module", "category", "phase", "stack"] as const;

export interface State {
  tab: Tab;
  track: number;
  axis: AxisKind;
  by: GroupingName;
  /** What part of the axis is looked at; null is the whole run. */
  window: [number, number] | null;
  /** What part of the bytes; null is all. */
  bytes: [number, number] | null;
  /** What part of the addresses; null is all. */
  space: [number, number] | null;
  cursor: number;
  selected: number;
  /** The collective that is chosen; -1 is none. */
  call: number;
  finding: number;
  search: string;
  /** The group of the legend that is marked, and the one that is shown alone; -1 is none. */
  group: number;
  only: number;
  /** The events that are asked about, the first and the last; null is none. */
  range: [number, number] | null;
  lines: { allocated: boolean; active: boolean; reserved: boolean };
  /** The replayed settings that are not drawn, by number, as `0_2`. */
  off: string;
  of: Moment;
  table: string;
  /** The column that tables are sorted by, with a minus where the order is turned; "" is their own. */
  sort: string;
  /** Whose frames the flame graph shows, and the way down to the frame that it is zoomed in on. */
  frames: (typeof FRAMES)[number];
  zoom: string;
  /** The frame whose callers and callees it shows instead; -1 is none. */
  around: number;
  /** The two recordings that are compared. */
  pair: [number, number];
  /** Whether steps of one number lie at one place, and what part of that axis is looked at. */
  align: "steps" | "start";
  both: [number, number] | null;
  order: Order;
  theme: "" | "light" | "dark";
}

export class Store {
  private readonly listeners: ((state: State, before: State) => void)[] = [];

  constructor(public state: State) {}

  set(change: Partial<State>): void {
    const before = this.state;
    this.state = { ...before, ...change, ...this.consequences(change) };
    for (const listener of this.listeners) listener(this.state, before);
  }

  /** Calls `listener` with the state whenever one of these parts of it has changed. */
  watch(parts: readonly (keyof State)[], listener: (state: State) => void): void {
    this.subscribe((state, before) => {
      if (parts.some((part) => state[part] !== before[part])) listener(state);
    });
  }

  subscribe(listener: (state: State, before: State) => void): void {
    this.listeners.push(listener);
  }

  /** What a change rules out: one thing is marked at a time, and nothing of another track. */
  private consequences(change: Partial<State>): Partial<State> {
    const before = this.state;
    const after = { ...before, ...change };
    const others: Partial<State> = {};
    const turned = after.track !== before.track;
    if (change.call === undefined && (turned || (change.selected ?? -1) >= 0)) others.call = -1;
    if (change.selected === undefined && (others.call ?? after.call) >= 0) others.selected = -1;
    const isRegrouped = turned || after.by !== before.by;
    const unset = {
      ...(isRegrouped && { group: -1, only: -1 }),
      ...(turned && { range: null, space: null, zoom: "", around: -1 }),
    };
    for (const part of Object.keys(unset) as (keyof typeof unset)[])
      if (change[part] === undefined) Object.assign(others, { [part]: unset[part] });
    return others;
  }
}
