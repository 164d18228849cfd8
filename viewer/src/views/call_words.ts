// One collective in words: what was called, with whom, how large, and how it ended.

import type { Calls } from "../data/calls";
import type { Track } from "../data/track";
import { count, counted, longPlace, shortPlace, size, time } from "../base/format";
import { h } from "../draw/dom";
import { stackList } from "./stack_list";

/** How a call ended. */
export function endWords(calls: Calls, call: number): string {
  const finished = calls.column.finished[call];
  switch (calls.state(call)) {
    case "completed":
      return finished ? `finished, noticed ${time(finished - 1)} later` : "finished";
    case "started":
      return "started, and never finished";
    case "scheduled":
      return "never finished: queued, and nobody saw it start";
    case "not returned":
      return "the call had not returned when the recording ended";
    case "":
      return "the call returned; when it finished is not recorded";
    default:
      return "the flight record does not say how it ended";
  }
}

/** A call in one line: `all_reduce, 26.25 MiB, number 9 of group 0 (default_pg): finished`. */
export function callLine(track: Track, calls: Calls, call: number): string {
  const parts = [
    callName(track, calls, call),
    callSize(calls, call),
    numbered(track, calls, call),
  ].filter(Boolean);
  return `${parts.join(", ")}: ${endWords(calls, call)}`;
}

export const callName = (track: Track, calls: Calls, call: number): string =>
  track.text(calls.column.name[call]) || "a call without a name";

function callSize(calls: Calls, call: number): string {
  const bytes = calls.column.bytes[call];
  return bytes ? size(bytes - 1) : "";
}

function numbered(track: Track, calls: Calls, call: number): string {
  const { group, seq } = calls.column;
  const found = calls.header.groups[group[call] - 1];
  return found
    ? `${seq[call] ? `number ${count(seq[call] - 1)} of ` : ""}group ${track.text(found[0])}`
    : "";
}

export function callDetails(track: Track, call: number): HTMLElement[] {
  const calls = track.calls!;
  const { at, late, took, shape, problem, group } = calls.column;
  const event = calls.event(track, call);
  const step = track.stepOf(event);
  const ranks = calls.header.groups[group[call] - 1];
  const stack = calls.stack(track, call);
  const mine = stack.find((frame) => frame.user);
  const after = late[call]
    ? `${time(late[call])} after the last event`
    : `${time(at[call])}, after event ${count(event)}`;
  const facts: [string, string][] = [
    ["called", `${after}${step >= 0 ? `, step ${count(step)}` : ""}`],
    ["returned", took[call] ? `after ${time(took[call] - 1)}` : ""],
    ["ended", endWords(calls, call)],
    ["tensors", shape[call] ? track.text(shape[call] - 1) : ""],
    ["ranks", ranks ? track.text(ranks[1]).replace(/^ranks? /, "") : ""],
  ];
  const nothing = calls.header.flight
    ? "No Python stack was recorded for it: the backward pass calls from threads of its own."
    : calls.header.notes.join(" ");
  return [
    h(
      "div",
      { class: "facts" },
      h("div", { class: "size" }, callName(track, calls, call)),
      h(
        "div",
        {},
        [callSize(calls, call), numbered(track, calls, call)].filter(Boolean).join(", "),
      ),
      problem[call] ? h("p", { class: "wrong" }, track.text(problem[call] - 1)) : null,
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          ...facts
            .filter(([, value]) => value)
            .map(([what, value]) =>
              h(
                "tr",
                {},
                h("th", {}, what),
                h(
                  "td",
                  { class: what === "ended" && calls.open.includes(call) ? "wrong" : undefined },
                  value,
                ),
              ),
            ),
        ),
      ),
    ),
    h(
      "div",
      { class: "stack" },
      mine
        ? h("div", { class: "user-line" }, h("b", {}, longPlace(mine)), ` in ${mine.function}`)
        : h(
            "div",
            { class: "user-line soft" },
            stack.length ? `No line of yours; called at ${shortPlace(stack[0])}.` : nothing,
          ),
      stackList(stack),
    ),
  ];
}

/** All calls in one line, for below the picture. */
export function callsWords(calls: Calls): string {
  if (!calls.n) return calls.header.notes.join(" ");
  const { open, differing } = calls;
  const told = [
    open.length ? `${count(open.length)} never finished` : "",
    differing ? `the ranks differ in ${count(differing)}` : "",
  ].filter(Boolean);
  return `${counted(calls.n, "collective")}${told.length ? `: ${told.join(", ")}` : ""} (K: the next one). ${calls.header.notes.join(" ")}`.trim();
}
