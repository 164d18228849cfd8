// The page: its parts, and how they follow what is shown.

import type { Comparison, PageHeader } from "../data/header";
import { lowerBound } from "../data/search";
import { count, counted, shortPlace, size } from "../base/format";
import { makePanes } from "../views/panes";
import { callDetails, callLine } from "../views/call_words";
import { allocationDetails, momentDetails } from "./details";
import { eachFrame, fill, h } from "../draw/dom";
import { helpDialog } from "./help";
import { setWindow } from "../views/input";
import { bind } from "./keys";
import { type Marked, markedByFinding, markedBySearch } from "../state/marks";
import { trackName } from "../state/names";
import type { Host, Pane } from "../state/pane";
import { saveButtons } from "./save";
import type { Scene } from "../state/scene";
import { fromHash, type State, Store, type Tab, toHash } from "../state/store";
import { type Theme, themeOf } from "../state/theme";
import { Toolbar } from "./toolbar";
import { comparisonPanel, verdictPanel } from "./verdict";

const NAMES: Record<Tab, string> = {
  memory: "Memory",
  addresses: "Addresses",
  who: "Who",
  compare: "Compare",
  ranks: "Ranks",
};

export class App implements Host {
  readonly store: Store;
  private readonly panes: Partial<Record<Tab, Pane>>;
  private readonly toolbar: Toolbar;
  private readonly aside = h("aside", { "aria-label": "The verdict" });
  private readonly stage = h("main", {});
  private readonly drawer = h("section", {
    class: "drawer",
    "aria-label": "What is under the pointer",
  });
  private readonly heard = h("p", { class: "heard", role: "status" });
  private readonly search = h("input", {
    type: "search",
    placeholder: "search  /",
    "aria-label": "Search files, functions, modules, names",
    spellcheck: false,
  });
  private readonly found = h("span", { class: "found soft", role: "status" });
  private readonly tabs = h("nav", { "aria-label": "Views" });
  private readonly told = h("span", { class: "soft told" });
  private readonly help = helpDialog();
  private marks: Marked | null = null;
  private look: Theme;
  private inspected = "";

