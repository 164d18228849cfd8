// Many ranks: one strip each, on one scale, sorted by rank, by peak, or by how far a peak is from the usual one.

import { count, counted, shortSize, size, time } from "../base/format";
import { type Strip, strips } from "../layout/alike";
import type { AxisKind } from "../layout/axis";
import { ticks } from "../draw/ticks";
import { type Order, ORDERS } from "../state/store";
import { CanvasSurface, type Surface } from "../draw/surface";
import { type Highest, highestOf } from "../layout/highest";
import { fill, h, sharp } from "../draw/dom";
import { trackName } from "../state/names";
import { startOf } from "../state/scene";
import type { Host, Pane } from "../state/pane";
import { callLine } from "./call_words";
import type { Scene } from "../state/scene";
import { type Band, callAt, drawCalls } from "./calls_band";
import { signed } from "./compare_pane";

const ORDER_WORDS: Record<Order, string> = {
  accused: "accused first",
  rank: "in order",
  peak: "by peak",
  difference: "by difference from the usual",
};
/** From so many ranks on, those that look alike are one strip. */
const FOLDED_FROM = 5;
const AXIS = 24;
/** A canvas is no higher than 32,767 pixels, of which sharp screens have two to one. */
const MOST_STRIPS = 300;
const SMALL_SCREEN = 600;
const LINE = 46;
const BAND = 6;
const RIGHT = 14;

/** Where the strips begin, right of the names: of a small screen they keep the most. */
function stripsFrom(width: number): number {
  return width < SMALL_SCREEN ? 165 : 240;
}

