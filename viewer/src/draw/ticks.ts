// Round places on an axis.

/** Multiples of a round step: 1, 2 or 5 times a power of ten, and no less than `least`. */
export function ticks(
  from: number,
  to: number,
  most: number,
  least = 0,
): { step: number; at: number[] } {
  return spread(from, to, Math.max(least, (to - from) / Math.max(1, most)), roundStep);
}

/** The same for bytes: powers of two, times 1 or 5 tenths of a unit people read. */
export function byteTicks(from: number, to: number, most: number): number[] {
  return spread(
    from,
    to,
    (to - from) / Math.max(1, most),
    (least) => 2 ** Math.ceil(Math.log2(Math.max(1, least))),
  ).at;
}

function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return power * ([1, 2, 5].find((factor) => factor * power >= least * 0.999) ?? 10);
}

function spread(
  from: number,
  to: number,
  least: number,
  round: (least: number) => number,
): { step: number; at: number[] } {
  const step = round(least);
  const at: number[] = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to * (1 + 1e-12); i++)
    at.push(i * step + 0); // never -0
  return { step, at };
}