  constructor(
    private readonly header: PageHeader,
    readonly scenes: Scene[],
  ) {
    this.store = new Store(opening(scenes, header.comparison));
    this.look = themeOf(this.store.state.theme);
    this.panes = makePanes(this);
    this.toolbar = new Toolbar(this);
    this.remark();
    const track: HTMLSelectElement = h(
      "select",
      {
        "aria-label": "Recording and device",
        hidden: scenes.length < 2,
        onchange: () => this.turnTo(Number(track.value)),
      },
      ...scenes.map((scene, i) =>
        h(
          "option",
          { value: String(i), selected: i === this.store.state.track },
          trackName(scene, scenes),
        ),
      ),
    );
    document.title = `${header.title}: vramlens`;
    document.body.append(
      h(
        "header",
        {},
        h("b", { class: "brand" }, "vramlens"),
        h("h1", {}, header.title),
        track,
        this.told,
        this.tabs,
        this.search,
        this.found,
        saveButtons(this, () => this.pane),
        h(
          "button",
          {
            title: "light, dark (L)",
            "aria-label": "Light or dark",
            onclick: () => this.turnTheme(),
          },
          "◐",
        ),
        h(
          "button",
          {
            title: "keys (?)",
            "aria-label": "Keys and mouse",
            onclick: () => this.help.showModal(),
          },
          "?",
        ),
      ),
      h(
        "div",
        { class: "body" },
        this.aside,
        h("div", { class: "right" }, this.toolbar.element, this.stage, this.drawer),
      ),
      this.heard,
      this.help,
    );
    this.search.value = this.store.state.search;
    this.search.addEventListener("input", () =>
      this.store.set({ search: this.search.value, finding: -1 }),
    );
    this.search.addEventListener("keydown", (event) => event.key === "Enter" && this.search.blur());
    const draw = eachFrame(() => this.draw());
    this.store.watch(["track", "finding", "search"], () => this.remark());
    this.store.watch(["track"], (state) => (track.value = String(state.track)));
    this.store.watch(["track", "finding", "tab"], () => this.drawVerdict());
    this.store.watch(["selected", "cursor", "track", "call"], () => this.inspect(null));
    this.store.watch(["tab", "selected"], ({ tab, selected }) => {
      this.drawer.hidden = tab === "ranks" || (tab === "compare" && selected < 0);
    });
    this.store.subscribe(draw);
    this.keys();
    window.addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.follow(draw));
    window.addEventListener("hashchange", () => {
      this.written = location.hash;
      if (location.hash !== `#${toHash(this.store.state)}`)
        this.store.set(
          within(this.scenes, { ...this.store.state, ...UNSET, ...fromHash(location.hash) }),
        );
    });
    this.store.subscribe(() => this.address());
    this.drawVerdict();
    this.follow(() => this.draw());
    this.inspect(null);
    this.store.set({});
    document.documentElement.dataset.ready = "true";
  }

  scene(): Scene {
    return this.scenes[this.store.state.track];
  }

  theme(): Theme {
    return this.look;
  }

  marked(): Marked | null {
    return this.marks;
  }

  get pane(): Pane {
    return this.panes[this.store.state.tab] ?? this.panes.memory!;
  }

  inspectCall(call: number | null): void {
    if (call === null) return this.inspect(null);
    const key = `${this.store.state.track},call ${call}`;
    if (key === this.inspected) return;
    this.inspected = key;
    fill(this.drawer, ...callDetails(this.scene().track, call));
  }

  say(text: string): void {
    this.heard.textContent = text;
  }

  inspect(row: number | null, note = ""): void {
    const shown = row ?? this.store.state.selected;
    const { track } = this.scene();
    const { cursor, call } = this.store.state;
    if (shown < 0 && call >= 0) return this.inspectCall(call);
    const key = `${this.store.state.track},${shown},${note},${shown < 0 ? cursor : ""}`;
    if (key === this.inspected) return;
    this.inspected = key;
    if (shown >= 0 && shown < track.n) fill(this.drawer, ...allocationDetails(track, shown, note));
    else fill(this.drawer, ...momentDetails(track, cursor));
  }

  private draw(): void {
    const { state } = this.store;
    const shown = this.pane;
    if (this.stage.firstChild !== shown.element) fill(this.stage, shown.element);
    if (this.tabs.dataset.shown !== state.tab)
      fill(
        this.tabs,
        ...(Object.keys(this.panes) as Tab[]).map((tab) =>
          h(
            "button",
            {
              "aria-current": state.tab === tab ? "page" : undefined,
              onclick: () => this.store.set({ tab }),
            },
            NAMES[tab],
          ),
        ),
      );
    this.tabs.dataset.shown = state.tab;
    this.toolbar.draw();
    shown.draw();
    this.found.textContent = this.marks
      ? `${counted(this.marks.count, "allocation")} marked, ${size(this.marks.bytesAt(state.cursor))} at the cursor`
      : "";
  }

  private drawVerdict(): void {
    const { gpu, torch, events, rows } = this.scene().track.header;
    const told = [
      gpu,
      torch && `torch ${torch}`,
      `${count(events)} events, ${counted(rows.n, "allocation")}`,
    ];
    this.told.textContent = this.told.title = told.filter(Boolean).join(" · ");
    const { comparison } = this.header;
    const among = this.store.state.tab === "ranks" || this.store.state.tab === "compare";
    const shown = trackName(this.scene(), this.scenes);
    const own = verdictPanel(this.scene(), this.store, (finding) => this.showFinding(finding));
    fill(
      this.aside,
      comparison && among && comparisonPanel(comparison, shown, (track) => this.turnTo(track)),
      own,
    );
  }

  /** Moves to a finding's moment and marks what it is about. */
  private showFinding(number: number): void {
    const finding = this.scene().track.header.verdict.findings[number];
    if (!finding) return this.store.set({ finding: -1 });
    this.search.value = "";
    this.store.set({ finding: number, search: "" });
    this.goTo(finding.event);
  }

  private goTo(event: number): void {
    const scene = this.scene();
    const axis = scene.axis(this.store.state.axis);
    const place = axis.place(event);
    const [from, to] = scene.window(this.store.state);
    const length = to - from;
    const inside = place >= from && place <= to;
    const start = Math.max(0, Math.min(place - length * 0.6, axis.end - length));
    this.store.set({
      cursor: event,
      ...(inside ? {} : { window: [start, start + length] as [number, number] }),
    });
  }

  /** The collective after the one that is chosen, or after the cursor; the picture follows. */
  private turnCall(by: number): void {
    const { track } = this.scene();
    const { calls } = track;
    if (!calls?.n) return this.say("This recording tells of no collectives.");
    const { state } = this.store;
    let next = state.call + by;
    if (state.call < 0) {
      const after = lowerBound(calls.column.at, track.timeOf(state.cursor));
      next = by > 0 ? after : after - 1;
    }
    next = Math.min(calls.n - 1, Math.max(0, next));
    this.store.set({ call: next, tab: "memory" });
    this.goTo(calls.event(track, next));
    this.say(callLine(track, calls, next));
  }

  private showCall(call: number): void {
    const scene = this.scene();
    const axis = scene.axis(this.store.state.axis);
    const { from, to } = scene.track.calls!.places(axis);
    const room = Math.max((to[call] - from[call]) * 2, 20 * axis.shortest);
    setWindow(this, this.store, from[call] - room, to[call] + room);
  }

  private remark(): void {
    const { state } = this.store;
    const { track } = this.scene();
    const finding = track.header.verdict.findings[state.finding];
    this.marks = finding
      ? markedByFinding(track, finding)
      : state.search.trim()
        ? markedBySearch(track, state.search.trim())
        : null;
  }

  private turnTo(track: number): void {
    const scene = this.scenes[track];
    this.store.set({
      track,
      cursor: scene.track.answer,
      selected: -1,
      finding: -1,
      bytes: null,
      window: scene.opening(this.store.state.axis),
    });
  }

  private turnTheme(): void {
    this.store.set({ theme: this.look.dark ? "light" : "dark" });
    this.follow(() => this.draw());
  }

  private follow(then: () => void): void {
    this.look = themeOf(this.store.state.theme);
    document.documentElement.dataset.theme = this.look.dark ? "dark" : "light";
    then();
  }

  private keys(): void {
    const choose = (by: number): void => {
      const { track } = this.scene();
      const groups = this.scene().groups(this.store.state.by);
      const alive = track
        .alive(this.store.state.cursor)
        .sort((a, b) => groups.of[a] - groups.of[b] || a - b);
      if (!alive.length) return;
      const place = alive.indexOf(this.store.state.selected);
      const next =
        place < 0
          ? by > 0
            ? 0
            : alive.length - 1
          : Math.min(alive.length - 1, Math.max(0, place + by));
      this.store.set({ selected: alive[next] });
      const line = track.line(alive[next]);
      this.say(
        `${size(track.row.bytes[alive[next]])}, ${line ? shortPlace(line) : "no line of yours"}, ${count(next + 1)} of ${count(alive.length)}`,
      );
    };
    bind({
      store: this.store,
      scene: () => this.scene(),
      bytes: () => this.panes.memory?.bytes?.() ?? null,
      tabs: Object.keys(this.panes) as Tab[],
      goTo: (event) => this.goTo(event),
      step: (by) =>
        this.goTo(
          Math.max(-1, Math.min(this.scene().track.events - 1, this.store.state.cursor + by)),
        ),
      choose,
      showChosen: () =>
        this.store.state.call >= 0
          ? this.showCall(this.store.state.call)
          : this.panes.memory?.show?.(this.store.state.selected),
      finding: (by) => {
        const all = this.scene().track.header.verdict.findings.length;
        if (all) this.showFinding((this.store.state.finding + by + all) % all);
      },
      call: (by) => this.turnCall(by),
      turnAxis: () => this.toolbar.turn(this.store.state.axis === "time" ? "events" : "time"),
      turnTheme: () => this.turnTheme(),
      search: () => this.search.focus(),
      help: () => this.help.showModal(),
      escape: () => {
        if (document.activeElement === this.search) this.search.blur();
        this.search.value = "";
        this.store.set({ finding: -1, search: "", selected: -1, call: -1 });
      },
      pane: (event) => this.pane.key?.(event) ?? false,
    });
  }

  private timer = 0;
  private written = location.hash;

  /** Writes what is shown into the address, once things are quiet, and never over an address that has just been typed. */
  private address(): void {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      if (location.hash !== this.written) return;
      this.written = `#${toHash(this.store.state)}`;
      history.replaceState(null, "", this.written);
    }, 150);
  }
}

