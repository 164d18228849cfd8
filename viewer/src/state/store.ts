// What is shown: one plain object, changed in one place, told to whoever draws. It is also the page's address.

import { GROUPINGS, type GroupingName } from "../data/groups";
import type { AxisKind } from "../layout/axis";

export const TABS = ["memory", "addresses", "who", "compare", "ranks"] as const;
export type Tab = (typeof TABS)[number];
export const MOMENTS = ["cursor", "peak", "lifetime"] as const;
export type Moment = (typeof MOMENTS)[number];

export interface State {
  tab: Tab;
  track: number;
  axis: AxisKind;
  by: GroupingName;
  /** What part of the axis is looked at; null is the whole run. */
  window: [number, number] | null;
  /** What part of the bytes; null is all. */
  bytes: [number, number] | null;
  cursor: number;
  selected: number;
  /** The collective that is chosen; -1 is none. */
  call: number;
  finding: number;
  search: string;
  lines: { allocated: boolean; active: boolean; reserved: boolean };
  of: Moment;
  table: string;
  theme: "" | "light" | "dark";
}

export class Store {
  private readonly listeners: ((state: State, before: State) => void)[] = [];

  constructor(public state: State) {}

  set(change: Partial<State>): void {
    const before = this.state;
    this.state = { ...before, ...change };
    // An allocation or a collective is chosen, never both; and one of another track is none of this one.
    const turned = this.state.track !== before.track;
    if (change.call === undefined && (turned || (change.selected ?? -1) >= 0)) this.state.call = -1;
    if (change.selected === undefined && this.state.call >= 0) this.state.selected = -1;
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
}

/** The part of the address after `#`: short, readable, and the same place when it is opened again. */
export function toHash(state: State): string {
  const parts = new URLSearchParams();
  parts.set("view", state.tab);
  if (state.track) parts.set("track", String(state.track));
  parts.set("by", state.by);
  parts.set("axis", state.axis);
  if (state.window) parts.set("x", state.window.map((at) => at.toFixed(1)).join("_"));
  if (state.bytes) parts.set("y", state.bytes.map((at) => at.toFixed(0)).join("_"));
  parts.set("at", String(state.cursor));
  if (state.selected >= 0) parts.set("allocation", String(state.selected));
  if (state.call >= 0) parts.set("collective", String(state.call));
  if (state.finding >= 0) parts.set("finding", String(state.finding));
  if (state.search) parts.set("search", state.search);
  if (state.tab === "who") {
    parts.set("of", state.of);
    parts.set("table", state.table);
  }
  return parts.toString();
}

export function fromHash(hash: string): Partial<State> {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const found: Partial<State> = {};
  const oneOf = <Value extends string>(name: string, values: readonly Value[]): Value | undefined =>
    values.find((value) => value === parts.get(name));
  const number = (name: string): number | undefined => {
    const text = parts.get(name);
    const value = Number(text);
    return text !== null && text !== "" && Number.isSafeInteger(value) && value >= -1
      ? value
      : undefined;
  };
  const range = (name: string): [number, number] | undefined => {
    const [a, b, ...more] = (parts.get(name) ?? "").split("_").map(Number);
    return a !== undefined &&
      b !== undefined &&
      !more.length &&
      a >= 0 &&
      b > a &&
      Number.isFinite(b)
      ? [a, b]
      : undefined;
  };
  const put = <Name extends keyof State>(name: Name, value: State[Name] | undefined): void => {
    if (value !== undefined) found[name] = value;
  };
  put("tab", oneOf("view", TABS));
  put("track", number("track"));
  put("by", oneOf("by", GROUPINGS));
  put("axis", oneOf("axis", ["time", "events"] as const));
  put("window", range("x"));
  put("bytes", range("y"));
  put("cursor", number("at"));
  put("selected", number("allocation"));
  put("call", number("collective"));
  put("finding", number("finding"));
  put("search", parts.get("search") ?? undefined);
  put("of", oneOf("of", MOMENTS));
  put("table", oneOf("table", ["line", "module", "category", "phase", "stack"]));
  return found;
}
