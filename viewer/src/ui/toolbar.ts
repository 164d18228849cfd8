// The row above the picture: what it is coloured by, its axis, its lines, and the legend.

import { type GroupingName, groupingsOf } from "../data/groups";
import { size } from "../base/format";
import { css } from "../base/palette";
import { swatch } from "../views/swatch";
import { bytesWords, isOff, lineSwatch, look, turnedOff } from "../views/what_if_lines";
import { fill, h } from "../draw/dom";
import type { Host } from "../state/pane";

const LINES = ["allocated", "active", "reserved"] as const;
const GROUPED: Record<GroupingName, string> = {
  category: "category",
  phase: "phase",
  module: "module",
  line: "line",
  code: "code",
  step: "step",
  stream: "stream",
  pool: "pool",
  age: "lifetime",
  leak: "leak, by step",
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
    const { state } = this.host.store;
    const coloured = state.tab === "memory" || state.tab === "addresses";
    this.element.hidden = state.tab === "who" || state.tab === "list";
    const { tab, by, axis, track, off } = state;
    const lines = JSON.stringify(state.lines);
    const key = [tab, by, axis, track, off, lines, this.host.theme().dark].join();
    if (key !== this.key) {
      this.key = key;
      fill(
        this.element,
        coloured && this.colouring(),
        this.axes(),
        tab === "memory" && this.lines(),
        coloured && this.legend,
      );
      this.sums.length = this.whatIf.length = 0;
      fill(
        this.legend,
        ...(coloured ? this.entries() : []),
        ...(tab === "memory" ? this.settings() : []),
      );
    }
    if (coloured) this.fillIn();
  }

  private colouring(): HTMLElement {
    const { store } = this.host;
    const choose = (event: Event): void =>
      store.set({ by: (event.target as HTMLSelectElement).value as GroupingName, bytes: null });
    return h(
      "label",
      {},
      "color by ",
      h(
        "select",
        { id: "by", onchange: choose },
        ...groupingsOf(this.host.scene().track).map((by) =>
          h("option", { value: by, selected: by === store.state.by }, GROUPED[by]),
        ),
      ),
    );
  }

  private axes(): HTMLElement {
    const { timed } = this.host.scene().track.header;
    const shown = timed ? this.host.store.state.axis : "events";
    return h(
      "span",
      { class: "switch", role: "group", "aria-label": "axis" },
      ...(["time", "events"] as const).map((axis) =>
        h(
          "button",
          {
            "aria-pressed": String(shown === axis),
            disabled: axis === "time" && !timed,
            onclick: () => this.turn(axis),
          },
          axis,
        ),
      ),
    );
  }

  private lines(): HTMLElement {
    const { store } = this.host;
    const { lines } = store.state;
    return h(
      "span",
      { class: "switch", role: "group", "aria-label": "lines" },
      ...LINES.map((line) =>
        h(
          "button",
          {
            class: `line-${line}`,
            "aria-pressed": String(lines[line]),
            onclick: () => store.set({ lines: { ...lines, [line]: !lines[line] } }),
          },
          line,
        ),
      ),
    );
  }

  /** The groups: a click marks one, a double click shows it alone. */
  private entries(): HTMLElement[] {
    const { store } = this.host;
    const { by } = store.state;
    return this.host.scene().groups(by).groups.map((group, i) => {
      const sum = h("span", { class: "soft" });
      this.sums.push(sum);
      return h(
        "button",
        {
          class: "entry",
          title: `${group.name}: click to mark it, double click to show it alone`,
          onclick: (event: MouseEvent) => {
            const { group: marked } = store.state;
            if (event.detail > 1) this.isolate(i);
            else store.set({ group: marked === i ? -1 : i, finding: -1, search: "" });
          },
        },
        swatch(css(group.colour)),
        h("span", { class: "named" }, group.name),
        " ",
        sum,
      );
    }); // prettier-ignore
  }

  private isolate(group: number): void {
    const { store } = this.host;
    store.set({ only: store.state.only === group ? -1 : group, group: -1, bytes: null });
  }

  /** The replayed settings: a click takes a line away, or brings it back. */
  private settings(): HTMLElement[] {
    const { store } = this.host;
    return this.host.scene().track.whatIf.map(({ header }, i) => {
      const bytes = h("span", { class: "soft" });
      this.whatIf.push(bytes);
      const off = isOff(store.state.off, i);
      return h(
        "button",
        {
          class: `entry line${off ? " hidden-group" : ""}`,
          title: header.words,
          "aria-pressed": String(!off),
          onclick: () => store.set({ off: turnedOff(store.state.off, i) }),
        },
        lineSwatch(look(this.host.theme(), i).colour),
        h("span", { class: "named" }, header.conf),
        " ",
        bytes,
      );
    });
  }

  /** The bytes at the cursor. */
  private fillIn(): void {
    const scene = this.host.scene();
    const { by, cursor, group: marked, only } = this.host.store.state;
    const sums = scene.groups(by).at(cursor, new Float64Array(this.sums.length));
    this.sums.forEach((element, i) => {
      element.textContent = sums[i] ? size(sums[i]) : "";
      element.title = `${size(sums[i])} at the cursor`;
      const entry = element.parentElement!;
      entry.classList.toggle("none", !sums[i]);
      entry.classList.toggle("hidden-group", only >= 0 && only !== i);
      entry.setAttribute("aria-pressed", String(marked === i || only === i));
    });
    this.whatIf.forEach((element, i) => {
      element.textContent = bytesWords(scene.track.whatIf[i], cursor);
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