export class RanksPane implements Pane {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", {
    tabIndex: 0,
    role: "img",
    "aria-label": "Memory over time, one strip a rank",
  });
  private readonly scroll = h(
    "div",
    { class: "canvas flames" },
    h("div", { class: "inner" }, this.canvas),
  );
  private readonly bar = h("div", { class: "bar" });
  private readonly words = h("p", { class: "answer", role: "status" });
  /** Whether ranks that look alike are shown one by one. */
  private isUnfolded = false;
  private foldedAs = "";
  private folded: Strip[] = [];
  /** How many strips there is no room for. */
  private left = 0;
  private readonly measured = new Map<string, Highest>();

  constructor(private readonly host: Host) {
    this.element = h("section", { class: "pane ranks" }, this.bar, this.words, this.scroll);
    this.canvas.addEventListener("click", (event) => {
      const strip = this.stripAt(event.offsetY);
      if (strip?.alike.length && event.offsetX < stripsFrom(this.canvas.clientWidth))
        return this.unfold();
      if (strip) this.open(strip.track, this.callAt(strip.track, event.offsetX, event.offsetY));
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const track = this.stripAt(event.offsetY)?.track;
      const call = track === undefined ? -1 : this.callAt(track, event.offsetX, event.offsetY);
      const scene = host.scenes[track ?? 0].track;
      this.canvas.title =
        call < 0
          ? ""
          : [callLine(scene, scene.calls!, call), wrong(scene, call)].filter(Boolean).join("\n");
    });
    this.canvas.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.stopPropagation();
      this.open(host.store.state.track);
    });
  }

  /** Up and down go from strip to strip; Enter opens one. */
  key(event: KeyboardEvent): boolean {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) return false;
    const tracks = this.strips().map((strip) => strip.track);
    const { store, scenes } = this.host;
    const next =
      tracks[Math.min(tracks.length - 1, Math.max(0, tracks.indexOf(store.state.track) + by))];
    const scene = scenes[next];
    store.set({
      track: next,
      cursor: scene.track.answer,
      selected: -1,
      finding: -1,
      bytes: null,
      window: scene.opening(store.state.axis),
    });
    this.host.say(
      `${trackName(scene, scenes)}, peak ${size(peak(scene))}${scene.track.header.verdict.failed ? ", failed" : ""}`,
    );
    return true;
  }

  draw(): void {
    fill(
      this.bar,
      h(
        "span",
        { class: "switch", role: "group", "aria-label": "order" },
        ...ORDERS.filter((order) => this.isOrder(order)).map((order) =>
          h(
            "button",
            {
              "aria-pressed": String(order === this.order),
              onclick: () => this.host.store.set({ order }),
            },
            ORDER_WORDS[order],
          ),
        ),
      ),
      this.host.scenes.length >= FOLDED_FROM &&
        h(
          "button",
          { "aria-pressed": String(this.isUnfolded), onclick: () => this.unfold() },
          this.isUnfolded ? "fold ranks that look alike" : "show every rank",
        ),
      h(
        "span",
        { class: "soft" },
        `filled: requested, line: reserved${this.host.scenes.some((scene) => scene.track.calls?.n) ? ", below: collectives" : ""}; click a strip to open it`,
      ),
    );
    const usual = this.usual();
    const ordered = [...this.host.scenes].sort((a, b) => peak(b) - peak(a));
    const first = ordered[0];
    const last = ordered[ordered.length - 1];
    const told = this.hasUsual() ? `; the usual peak is ${size(usual)}` : "";
    this.words.textContent =
      peak(first) === peak(last)
        ? `All ${ordered.length} peak at ${size(usual)}.`
        : `${trackName(first, this.host.scenes)} peaks highest, at ${size(peak(first))}; ${trackName(last, this.host.scenes)} lowest, at ${size(peak(last))}${told}.`;
    this.words.textContent += this.unfinished();
    this.strips();
    if (this.left) this.words.textContent += ` ${counted(this.left, "strip")} more not drawn.`;
    const height = this.strips().length * LINE + AXIS;
    (this.canvas.parentElement as HTMLElement).style.height = `${height}px`;
    const box = sharp(this.canvas);
    this.picture(
      new CanvasSurface(this.canvas, box.width, box.height, box.ratio, this.host.theme().font),
    );
  }

  extent(): { width: number; height: number } {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  picture(surface: Surface): void {
    const { host } = this;
    const theme = host.theme();
    const { state } = host.store;
    const axes = host.scenes.map((scene) => scene.axis(state.axis));
    const starts = host.scenes.map((scene) => startOf(scene, state.axis));
    const end = Math.max(...axes.map((axis, i) => axis.end - starts[i]));
    const left = stripsFrom(surface.width);
    const width = Math.max(20, Math.floor(surface.width - left - RIGHT));
    const most = Math.max(
      1,
      ...host.scenes.map(({ track }) =>
        Math.max(track.header.counters.requested[1], track.header.counters.reserved[1]),
      ),
    );
    const usual = this.usual();
    this.strips().forEach(({ track, alike }, place) => {
      const scene = host.scenes[track];
      const top = place * LINE;
      const key = `${track},${axes[track].kind},${width}`;
      let found = this.measured.get(key);
      if (!found)
        this.measured.set(
          key,
          (found = highestOf(axes[track], width, starts[track], starts[track] + end)),
        );
      const bottom = top + LINE - 8;
      const y = (bytes: number) => bottom - (bytes / most) * (LINE - 14);
      const stretch = Math.max(
        1,
        Math.min(width, Math.ceil(((axes[track].end - starts[track]) / end) * width)),
      );
      const points = [left, bottom];
      const line: number[] = [];
      for (let i = 0; i < stretch; i++) {
        points.push(left + i, y(found.requested[i]), left + i + 1, y(found.requested[i]));
        line.push(left + i, y(found.reserved[i]));
      }
      points.push(left + stretch, bottom);
      if (track === state.track)
        surface.rect(0, top, surface.width, LINE - 2, theme.dark ? "#1d2a3d" : "#eaf1fb");
      surface.area(points, theme.dark ? "#4d76a8" : "#8fb0da");
      surface.line(line, theme.ink, 1);
      const band = this.band(scene, place, surface.width);
      if (band) drawCalls(surface, band, scene.track.calls!, axes[track], theme, -1);
      for (const failure of scene.track.header.failures)
        surface.rect(
          left + ((axes[track].place(failure.event) - starts[track]) / end) * width - 1,
          top + 2,
          2,
          LINE - 8,
          theme.alarm,
        );
      const difference = this.hasUsual() ? peak(scene) - usual : 0;
      surface.text(trackName(scene, host.scenes), 16, top + 15, theme.ink, "left", true);
      surface.text(
        `${size(peak(scene))}${difference ? `  ${signed(difference)}` : ""}`,
        16,
        top + 31,
        theme.soft,
      );
      if (scene.track.header.verdict.failed)
        surface.text("failed", left - 16, top + 15, theme.alarm, "right", true);
      if (this.accused().has(track)) surface.rect(4, top + 4, 4, LINE - 10, theme.alarm);
      if (alike.length)
        surface.text(
          `+ ${counted(alike.length, "rank")} like it`,
          left - 16,
          top + (surface.width < SMALL_SCREEN ? 15 : 31), // a small screen has room beside the name
          theme.accent,
          "right",
        );
    });
    this.drawAxis(surface, width, end, axes[0].kind);
  }

  /** Below the strips: the time since each rank's beginning, and what the height of a strip is. */
  private drawAxis(surface: Surface, width: number, end: number, kind: AxisKind): void {
    const theme = this.host.theme();
    const y = this.strips().length * LINE;
    const left = stripsFrom(surface.width);
    surface.rect(left, y, width, 1, theme.faint);
    const { step, at } = ticks(0, end, width / 110, kind === "time" ? 0 : 1);
    for (const place of at) {
      const x = left + (place / end) * width;
      surface.rect(Math.round(x), y, 1, 4, theme.soft);
      const label = kind === "time" ? time(place, step) : count(place);
      surface.text(label, x, y + 13, theme.soft, place ? "center" : "left");
    }
    const most = Math.max(
      ...this.host.scenes.map(({ track }) => track.header.counters.reserved[1]),
    );
    surface.text(`a strip is ${shortSize(most)} high`, left - 16, y + 13, theme.soft, "right");
  }

  /** Where a rank's collectives are drawn; null where none are known. */
  private band(scene: Scene, place: number, whole: number): Band | null {
    if (!scene.track.calls?.n) return null;
    const { state } = this.host.store;
    const axes = this.host.scenes.map(
      (each) => [each.axis(state.axis).end, startOf(each, state.axis)] as const,
    );
    const longest = Math.max(...axes.map(([end, start]) => end - start));
    const from = startOf(scene, state.axis);
    const to = scene.axis(state.axis).end;
    const left = stripsFrom(whole);
    const width = Math.max(20, Math.floor(whole - left - RIGHT));
    return {
      left,
      width: Math.max(1, ((to - from) / longest) * width),
      top: place * LINE + LINE - 8,
      height: BAND,
      from,
      to,
    };
  }

  private callAt(track: number, x: number, y: number): number {
    const place = Math.floor(y / LINE);
    const scene = this.host.scenes[track];
    const band = this.band(scene, place, this.canvas.clientWidth);
    if (!band || y < band.top - 2 || x < band.left - 4 || x > band.left + band.width + 4) return -1;
    return callAt(band, scene.track.calls!, scene.axis(this.host.store.state.axis), x);
  }

  /** What of the collectives did not go well, by rank. */
  private unfinished(): string {
    const { scenes } = this.host;
    const found = scenes
      .map((scene) => [trackName(scene, scenes), scene.track.calls?.open.length ?? 0] as const)
      .filter(([, open]) => open > 0);
    if (!found.length) return "";
    const named = found
      .slice(0, 4)
      .map(([name, open]) => `${counted(open, "collective")} of ${name}`);
    return ` ${named.join(", ")}${found.length > 4 ? ` and of ${found.length - 4} more` : ""} never finished.`;
  }

  private get order(): Order {
    const { order } = this.host.store.state;
    return this.isOrder(order) ? order : "peak";
  }

  private isOrder(order: Order): boolean {
    if (order === "difference") return this.hasUsual();
    return order !== "accused" || this.accused().size > 0;
  }

  /** The ranks that the comparison is about. */
  private accused(): Set<number> {
    const tracks = this.host.comparison?.findings.map((finding) => finding.track) ?? [];
    return new Set(tracks.filter((track) => track !== null));
  }

  /** Those that are shown, from the top; alike ones are one, unless they are asked for. */
  private strips(): Strip[] {
    const { scenes, store } = this.host;
    const key = [this.order, store.state.axis, this.isUnfolded].join();
    if (key === this.foldedAs) return this.folded;
    this.foldedAs = key;
    const tracks = this.tracks();
    const isFolding = scenes.length >= FOLDED_FROM && !this.isUnfolded;
    const failed = scenes.flatMap(({ track }, i) => (track.header.verdict.failed ? [i] : []));
    const apart = new Set([...this.accused(), ...failed]);
    const all = isFolding
      ? strips(
          tracks,
          scenes.map((scene) => scene.axis(store.state.axis)),
          apart,
        )
      : tracks.map((track) => ({ track, alike: [] }));
    this.folded = all.slice(0, MOST_STRIPS);
    this.left = all.length - this.folded.length;
    return this.folded;
  }

  private stripAt(y: number): Strip | undefined {
    return this.strips()[Math.floor(y / LINE)];
  }

  private unfold(): void {
    this.isUnfolded = !this.isUnfolded;
    this.draw();
  }

  private tracks(): number[] {
    const { scenes } = this.host;
    const usual = this.usual();
    const all = scenes.map((_, i) => i);
    const byRank = (a: number, b: number): number =>
      (scenes[a].track.header.rank ?? a) - (scenes[b].track.header.rank ?? b) || a - b;
    const accused = this.accused();
    const isAccused = (track: number): number => Number(accused.has(track));
    if (this.order === "rank") return all.sort(byRank);
    if (this.order === "accused")
      return all.sort((a, b) => isAccused(b) - isAccused(a) || byRank(a, b));
    const value = (track: number) =>
      this.order === "peak" ? peak(scenes[track]) : Math.abs(peak(scenes[track]) - usual);
    return all.sort((a, b) => value(b) - value(a) || a - b);
  }

  /** Of two peaks neither is the usual one. */
  private hasUsual(): boolean {
    return this.host.scenes.length > 2;
  }

  /** The median of the peaks. */
  private usual(): number {
    const peaks = this.host.scenes.map(peak).sort((a, b) => a - b);
    return peaks[peaks.length >> 1];
  }

  private open(track: number, call = -1): void {
    const scene = this.host.scenes[track];
    const { calls, answer } = scene.track;
    const cursor = call >= 0 && calls ? calls.event(scene.track, call) : answer;
    this.host.store.set({
      track,
      tab: "memory",
      cursor,
      selected: -1,
      call,
      finding: -1,
      bytes: null,
      window: scene.opening(this.host.store.state.axis),
    });
  }
}

function wrong(track: Scene["track"], call: number): string {
  const problem = track.calls!.column.problem[call];
  return problem ? track.text(problem - 1) : "";
}

const peak = (scene: {
  track: { header: { counters: { requested: [number, number, number] } } };
}): number => scene.track.header.counters.requested[1];
