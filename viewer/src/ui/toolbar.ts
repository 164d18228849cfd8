// The row above the picture: what it is coloured by, its axis, its lines, and the legend.

import { GROUPINGS, type GroupingName } from "../data/groups";
import { size } from "../base/format";
import { css } from "../base/palette";
import { swatch } from "../views/memory_pane";
import { bytesWords, lineSwatch, look } from "../views/what_if_lines";
import { fill, h } from "../draw/dom";
import type { Host } from "../state/pane";

const LINES = ["allocated", "active", "reserved"] as const;
const GROUPED: Record<GroupingName, string> = {
  category: "category",
  phase: "phase",
  module: "module",
  line: "line",
  step: "step",
  stream: "stream",
  age: "lifetime",
};

export class Toolbar {
  readonly element = h("div", {
    class: "toolbar",
    role: "toolbar",
    "aria-label": "What the picture shows",
  });
  readonly legend = h("div", { class: "legend" });
  private readonly sums: HTMLElement[] = [];
  private readonly whatIf: HTMLElement[] = [];
  private key = "";

  constructor(private readonly host: Host) {}

  draw(): void {
    const { store } = this.host;
    const scene = this.host.scene();
    const { state } = store;
    const timed = scene.track.header.timed;
    const memory = state.tab === "memory";
    const coloured = memory || state.tab === "addresses";
    this.element.hidden = state.tab === "who";
    const key = [
      state.tab,
      state.by,
      state.axis,
      state.track,
      JSON.stringify(state.lines),
      this.host.theme().dark,
    ].join();
    if (key !== this.key) {
      this.key = key;
      fill(
        this.element,
        coloured &&
          h(
            "label",
            {},
            "colour by ",
            h(
              "select",
              {
                id: "by",
                onchange: (event: Event) =>
                  store.set({
                    by: (event.target as HTMLSelectElement).value as GroupingName,
                    bytes: null,
                  }),
              },
              ...GROUPINGS.map((by) =>
                h("option", { value: by, selected: by === state.by }, GROUPED[by]),
              ),
            ),
          ),
        h(
          "span",
          { class: "switch", role: "group", "aria-label": "axis" },
          ...(["time", "events"] as const).map((axis) =>
            h(
              "button",
              {
                "aria-pressed": String((timed ? state.axis : "events") === axis),
                disabled: axis === "time" && !timed,
                onclick: () => this.turn(axis),
              },
              axis,
            ),
          ),
        ),
        memory &&
          h(
            "span",
            { class: "switch", role: "group", "aria-label": "lines" },
            ...LINES.map((line) =>
              h(
                "button",
                {
                  class: `line-${line}`,
                  "aria-pressed": String(state.lines[line]),
                  onclick: () =>
                    store.set({
                      lines: { ...store.state.lines, [line]: !store.state.lines[line] },
                    }),
                },
                line,
              ),
            ),
          ),
        coloured && this.legend,
      );
      this.sums.length = this.whatIf.length = 0;
      fill(
        this.legend,
        ...(coloured ? scene.groups(state.by).groups : []).map((group) => {
          const sum = h("span", { class: "soft" });
          this.sums.push(sum);
          return h(
            "span",
            { class: "entry" },
            swatch(css(group.colour)),
            h("span", { class: "named", title: group.name }, group.name),
            " ",
            sum,
          );
        }),
        ...(memory ? scene.track.whatIf : []).map(({ header }, i) => {
          const bytes = h("span", { class: "soft" });
          this.whatIf.push(bytes);
          return h(
            "span",
            { class: "entry line" },
            lineSwatch(look(this.host.theme(), i).colour),
            h("span", { class: "named", title: header.words }, header.conf),
            " ",
            bytes,
          );
        }),
      );
    }
    if (!coloured) return;
    const sums = scene.groups(state.by).at(state.cursor, new Float64Array(this.sums.length));
    this.sums.forEach((element, i) => {
      element.textContent = sums[i] ? size(sums[i]) : "";
      element.title = `${size(sums[i])} at the cursor`;
      element.parentElement!.classList.toggle("none", !sums[i]);
    });
    this.whatIf.forEach((element, i) => {
      element.textContent = bytesWords(scene.track.whatIf[i], state.cursor);
      element.title = `${element.textContent} at the cursor`;
    });
  }

  /** The other axis, looking at the same events. */
  turn(axis: "time" | "events"): void {
    const { store } = this.host;
    const scene = this.host.scene();
    const now = scene.axis(store.state.axis);
    const next = scene.axis(axis);
    const [from, to] = scene.window(store.state);
    const whole = store.state.window === null;
    const window: [number, number] = [
      next.place(Math.max(0, now.event(from))),
      Math.min(next.end, next.place(now.event(to)) + 1),
    ];
    store.set({ axis, window: whole || window[1] <= window[0] ? null : window });
  }
}
