// The page: its parts, and how they follow what is shown.

import type { PageHeader } from "../data/header";
import { count, counted } from "../base/format";
import { makePanes } from "../views/panes";
import { callDetails } from "../views/call_words";
import { allocationDetails, momentDetails } from "./details";
import { eachFrame, fill, h } from "../draw/dom";
import { helpDialog } from "./help";
import { bind } from "./keys";
import {
  type Marked,
  markedByFinding,
  markedByGroup,
  markedBySearch,
  markedWords,
} from "../state/marks";
import { History } from "../state/history";
import { trackName } from "../state/names";
import { Navigation } from "./navigation";
import { opening, within } from "./opening";
import type { Host, Pane } from "../state/pane";
import { rangeDetails } from "./range_details";
import { saveButtons } from "./save";
import type { Scene } from "../state/scene";
import { Splitters } from "./splitters";
import { Store, type Tab } from "../state/store";
import { type Theme, themeOf } from "../state/theme";
import { Toolbar } from "./toolbar";
import { comparisonPanel, verdictPanel } from "./verdict";

const NAMES: Record<Tab, string> = {
  memory: "Memory",
  addresses: "Addresses",
  who: "Who",
  list: "List",
  compare: "Compare",
  ranks: "Ranks",
};

export class App implements Host {
  readonly store: Store;
  private readonly panes: Partial<Record<Tab, Pane>>;
  private readonly toolbar: Toolbar;
  private readonly navigation: Navigation;
  private readonly history: History;
  private readonly aside = h("aside", { "aria-label": "The verdict", tabIndex: 0 });
  private readonly stage = h("div", { class: "stage" });
  private readonly drawer = h("section", {
    class: "drawer",
    tabIndex: 0,
    "aria-label": "What is under the pointer",
  });
  private readonly heard = h("p", { class: "heard", role: "status" });
  private readonly search = h("input", {
    type: "search",
    placeholder: "search  /",
    title:
      "Files, functions, modules, names; or >64MiB, step:3, line:model.py, alive, unfreed, 0x7f…: words that all must hold",
    "aria-label": "Search: files, functions, modules, names, or words of the query language",
    spellcheck: false,
  });
  private readonly found = h("span", { class: "found soft", role: "status" });
  private readonly matchButtons = h(
    "span",
    { class: "matches", hidden: true },
    h("button", { title: "the match before ([)", "aria-label": "The match before", onclick: () => this.navigation.turnMatch(-1) }, "‹"),
    h("button", { title: "the next match (])", "aria-label": "The next match", onclick: () => this.navigation.turnMatch(1) }, "›"),
  ); // prettier-ignore
  private readonly tabs = h("nav", { "aria-label": "Views" });
  private readonly told = h("span", { class: "soft told" });
  private readonly help = helpDialog();
  private marks: Marked | null = null;
  private look: Theme;
  private inspected = "";
  private readonly closing = new AbortController();

  constructor(
    private readonly header: PageHeader,
    readonly scenes: Scene[],
    /** What stands at the end of its head. */
    private readonly atEnd: HTMLElement[] = [],
  ) {
    this.store = new Store(opening(scenes, header.comparison));
    this.look = themeOf(this.store.state.theme);
    this.navigation = new Navigation(this);
    this.panes = makePanes(this);
    this.toolbar = new Toolbar(this);
    this.remark();
    document.title = `${header.title}: vramlens`;
    this.build();
    this.search.value = this.store.state.search;
    this.search.addEventListener("input", () =>
      this.store.set({ search: this.search.value, finding: -1, group: -1 }),
    );
    this.search.addEventListener("keydown", (event) => event.key === "Enter" && this.search.blur());
    this.history = new History(
      this.store,
      (state) => within(this.scenes, state),
      this.closing.signal,
    );
    this.watch();
    this.keys();
    this.drawVerdict();
    this.follow(() => this.draw());
    this.inspect(null);
    this.store.set({});
    document.documentElement.dataset.ready = "true";
  }

  /** Ends it: the page is empty, and nothing of it listens any more. */
  close(): void {
    this.closing.abort();
    document.body.replaceChildren();
    delete document.documentElement.dataset.ready;
  }

  private build(): void {
    const button = (title: string, name: string, text: string, onclick: () => void) =>
      h("button", { title, "aria-label": name, onclick }, text);
    document.body.append(
      h(
        "header",
        {},
        h(
          "div",
          { class: "about" },
          h("b", { class: "brand" }, "vramlens"),
          h("h1", { title: this.header.title }, this.header.title),
          this.trackChoice(),
          this.told,
        ),
        h(
          "div",
          { class: "tools" },
          this.tabs,
          this.search,
          this.found,
          this.matchButtons,
          saveButtons(this, () => this.pane),
          button("light, dark (L)", "Light or dark", "◐", () => this.turnTheme()),
          button("keys (?)", "Keys and mouse", "?", () => this.help.showModal()),
          ...this.atEnd,
        ),
      ),
      h(
        "div",
        { class: "body" },
        this.aside,
        h("main", { class: "right" }, this.toolbar.element, this.stage, this.drawer),
      ),
      this.heard,
      this.help,
    );
    new Splitters(this.aside, this.drawer);
  }

