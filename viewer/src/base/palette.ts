// Colours that people with any kind of colour vision can tell apart: they differ in lightness as well as in hue.

export type Colour = readonly [red: number, green: number, blue: number];

const hex = (text: string): Colour => [
  parseInt(text.slice(1, 3), 16),
  parseInt(text.slice(3, 5), 16),
  parseInt(text.slice(5, 7), 16),
];

export const OTHER_COLOUR = hex("#b0b7bf");

export const NONE_COLOUR = hex("#7d8894");

export const category: Record<string, Colour> = {
  parameters: hex("#2b5c9e"),
  optimizer_state: hex("#9d86d0"),
  gradients: hex("#12806a"),
  activations: hex("#efb14a"),
  workspace: hex("#8fd0f0"),
  temporaries: hex("#cf5a3c"),
  other: OTHER_COLOUR,
};

export const phase: Record<string, Colour> = {
  other: hex("#2b5c9e"),
  optimizer: hex("#9d86d0"),
  forward: hex("#efb14a"),
  backward: hex("#cf5a3c"),
  evaluation: hex("#8fd0f0"),
  unknown: OTHER_COLOUR,
};

/** Paul Tol's "muted" scheme, in an order that keeps neighbours apart. */
export const distinct: readonly Colour[] = [
  "#332288", "#ddcc77", "#44aa99", "#cc6677", "#88ccee", "#882255", "#117733", "#e6d8f5", "#999933",
].map(hex); // prettier-ignore

/** One of `count` steps along a scale whose lightness rises evenly (dark blue over teal to yellow). */
export function sequence(place: number, count: number): Colour {
  const stops = ["#30306b", "#2d5f8b", "#25898c", "#4bb17b", "#a6cf5f", "#f3e26a"].map(hex);
  const at = (count > 1 ? place / (count - 1) : 0) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  return mix(stops[low], stops[low + 1], at - low);
}

export function mix(a: Colour, b: Colour, share: number): Colour {
  return [0, 1, 2].map((i) => Math.round(a[i] + (b[i] - a[i]) * share)) as unknown as Colour;
}

/** Reserved and free memory. */
export const freeColour = (paper: Colour): Colour => mix(paper, [128, 140, 156], 0.2);

/** A colour faded to the paper; not where it could be taken for free memory then, as the grey of "other" could. */
export function pale(colour: Colour, paper: Colour): Colour {
  const found = mix(colour, paper, 0.4);
  const free = freeColour(paper);
  return Math.hypot(...found.map((part, i) => part - free[i])) < 40 ? colour : found;
}

export const css = (colour: Colour, alpha = 1): string =>
  alpha === 1 ? `rgb(${colour.join(" ")})` : `rgb(${colour.join(" ")} / ${alpha})`;

/** As a pixel of an ImageData seen as 32-bit numbers (little-endian, as every browser's machine is). */
export const pixel = (colour: Colour): number =>
  ((255 << 24) | (colour[2] << 16) | (colour[1] << 8) | colour[0]) >>> 0;

/** A colour's shades: neighbours of one group differ a little, so that one can see where one ends. */
export const SHADES = 5;
export function shade(colour: Colour, number: number): Colour {
  const lift = [0, 0.16, -0.1, 0.09, -0.17][number % SHADES];
  return lift >= 0 ? mix(colour, [255, 255, 255], lift) : mix(colour, [0, 0, 0], -lift);
}
