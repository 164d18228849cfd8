// The keyboard: everything that the mouse does.

import { GROUPINGS } from "../data/groups";
import { pan, zoom, zoomBytes } from "../views/input";
import type { Store, Tab } from "../state/store";
import type { Scene } from "../state/scene";

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

type Action = (board: Keyboard, event: KeyboardEvent) => void;

/** One step back with Shift, else one on. */
const turn = (event: KeyboardEvent): number => (event.shiftKey ? -1 : 1);
/** A hundred events with Shift, else one. */
const stride = (event: KeyboardEvent): number => (event.shiftKey ? 100 : 1);

const whole: Action = (board) => {
  board.store.set({ window: null, bytes: null });
};

/** What each key does; a letter means both its cases. */
const ACTIONS: Record<string, Action> = {
  w: (board) => zoom(board, board.store, 0.7),
  s: (board) => zoom(board, board.store, 1 / 0.7),
  a: (board) => pan(board, board.store, -0.15),
  d: (board) => pan(board, board.store, 0.15),
  e: (board) => zoomBytes(board, board.store, 0.7, 0),
  q: (board) => zoomBytes(board, board.store, 1 / 0.7, 0),
  ArrowLeft: (board, event) => board.step(-stride(event)),
  ArrowRight: (board, event) => board.step(stride(event)),
  ArrowUp: (board) => board.choose(1),
  ArrowDown: (board) => board.choose(-1),
  Enter: (board) => board.showChosen(),
  p: (board) => board.goTo(board.scene().track.header.counters.requested[2]),
  o: (board) => {
    const failure = board.scene().track.header.failures.at(-1);
    if (failure) board.goTo(failure.event);
  },
  n: (board, event) => board.finding(turn(event)),
  k: (board, event) => board.call(turn(event)),
  "0": whole,
  Home: whole,
  c: ({ store }, event) => {
    const place = GROUPINGS.indexOf(store.state.by) + turn(event);
    store.set({ by: GROUPINGS[(place + GROUPINGS.length) % GROUPINGS.length] });
  },
  x: (board) => board.turnAxis(),
  l: (board) => board.turnTheme(),
  "/": (board) => board.search(),
  "?": (board) => board.help(),
};

export function bind(board: Keyboard): void {
  window.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    const quiet = isTyping(target) || document.querySelector("dialog[open]") !== null;
    if (event.key === "Escape") {
      if (quiet || !board.pane(event)) board.escape();
      return;
    }
    if (quiet || event.ctrlKey || event.metaKey || event.altKey || isPressing(target, event))
      return;
    if (board.pane(event) || act(board, event)) event.preventDefault();
  });
}

function isTyping(target: HTMLElement): boolean {
  return (
    target instanceof HTMLInputElement ||
    target instanceof HTMLSelectElement ||
    target instanceof HTMLTextAreaElement
  );
}

/** Whether the key presses a button that has the focus. */
function isPressing(target: HTMLElement, { key }: KeyboardEvent): boolean {
  const pressable = target instanceof HTMLButtonElement || target.tagName === "SUMMARY";
  return pressable && (key === "Enter" || key === " ");
}

function act(board: Keyboard, event: KeyboardEvent): boolean {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const tab = board.tabs[Number(key) - 1];
  const action = Object.hasOwn(ACTIONS, key) ? ACTIONS[key] : undefined;
  if (action) action(board, event);
  else if (tab) board.store.set({ tab });
  return Boolean(action ?? tab);
}