  private trackChoice(): HTMLSelectElement {
    const { scenes } = this;
    const choice: HTMLSelectElement = h(
      "select",
      {
        "aria-label": "Recording and device",
        hidden: scenes.length < 2,
        onchange: () => this.navigation.turnTo(Number(choice.value)),
      },
      ...scenes.map((scene, i) =>
        h(
          "option",
          { value: String(i), selected: i === this.store.state.track },
          trackName(scene, scenes),
        ),
      ),
    );
    this.store.watch(["track"], (state) => (choice.value = String(state.track)));
    return choice;
  }

  private watch(): void {
    const { store } = this;
    const draw = eachFrame(() => this.draw());
    store.watch(["track", "finding", "search", "group", "by"], () => this.remark());
    store.watch(["cursor"], ({ search }) => {
      if (/\balive\b/i.test(search)) this.remark();
    });
    store.watch(["search"], ({ search }) => {
      if (this.search.value !== search) this.search.value = search;
    });
    store.watch(["track", "finding", "tab"], () => this.drawVerdict());
    store.watch(["selected", "cursor", "track", "call", "range"], () => this.inspect(null));
    store.watch(["tab", "selected"], () => this.hideDrawer());
    store.subscribe(draw);
    const { signal } = this.closing;
    window.addEventListener("resize", draw, { signal });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.follow(draw), { signal });
    this.hideDrawer();
  }

  private hideDrawer(): void {
    const { tab, selected } = this.store.state;
    this.drawer.hidden = tab === "ranks" || (tab === "compare" && selected < 0);
  }

  get difference() {
    return this.header.difference;
  }

  get comparison() {
    return this.header.comparison;
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
    const { cursor, call, range, selected, track: number } = this.store.state;
    const shown = row ?? selected;
    const { track } = this.scene();
    if (shown < 0 && call >= 0) return this.inspectCall(call);
    const key = `${number},${shown},${note},${shown < 0 ? `${cursor},${range?.join("_")}` : ""}`;
    if (key === this.inspected) return;
    this.inspected = key;
    if (shown >= 0 && shown < track.n) fill(this.drawer, ...allocationDetails(this, shown, note));
    else if (range) fill(this.drawer, ...rangeDetails(this, range, () => this.navigation.zoomToRange()));
    else fill(this.drawer, ...momentDetails(this, cursor));
  } // prettier-ignore

  show(row: number, tab: Tab): void {
    this.store.set({ tab, selected: row });
    this.navigation.goTo(Math.max(0, this.scene().track.born[row]));
    if (tab !== "list") this.pane.show?.(row);
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
    this.found.textContent = this.marks ? markedWords(this.marks, state.cursor) : "";
    this.found.title = this.found.textContent;
    this.matchButtons.hidden = !this.marks?.flags;
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
    const show = (finding: number): void => this.navigation.showFinding(finding);
    fill(
      this.aside,
      comparison &&
        among &&
        comparisonPanel(comparison, shown, (track) => this.navigation.turnTo(track)),
      verdictPanel(this.scene(), this.store, show),
    );
  }

  private remark(): void {
    const { state } = this.store;
    const scene = this.scene();
    const { track } = scene;
    const finding = track.header.verdict.findings[state.finding];
    if (finding) this.marks = markedByFinding(track, finding, state.finding);
    else if (state.search.trim()) this.marks = markedBySearch(track, state.search, state.cursor);
    else if (state.group >= 0)
      this.marks = markedByGroup(track, scene.groups(state.by), state.group);
    else this.marks = null;
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
    const { navigation } = this;
    bind(
      {
        store: this.store,
        scene: () => this.scene(),
        bytes: () => this.panes.memory?.bytes?.() ?? null,
        shown: () => this.pane,
        tabs: Object.keys(this.panes) as Tab[],
        navigation,
        history: this.history,
        step: (by) => {
          const last = this.scene().track.events - 1;
          navigation.goTo(Math.max(-1, Math.min(last, this.store.state.cursor + by)));
          this.pane.said?.();
        },
        showChosen: () =>
          this.store.state.call >= 0
            ? navigation.showCall(this.store.state.call)
            : this.panes.memory?.show?.(this.store.state.selected),
        turnAxis: () => this.toolbar.turn(this.store.state.axis === "time" ? "events" : "time"),
        turnTheme: () => this.turnTheme(),
        search: () => this.search.focus(),
        help: () => this.help.showModal(),
        escape: () => {
          if (document.activeElement === this.search) this.search.blur();
          this.store.set({ finding: -1, search: "", selected: -1, call: -1, group: -1, only: -1, range: null }); // prettier-ignore
        },
        pane: (event) => this.pane.key?.(event) ?? false,
      },
      this.closing.signal,
    );
  }
}
