// What a page shows when it is opened: the answer.

import { groupingsOf, usualGrouping } from "../data/groups";
import type { Comparison, Finding } from "../data/header";
import type { Track } from "../data/track";
import { tally, weighAt } from "../layout/tally";
import { fromHash } from "../state/address";
import type { Scene } from "../state/scene";
import type { State } from "../state/store";

/** A user's line that holds so much says too little: the table is then by line of code. */
const MOST_OF_IT = 0.6;

export function opening(scenes: Scene[], comparison: Comparison | null): State {
  const asked = fromHash(location.hash);
  const different = location.hash ? 0 : (comparison?.findings[0]?.track ?? 0);
  const track = Math.min(Math.max(0, asked.track ?? different), scenes.length - 1);
  const scene = scenes[track];
  const axis = scene.axis(asked.axis ?? "time").kind;
  const several =
    scenes.length > 2 || comparison ? "ranks" : scenes.length === 2 ? "compare" : null;
  const answer = location.hash ? {} : answerOf(scene);
  return within(scenes, {
    ...nothingChosen(scene),
    window: location.hash ? null : scene.opening(axis),
    ...answer,
    ...(several && { tab: several }),
    ...asked,
    track,
    axis: asked.axis ? axis : (answer.axis ?? axis),
  });
}

/** Another track, opened at its own answer. */
export function turned(scene: Scene, state: State, track: number): Partial<State> {
  return {
    track,
    cursor: scene.track.answer,
    selected: -1,
    bytes: null,
    space: null,
    range: null,
    window: scene.opening(state.axis),
    finding: -1,
    by: knownGrouping(scene.track, state),
  };
}

const knownGrouping = (track: Track, { by }: State): State["by"] =>
  groupingsOf(track).includes(by) ? by : usualGrouping(track);

function nothingChosen(scene: Scene): State {
  return {
    tab: "memory",
    track: 0,
    axis: "time",
    by: usualGrouping(scene.track),
    window: null,
    bytes: null,
    space: null,
    cursor: scene.track.answer,
    selected: -1,
    call: -1,
    finding: -1,
    search: "",
    group: -1,
    only: -1,
    range: null,
    lines: { allocated: false, active: false, reserved: true },
    off: "",
    of: "peak",
    table: usualTable(scene.track),
    sort: "",
    frames: "own",
    zoom: "",
    around: -1,
    pair: [0, 1],
    align: "steps",
    both: null,
    order: "accused",
    theme: "",
  };
}

/** Where the finding that answers shows itself: holes among the addresses, a leak over the whole run, by step. */
function answerOf({ track }: Scene): Partial<State> {
  const { findings } = track.header.verdict;
  const holes = findings.findIndex((finding) => finding.id === "fragmented_request");
  if (holes >= 0 && holes === firstAdvice(findings))
    return { tab: "addresses", finding: holes, cursor: findings[holes].event };
  const leak = findings.findIndex(
    (finding, i) => finding.id === "leak" && isSure(finding, track, i),
  );
  if (leak >= 0)
    return {
      by: "leak",
      finding: leak,
      cursor: findings[leak].event,
      window: null,
      axis: "events",
    };
  return staircase(track);
}

/** So many of a run's steps begin higher than the one before where it grows like a staircase. */
const RISING = 0.8;
const FEWEST_STEPS = 8;
/** Of what only repeats: the layers of a first pass, each of which begins higher. */
const FEWEST_CYCLES = 3;

/** All of a run that grows from step to step, as a cache does, at the height at which that can be seen. */
function staircase(track: Track): Partial<State> {
  const levels = Array.from(track.stepStarts, (event) => track.requested.at(event - 1)).slice(1);
  const rises = levels.filter((bytes, i) => i > 0 && bytes > levels[i - 1]).length;
  const fewest = track.header.steps.name === "step" ? FEWEST_STEPS : FEWEST_CYCLES;
  if (levels.length < fewest || rises < RISING * (levels.length - 1)) return {};
  const [, peak] = track.header.counters.requested;
  const growth = levels[levels.length - 1] - levels[0];
  const isFlat = growth < peak / 4;
  return {
    window: null,
    axis: "events",
    lines: { allocated: false, active: false, reserved: !isFlat },
    bytes: isFlat ? [Math.max(0, levels[0] - growth), peak + growth / 2] : null,
  };
}

/** The first finding that is about some blocks or holes in particular. */
const firstAdvice = (findings: Finding[]): number =>
  findings.findIndex((finding) => finding.mark !== null);

const isSure = (finding: Finding, track: Track, number: number): boolean =>
  ["proven", "likely"].includes(finding.verdict) && Boolean(track.marks[number]?.rows.length);

function usualTable(track: Track): string {
  const peak = weighAt(track, track.header.counters.requested[2]);
  const lines = tally(track, peak, "line");
  const total = lines.reduce((sum, line) => sum + line.weight, 0);
  const most = Math.max(0, ...lines.filter((line) => line.key).map((line) => line.weight));
  const isMoreThanLines = tally(track, peak, "code").length > lines.length;
  return most >= MOST_OF_IT * total && total > 0 && isMoreThanLines ? "code" : "line";
}

/** The state with nothing in it that these recordings do not have: an address may be about others, or made up. */
export function within(scenes: Scene[], state: State): State {
  const track = Math.min(Math.max(0, state.track), scenes.length - 1);
  const { track: shown } = scenes[track];
  const { events, n, header } = shown;
  const several = state.tab === "compare" || state.tab === "ranks";
  const by = knownGrouping(shown, state);
  const groups = state.group >= 0 || state.only >= 0 ? scenes[track].groups(by).groups.length : 0;
  const isKnown = (recording: number): boolean =>
    Number.isInteger(recording) && recording >= 0 && recording < scenes.length;
  /** A number below a count, else none. */
  const below = (number: number, count: number): number => (number < count ? number : -1);
  return {
    ...state,
    track,
    by,
    tab: several && scenes.length < 2 ? "memory" : state.tab,
    cursor: Math.min(state.cursor, events - 1),
    selected: below(state.selected, n),
    call: below(state.call, shown.calls?.n ?? 0),
    finding: below(state.finding, header.verdict.findings.length),
    group: below(state.group, groups),
    only: below(state.only, groups),
    around: below(state.around, shown.frames.file.length),
    range: state.range && state.range[1] < events ? state.range : null,
    pair: state.pair.every(isKnown) ? state.pair : [0, Math.min(1, scenes.length - 1)],
  };
}
