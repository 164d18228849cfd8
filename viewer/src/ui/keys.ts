// The keyboard: everything that the mouse does.

import { GROUPINGS } from "../data/groups";
import { pan, zoom, zoomBytes } from "./input";
import type { Store, Tab } from "./store";
import type { Scene } from "./scene";

export interface Keyboard {
  store: Store;
  scene(): Scene;
  bytes(): [number, number] | null;
  tabs: Tab[];
  goTo(event: number): void;
  step(by: number): void;
  choose(by: number): void;
  showChosen(): void;
  finding(by: number): void;
  call(by: number): void;
  turnAxis(): void;
  turnTheme(): void;
  search(): void;
  help(): void;
  escape(): void;
  pane(event: KeyboardEvent): boolean;
}

export function bind(board: Keyboard): void {
  window.addEventListener("keydown", (event) => {
    const inside = event.target as HTMLElement;
    const typing = inside instanceof HTMLInputElement || inside instanceof HTMLSelectElement || inside instanceof HTMLTextAreaElement;
    if (event.key === "Escape") return typing || document.querySelector("dialog[open]") || !board.pane(event) ? board.escape() : undefined;
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const pressable = inside instanceof HTMLButtonElement || inside.tagName === "SUMMARY";
    if (pressable && (event.key === "Enter" || event.key === " ")) return;
    if (board.pane(event) || act(board, event)) event.preventDefault();
  });
}

function act(board: Keyboard, event: KeyboardEvent): boolean {
  const { store } = board;
  const more = event.shiftKey ? 100 : 1;
  switch (event.key.length === 1 ? event.key.toLowerCase() : event.key) {
    case "w": zoom(board, store, 0.7); return true;
    case "s": zoom(board, store, 1 / 0.7); return true;
    case "a": pan(board, store, -0.15); return true;
    case "d": pan(board, store, 0.15); return true;
    case "e": zoomBytes(board, store, 0.7, 0); return true;
    case "q": zoomBytes(board, store, 1 / 0.7, 0); return true;
    case "ArrowLeft": board.step(-more); return true;
    case "ArrowRight": board.step(more); return true;
    case "ArrowUp": board.choose(1); return true;
    case "ArrowDown": board.choose(-1); return true;
    case "Enter": board.showChosen(); return true;
    case "p": board.goTo(board.scene().track.header.counters.requested[2]); return true;
    case "o": {
      const failures = board.scene().track.header.failures;
      if (failures.length) board.goTo(failures[failures.length - 1]!.event);
      return true;
    }
    case "n": board.finding(event.shiftKey ? -1 : 1); return true;
    case "k": board.call(event.shiftKey ? -1 : 1); return true;
    case "0": case "Home": store.set({ window: null, bytes: null }); return true;
    case "c": {
      const place = GROUPINGS.indexOf(store.state.by) + (event.shiftKey ? -1 : 1);
      store.set({ by: GROUPINGS[(place + GROUPINGS.length) % GROUPINGS.length]! });
      return true;
    }
    case "x": board.turnAxis(); return true;
    case "l": board.turnTheme(); return true;
    case "/": board.search(); return true;
    case "?": board.help(); return true;
    default: {
      const tab = board.tabs[Number(event.key) - 1];
      if (!tab) return false;
      store.set({ tab });
      return true;
    }
  }
}
