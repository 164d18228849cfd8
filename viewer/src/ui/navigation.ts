// Ways through the page: to an event, a finding, a collective, an allocation, a match.

import { lowerBound } from "../data/search";
import { count, shortPlace, size } from "../base/format";
import { clamp } from "../state/scene";
import type { Host } from "../state/pane";
import { callLine } from "../views/call_words";
import { setWindow } from "../views/input";
import { placesOf } from "../views/ruler";
import { turned } from "./opening";

export class Navigation {
  constructor(private readonly host: Host) {}

  /** Moves the cursor to an event, and the picture where it does not show it. */
  goTo(event: number): void {
    const { store } = this.host;
    const scene = this.host.scene();
    const axis = scene.axis(store.state.axis);
    const place = axis.place(event);
    const [from, to] = scene.window(store.state);
    const length = to - from;
    const inside = place >= from && place <= to;
    const start = Math.max(0, Math.min(place - length * 0.6, axis.end - length));
    store.set({
      cursor: event,
      ...(inside ? {} : { window: [start, start + length] as [number, number] }),
    });
  }

  /** Moves to a finding's moment and marks what it is about. */
  showFinding(number: number): void {
    const { store } = this.host;
    const finding = this.host.scene().track.header.verdict.findings[number];
    if (!finding) return store.set({ finding: -1 });
    store.set({ finding: number, search: "", group: -1 });
    this.goTo(finding.event);
  }

  nextFinding(by: number): void {
    const all = this.host.scene().track.header.verdict.findings.length;
    if (all) this.showFinding((this.host.store.state.finding + by + all) % all);
  }

  /** The collective after the one that is chosen, or after the cursor; the picture follows. */
  turnCall(by: number): void {
    const { host } = this;
    const { track } = host.scene();
    const { calls } = track;
    if (!calls?.n) return host.say("This recording tells of no collectives.");
    const { state } = host.store;
    let next = state.call + by;
    if (state.call < 0) {
      const after = lowerBound(calls.column.at, track.timeOf(state.cursor));
      next = by > 0 ? after : after - 1;
    }
    next = Math.min(calls.n - 1, Math.max(0, next));
    host.store.set({ call: next, tab: "memory" });
    this.goTo(calls.event(track, next));
    host.say(callLine(track, calls, next));
  }

  showCall(call: number): void {
    const scene = this.host.scene();
    const axis = scene.axis(this.host.store.state.axis);
    const { from, to } = scene.track.calls!.places(axis);
    const room = Math.max((to[call] - from[call]) * 2, 20 * axis.shortest);
    setWindow(this.host, this.host.store, from[call] - room, to[call] + room);
  }

  turnTo(track: number): void {
    const { store, scenes } = this.host;
    store.set(turned(scenes[track], store.state, track));
  }

  /** The allocation above or below the one that is chosen, at the cursor. */
  choose(by: number): void {
    const { store } = this.host;
    const scene = this.host.scene();
    const { track } = scene;
    const groups = scene.groups(store.state.by);
    const alive = track
      .alive(store.state.cursor)
      .sort((a, b) => groups.of[a] - groups.of[b] || a - b);
    if (!alive.length) return;
    const place = alive.indexOf(store.state.selected);
    const edge = by > 0 ? 0 : alive.length - 1;
    const next = place < 0 ? edge : Math.min(alive.length - 1, Math.max(0, place + by));
    store.set({ selected: alive[next] });
    this.sayRow(alive[next], `${count(next + 1)} of ${count(alive.length)}`);
  }

  /** The next allocation that is marked, in order of birth. */
  turnMatch(by: number): void {
    const { store } = this.host;
    const { track } = this.host.scene();
    const flags = this.host.marked()?.flags;
    if (!flags) return this.host.say("Nothing is marked: search for something first.");
    let row = store.state.selected < 0 && by < 0 ? track.n : store.state.selected;
    do row += by;
    while (row >= 0 && row < track.n && !flags[row]);
    if (row < 0 || row >= track.n) return this.host.say("There is no further match.");
    store.set({ selected: row });
    this.goTo(Math.max(0, track.born[row]));
    this.sayRow(row, "a match");
  }

  private sayRow(row: number, where: string): void {
    const { track } = this.host.scene();
    const line = track.line(row);
    this.host.say(
      `${size(track.row.bytes[row])}, ${line ? shortPlace(line) : "no line of yours"}, ${where}`,
    );
  }

  /** The picture as wide as the range that is asked about. */
  zoomToRange(): void {
    const { store } = this.host;
    const { range, axis: kind } = store.state;
    if (!range) return this.host.say("Pick a range first: click a step, or drag with Shift.");
    const axis = this.host.scene().axis(kind);
    const [from, to] = placesOf(axis, range);
    store.set({ window: clamp(from, to, axis.end, axis.shortest) });
  }

  /** The bytes from nothing to the most that the picture shows. */
  fitHeight(): void {
    const { store } = this.host;
    const scene = this.host.scene();
    const axis = scene.axis(store.state.axis);
    const [from, to] = scene.window(store.state);
    const last = Math.min(scene.track.events, axis.event(to) + 1);
    const first = axis.event(from);
    const { track } = scene;
    let most = track.requested.at(track.requested.peak(first, last));
    if (store.state.lines.reserved)
      most = Math.max(most, track.reserved.highest(Math.max(0, first), last));
    if (store.state.only >= 0) return store.set({ bytes: null });
    store.set({ bytes: [0, Math.max(1, most) * 1.05] });
  }
}
