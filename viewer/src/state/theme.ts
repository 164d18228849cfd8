// Light and dark: what the canvases need to know of the style sheet's colours.

import type { Colour } from "../base/palette";

export interface Theme {
  dark: boolean;
  paper: Colour;
  ink: string;
  soft: string;
  faint: string;
  grid: string;
  accent: string;
  alarm: string;
  call: string;
  /** Lines of replayed settings: apart from each other, from the recorded one (ink) and from what they lie over. */
  lines: readonly string[];
  font: string;
}

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

const LIGHT: Theme = {
  dark: false,
  paper: [255, 255, 255],
  ink: "#1c2430",
  soft: "#5b6675",
  faint: "#d9dee5",
  grid: "rgb(28 36 48 / 0.08)",
  accent: "#1f5fbf",
  alarm: "#b3261e",
  call: "#6f95cc",
  lines: ["#b0127a", "#00594f", "#5a2ca0", "#8a3b00", "#0b4a8f", "#555200"],
  font: FONT,
};

const DARK: Theme = {
  dark: true,
  paper: [22, 26, 32],
  ink: "#e7ebf0",
  soft: "#9aa6b5",
  faint: "#39424e",
  grid: "rgb(231 235 240 / 0.09)",
  accent: "#7db2ff",
  alarm: "#ff8a80",
  call: "#5d86bf",
  lines: ["#ff8ad0", "#6ff0dc", "#cdb8ff", "#ffc27a", "#9fd0ff", "#dfe57a"],
  font: FONT,
};

export function themeOf(choice: "" | "light" | "dark"): Theme {
  const dark = choice ? choice === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  return dark ? DARK : LIGHT;
}
