// The state as the part of the address after `#`: short, readable, and the same place when it is opened again.

import { GROUPINGS } from "../data/groups";
import { FRAMES, MOMENTS, ORDERS, type State, TABLE_KINDS, TABS } from "./store";

/** What an address that does not name it means. */
export const UNSET: Partial<State> = {
  window: null,
  bytes: null,
  space: null,
  selected: -1,
  call: -1,
  finding: -1,
  group: -1,
  only: -1,
  range: null,
  off: "",
  sort: "",
  frames: "own",
  zoom: "",
  around: -1,
  both: null,
  search: "",
  track: 0,
};

export function toHash(state: State): string {
  const parts = new URLSearchParams();
  const put = (name: string, value: string | number, unless: string | number): void => {
    if (value !== unless) parts.set(name, String(value));
  };
  const span = (range: [number, number] | null, digits: number): string =>
    range ? range.map((at) => at.toFixed(digits)).join("_") : "";
  parts.set("view", state.tab);
  put("track", state.track, 0);
  parts.set("by", state.by);
  parts.set("axis", state.axis);
  put("x", span(state.window, 1), "");
  put("y", span(state.bytes, 0), "");
  put("addresses", span(state.space, 0), "");
  parts.set("at", String(state.cursor));
  put("allocation", state.selected, -1);
  put("collective", state.call, -1);
  put("finding", state.finding, -1);
  put("group", state.group, -1);
  put("only", state.only, -1);
  put("range", span(state.range, 0), "");
  put("search", state.search, "");
  put("off", state.off, "");
  put("lines", linesWord(state.lines), "r");
  put("sort", state.sort, "");
  if (state.tab === "who" || state.tab === "compare") parts.set("table", state.table);
  if (state.tab === "who") {
    parts.set("of", state.of);
    put("frames", state.frames, "own");
    put("zoom", state.zoom, "");
    put("around", state.around, -1);
  }
  if (state.tab === "compare") {
    parts.set("pair", state.pair.join("_"));
    put("align", state.align, "steps");
    put("both", span(state.both, 3), "");
  }
  if (state.tab === "ranks") put("order", state.order, "accused");
  return parts.toString();
}

export function fromHash(hash: string): Partial<State> {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const state: Partial<State> = {};
  const oneOf = <Value extends string>(name: string, values: readonly Value[]): Value | undefined =>
    values.find((value) => value === parts.get(name));
  const number = (name: string): number | undefined => {
    const text = parts.get(name);
    const value = Number(text);
    return text !== null && text !== "" && Number.isSafeInteger(value) && value >= -1
      ? value
      : undefined;
  };
  const range = (name: string): [number, number] | undefined =>
    rangeIn(parts.get(name) ?? "", (a, b) => b > a);
  const matching = (name: string, pattern: RegExp): string | undefined => {
    const text = parts.get(name) ?? "";
    return pattern.test(text) ? text : undefined;
  };
  const put = <Name extends keyof State>(name: Name, value: State[Name] | undefined): void => {
    if (value !== undefined) state[name] = value;
  };
  put("tab", oneOf("view", TABS));
  put("track", number("track"));
  put("by", oneOf("by", GROUPINGS));
  put("axis", oneOf("axis", ["time", "events"] as const));
  put("window", range("x"));
  put("bytes", range("y"));
  put("space", range("addresses"));
  put("cursor", number("at"));
  put("selected", number("allocation"));
  put("call", number("collective"));
  put("finding", number("finding"));
  put("group", number("group"));
  put("only", number("only"));
  put(
    "range",
    rangeIn(parts.get("range") ?? "", (a, b) => b >= a),
  );
  put("search", parts.get("search") ?? undefined);
  put("off", matching("off", /^\d{1,3}(_\d{1,3})*$/));
  put("lines", linesOf(parts.get("lines")));
  put("sort", matching("sort", /^-?[a-z ]{1,20}$/));
  put("of", oneOf("of", MOMENTS));
  put("table", oneOf("table", TABLE_KINDS));
  put("frames", oneOf("frames", FRAMES));
  put("zoom", matching("zoom", /^(n|l?\d{1,9})(\.(n|l?\d{1,9})){0,400}$/));
  put("around", number("around"));
  put(
    "pair",
    rangeIn(parts.get("pair") ?? "", () => true),
  );
  put("align", oneOf("align", ["steps", "start"] as const));
  put("both", range("both"));
  put("order", oneOf("order", ORDERS));
  return state;
}

function rangeIn(
  text: string,
  isGood: (a: number, b: number) => boolean,
): [number, number] | undefined {
  const [a, b, ...more] = text.split("_").map(Number);
  if (!text || b === undefined || more.length || !Number.isFinite(b)) return undefined;
  return a >= 0 && isGood(a, b) ? [a, b] : undefined;
}

function linesWord({ allocated, active, reserved }: State["lines"]): string {
  const word = `${allocated ? "a" : ""}${active ? "c" : ""}${reserved ? "r" : ""}`;
  return word || "none";
}

function linesOf(word: string | null): State["lines"] | undefined {
  if (word === null || !/^(none|[acr]{1,3})$/.test(word)) return undefined;
  const has = (letter: string): boolean => word !== "none" && word.includes(letter);
  return { allocated: has("a"), active: has("c"), reserved: has("r") };
}
