// The events around the cursor, one line each: what each of them did.

import { count } from "../base/format";
import { fill, h } from "../draw/dom";
import type { Host } from "../state/pane";
import { deed } from "./event_words";

const AROUND = 12;

export class EventLog {
  readonly element = h("ol", { class: "event-log", "aria-label": "Events around the cursor" });
  private key = "";

  constructor(private readonly host: Host) {}

  draw(): void {
    const { cursor, track: number } = this.host.store.state;
    const { track } = this.host.scene();
    const key = `${number},${cursor}`;
    if (key === this.key) return;
    this.key = key;
    const first = Math.max(0, Math.min(cursor - AROUND, track.events - 2 * AROUND - 1));
    const last = Math.min(track.events - 1, first + 2 * AROUND);
    const items: HTMLElement[] = [];
    for (let event = first; event <= last; event++) items.push(this.item(event, event === cursor));
    fill(this.element, ...items);
    const here = items[cursor - first];
    if (!here) return;
    const { clientHeight } = this.element;
    this.element.scrollTop = here.offsetTop - this.element.offsetTop - clientHeight / 2;
  }

  private item(event: number, isHere: boolean): HTMLElement {
    const { track } = this.host.scene();
    const choose = (): void =>
      this.host.store.set({ cursor: event, selected: Math.max(-1, track.eventRow[event]) });
    return h(
      "li",
      { class: isHere ? "here" : "", "aria-current": isHere ? "true" : undefined },
      h(
        "button",
        { tabIndex: -1, onclick: choose },
        h("span", { class: "number" }, count(event)),
        ` ${deed(track, event)}`,
      ),
    );
  }
}
