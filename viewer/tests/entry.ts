// What the tests of the layout need of the viewer, in one bundle.

export { Calls } from "../src/data/calls";
export { Container, decode } from "../src/data/container";
export { Groups } from "../src/data/groups";
export { Track } from "../src/data/track";
export { Axis } from "../src/layout/axis";
export { blocksOf, heapOf, holeAt } from "../src/layout/heap";
export { Lifetimes, momentsOf } from "../src/layout/moments";
export { Space } from "../src/layout/space";
export { hit, stack } from "../src/layout/stacked";
export { flameAt, flameOf, neighbor, pathOf } from "../src/layout/flame_tree";
export { isCaller, sandwichNeighbor, sandwichOf } from "../src/layout/sandwich";
export { moduleTree, tally, weighAt, weighLifetimes } from "../src/layout/tally";
export { callAt } from "../src/views/calls_band";
export { fromHash, toHash } from "../src/state/address";
export { markedBySearch } from "../src/state/marks";
export { matches, parse, pattern } from "../src/state/query";
export { holesOf } from "../src/data/holes";
export { SvgSurface } from "../src/draw/svg";
export * as palette from "../src/base/palette";
export * as format from "../src/base/format";
export { bytesOf, rangeOf, rangeRows } from "../src/layout/range";
export { shortFile } from "../src/base/files";
export { strips } from "../src/layout/alike";
export { StepAxis } from "../src/layout/step_axis";
export { opened } from "../src/file/opened";
export { rulesOf } from "../src/file/rules";
