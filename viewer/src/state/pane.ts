// A view: an element in the page that draws itself when what is shown changes.

import type { Comparison, Difference } from "../data/header";
import type { Surface } from "../draw/surface";
import type { Scene } from "./scene";
import type { Store, Tab } from "./store";
import type { Theme } from "./theme";
import type { Marked } from "./marks";

/** What the page lends to its views. */
export interface Host {
  readonly scenes: Scene[];
  readonly store: Store;
  /** What is said of two recordings; null where the page does not have just two. */
  readonly difference: Difference | null;
  /** What differs between the ranks; null where they are none. */
  readonly comparison: Comparison | null;
  scene(): Scene;
  theme(): Theme;
  marked(): Marked | null;
  /** Shows an allocation in the drawer below: the one under the pointer, or null for the one that is chosen. */
  inspect(row: number | null, note?: string): void;
  /** Shows a collective there; null for what is chosen. */
  inspectCall(call: number | null): void;
  /** Shows an allocation in another view. */
  show(row: number, tab: Tab): void;
  /** Says something to who cannot see the picture. */
  say(text: string): void;
}

export interface Pane {
  readonly element: HTMLElement;
  /** Draws what the state says; called only while the pane is shown. */
  draw(): void;
  /** The same picture onto another surface, for a file; absent where there is none. */
  picture?(surface: Surface): void;
  /** How large that picture is. */
  extent?(): { width: number; height: number };
  /** The bytes shown, from and to. */
  bytes?(): [number, number] | null;
  /** Moves to an allocation. */
  show?(row: number): void;
  /** Says what the cursor is at, to who cannot see it; absent where the cursor means little. */
  said?(): void;
  /** A key that the pane takes for itself. */
  key?(event: KeyboardEvent): boolean;
}
