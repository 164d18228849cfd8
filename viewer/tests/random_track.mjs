// Random recordings, in the form in which the Python side writes them.
import { deflateSync } from "node:zlib";

export function random(seed) {
  let state = seed * 2654435761 + 1;
  return (below) => {
    state = (Math.imul(state ^ (state >>> 15), 2246822519) + 3266489917) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** A container with one track: allocations of random sizes with random lives, some older than the recording. */
export function randomContainer(seed, wanted = 300) {
  const below = random(seed);
  const rows = [];
  const clock = [];
  const before = below(6);
  for (let i = 0; i < before; i++) rows.push({ born: -1, freed: null, died: null });
  let time = 0;
  for (let event = 0; event < wanted; event++) {
    time += below(3) ? below(50) : below(20000);
    clock.push(time);
    const held = rows.filter((row) => row.freed === null);
    const pending = rows.filter((row) => row.freed !== null && row.died === null);
    const choice = below(10);
    if (choice < 5 || !held.length) rows.push({ born: event, freed: null, died: null });
    else if (choice < 7) Object.assign(held[below(held.length)], { freed: event, died: event });
    else if (choice < 8) held[below(held.length)].freed = event;
    else if (pending.length) pending[below(pending.length)].died = event;
    // else: an event about no allocation
  }
  let address = 0;
  for (const row of rows) {
    row.freed ??= wanted;
    row.died ??= wanted;
    row.bytes = [1, 512, 4096, 1 << 20, 5 << 20, 64 << 20][below(6)] + below(3);
    row.slack = below(3) ? 0 : 256;
    row.category = below(7);
    row.address = address;
    address += row.bytes + row.slack + 512;
  }
  const columns = [];
  const chunks = [];
  const places = [];
  let at = 0;
  const add = (values, delta = false) => {
    const described = encode(values, delta);
    const chunk = deflateSync(described.planes);
    columns.push({ ...described.info, chunk: chunks.length, from: 0 });
    places.push({ at, size: chunk.length });
    chunks.push(chunk);
    at += chunk.length;
    return columns.length - 1;
  };
  const steps = [];
  for (let event = -1; event < wanted; event += 1 + below(30)) {
    steps.push([event, below(1 << 30)]);
    if (!below(5)) steps.push([event, below(1 << 30)]); // the most within an event, and what is left after it
  }
  const died = below(2) ? below(wanted) : null;
  const lived = steps.filter(([event]) => died === null || event <= died);
  const zeros = rows.map(() => 0);
  const of = (name) => rows.map((row) => row[name]);
  const most = rows.reduce((sum, row) => sum + row.bytes + row.slack, 0);
  const track = {
    device: 0, events: wanted, start_us: 0, timed: true, clock: add(clock, true),
    counters: { requested: [0, most, 0], allocated: [0, most, 0], active: [0, most, 0], reserved: [0, address, 0] },
    rows: {
      n: rows.length, base: "4096", streams: ["0"], names: [],
      born: add(of("born").map((born) => born + 1), true),
      kept: add(rows.map((row) => row.freed - row.born)),
      pending: add(rows.map((row) => row.died - row.freed)),
      address: add(of("address")), bytes: add(of("bytes")), slack: add(of("slack")),
      stack: add(rows.map((_, i) => i % 5)), segment: add(rows.map(() => 1)), pool: add(zeros), stream: add(zeros), line: add(zeros),
      inferred: add(zeros), category: add(of("category")), certainty: add(zeros), phase: add(zeros), module: add(zeros), name: add(zeros),
    },
    segments: {
      n: 1, base: "4096", streams: ["0"], born: add([0]), died: add([wanted]), address: add([0]), bytes: add([address]), expandable: add([0]), pool: add([0]), stack: add([0]),
    },
    failures: [], steps: { source: null, name: "step", starts: add([]) },
    bands: { n: 0, begin: add([]), end: add([]), name: add([]), depth: add([]) },
    // Four stacks, the third of them empty.
    frames: { file: add([0, 0, 1]), function: add([2, 3, 2]), line: add([7, 8, 9]), kind: add([2, 2, 0]), code: add([2, 1, 0, 3]), of_stacks: add([2, 1, 0, 2, 0, 1]), starts: add([0, 3, 5, 5, 6]) },
    collectives: null,
    lines: [], categories: ["other", "parameters", "gradients", "optimizer_state", "activations", "temporaries", "workspace"],
    certainties: ["proven"], phases: ["other"], modules: [], pools: [], sources: {}, texts: ["train.py", "torch/nn.py", "forward", "main"],
    settings: null, verdict: { failed: false, findings: [] },
    what_if: [{ conf: "a:b", reserved: 1 << 30, low: 1, high: 2 ** 31, confidence: "bounded", oom: died !== null, died, words: "", changes: 1, event: add(lived.map(([event]) => event + 1), true), bytes: add(lived.map(([, bytes]) => bytes), true) }],
  }; // prettier-ignore
  const header = deflateSync(Buffer.from(JSON.stringify({ tracks: [track], columns, chunks: places })));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(header.length);
  return { bytes: new Uint8Array(Buffer.concat([Buffer.from("vramview"), length, header, ...chunks])), rows, clock, events: wanted, steps: lived, died };
}

function encode(values, delta) {
  let before = 0;
  const coded = values.map((value) => {
    if (!delta) return value;
    const step = value - before;
    before = value;
    return step < 0 ? -step * 2 - 1 : step * 2;
  });
  const most = coded.reduce((a, b) => Math.max(a, b), 0);
  let planes = 1;
  while (most >= 256 ** planes) planes++;
  const bytes = Buffer.alloc(values.length * planes);
  coded.forEach((value, i) => {
    for (let plane = 0; plane < planes; plane++) bytes[plane * values.length + i] = Math.floor(value / 256 ** plane) % 256;
  });
  return { planes: bytes, info: { n: values.length, planes, delta, max: values.reduce((a, b) => Math.max(a, b), 0) } };
}