/** What an address that does not name it means. */
const UNSET: Partial<State> = {
  window: null,
  bytes: null,
  selected: -1,
  call: -1,
  finding: -1,
  search: "",
  track: 0,
};

function opening(scenes: Scene[], comparison: Comparison | null): State {
  const asked = fromHash(location.hash);
  const different = location.hash ? 0 : (comparison?.findings[0]?.track ?? 0);
  const track = Math.min(Math.max(0, asked.track ?? different), scenes.length - 1);
  const scene = scenes[track];
  const axis = scene.axis(asked.axis ?? "time").kind;
  return within(scenes, {
    tab: scenes.length > 2 || comparison ? "ranks" : scenes.length === 2 ? "compare" : "memory",
    by: "category",
    window: location.hash ? null : scene.opening(axis),
    bytes: null,
    cursor: scene.track.answer,
    selected: -1,
    call: -1,
    finding: -1,
    search: "",
    lines: { allocated: false, active: false, reserved: true },
    of: "peak",
    table: "line",
    theme: "",
    ...asked,
    track,
    axis,
  });
}

/** The state with nothing in it that these recordings do not have: an address may be about others, or made up. */
function within(scenes: Scene[], state: State): State {
  const track = Math.min(Math.max(0, state.track), scenes.length - 1);
  const { events, n, header } = scenes[track].track;
  const several = state.tab === "compare" || state.tab === "ranks";
  return {
    ...state,
    track,
    tab: several && scenes.length < 2 ? "memory" : state.tab,
    cursor: Math.min(state.cursor, events - 1),
    selected: state.selected < n ? state.selected : -1,
    call: state.call < (scenes[track].track.calls?.n ?? 0) ? state.call : -1,
    finding: state.finding < header.verdict.findings.length ? state.finding : -1,
  };
}
