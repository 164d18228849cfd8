// The keyboard: everything that the mouse does.

import { type GroupingName, groupingsOf } from "../data/groups";
import { pan, pivot, zoom, zoomBytes } from "../views/input";
import type { History } from "../state/history";
import type { Pane } from "../state/pane";
import type { Navigation } from "./navigation";
import type { Store, Tab } from "../state/store";
import type { Scene } from "../state/scene";

export interface Keyboard {
  store: Store;
  scene(): Scene;
  bytes(): [number, number] | null;
  tabs: Tab[];
  shown(): Pane;
  navigation: Navigation;
  history: History;
  step(by: number): void;
  showChosen(): void;
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
  board.store.set({ window: null, bytes: null, space: null });
};

/** Zooms in time around the pointer, else around the cursor. */
const zoomBy =
  (factor: number): Action =>
  (board) =>
    zoom(board, board.store, factor, pivot(board.shown(), board.scene(), board.store.state));

/** The colourings that this recording has something for, in their order. */
function nextGrouping(board: Keyboard, by: number): GroupingName {
  const names = groupingsOf(board.scene().track);
  return names[(names.indexOf(board.store.state.by) + by + names.length) % names.length];
}

/** What each key does; a letter means both its cases. */
const ACTIONS: Record<string, Action> = {
  w: zoomBy(0.7),
  s: zoomBy(1 / 0.7),
  a: (board) => pan(board, board.store, -0.15),
  d: (board) => pan(board, board.store, 0.15),
  e: (board) => zoomBytes(board, board.store, 0.7, 0),
  q: (board) => zoomBytes(board, board.store, 1 / 0.7, 0),
  ArrowLeft: (board, event) => board.step(-stride(event)),
  ArrowRight: (board, event) => board.step(stride(event)),
  ArrowUp: (board) => board.navigation.choose(1),
  ArrowDown: (board) => board.navigation.choose(-1),
  Enter: (board) => board.showChosen(),
  p: (board) => board.navigation.goTo(board.scene().track.header.counters.requested[2]),
  o: (board) => {
    const failure = board.scene().track.header.failures.at(-1);
    if (failure) board.navigation.goTo(failure.event);
  },
  End: (board) => board.navigation.goTo(board.scene().track.events - 1),
  n: (board, event) => board.navigation.nextFinding(turn(event)),
  k: (board, event) => board.navigation.turnCall(turn(event)),
  "]": (board) => board.navigation.turnMatch(1),
  "[": (board) => board.navigation.turnMatch(-1),
  z: (board) => board.navigation.zoomToRange(),
  f: (board) => board.navigation.fitHeight(),
  u: (board, event) => void (event.shiftKey ? board.history.redo() : board.history.undo()),
  "0": whole,
  Home: whole,
  c: (board, event) => board.store.set({ by: nextGrouping(board, turn(event)) }),
  x: (board) => board.turnAxis(),
  l: (board) => board.turnTheme(),
  "/": (board) => board.search(),
  "?": (board) => board.help(),
};

export function bind(board: Keyboard, closed: AbortSignal): void {
  const press = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    const quiet = isTyping(target) || document.querySelector("dialog[open]") !== null;
    if (event.key === "Escape") {
      if (quiet || !board.pane(event)) board.escape();
      return;
    }
    if (!quiet && isUndo(event)) {
      event.preventDefault();
      return ACTIONS.u(board, event);
    }
    if (quiet || event.ctrlKey || event.metaKey || event.altKey || isPressing(target, event))
      return;
    if (board.pane(event) || act(board, event)) event.preventDefault();
  };
  window.addEventListener("keydown", press, { signal: closed });
}

const isUndo = (event: KeyboardEvent): boolean =>
  (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "z";

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
