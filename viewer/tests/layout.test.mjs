// The stacked layout against an independent one that looks at every allocation for every column.
import assert from "node:assert/strict";
import { test } from "node:test";
import { modules } from "./bundle.mjs";
import { random, randomContainer } from "./random_track.mjs";

const viewer = await modules();
const ORDER = ["parameters", "optimizer_state", "workspace", "gradients", "activations", "temporaries", "other"];
const NAMES = ["other", "parameters", "gradients", "optimizer_state", "activations", "temporaries", "workspace"];

async function made(seed, wanted) {
  const recording = randomContainer(seed, wanted);
  const container = await viewer.Container.open(recording.bytes);
  return { ...recording, track: await viewer.Track.read(container, container.header.tracks[0]) };
}

const alive = (rows, event) => rows.filter((row) => row.born <= event && row.died > event);
const sum = (rows) => rows.reduce((total, row) => total + row.bytes, 0);

/** Slowly: the event of a column, and its stack from the bottom to the top. */
function slowColumn(recording, kind, from, to, width, column) {
  const at = (edge) => {
    const place = from + ((to - from) * edge) / width;
    if (kind === "events") return Math.min(recording.events - 1, Math.floor(place));
    return recording.clock.filter((time) => time <= place).length - 1;
  };
  const first = at(column);
  const last = Math.max(first, at(column + 1));
  let event = first;
  for (let e = first; e <= last; e++) if (sum(alive(recording.rows, e)) > sum(alive(recording.rows, event))) event = e;
  const pieces = [];
  for (const name of ORDER) {
    for (const row of alive(recording.rows, event)) if (NAMES[row.category] === name) pieces.push({ row: recording.rows.indexOf(row), name });
  }
  return { event, pieces };
}

for (let seed = 1; seed <= 24; seed++) {
  test(`stack of a random recording, ${seed}`, async () => {
    const below = random(seed + 1000);
    const recording = await made(seed, 40 + below(400));
    const { track, rows } = recording;
    const groups = new viewer.Groups(track, "category");
    const kind = seed % 2 ? "events" : "time";
    const axis = new viewer.Axis(track, kind);
    const from = seed % 3 ? 0 : axis.end * 0.3;
    const to = seed % 3 ? axis.end : axis.end * 0.45;
    const width = 60;
    const height = 80 + below(200);
    const high = sum(rows.filter((row) => row.bytes)) / 3;
    const stacked = viewer.stack(track, groups, new viewer.Lifetimes(track), axis, { from, to, low: 0, high, width, height });
    let single = 0;
    for (let column = 0; column < width; column++) {
      const slow = slowColumn(recording, kind, from, to, width, column);
      assert.equal(stacked.moments.event[column], slow.event, `event of column ${column}`);
      const total = sum(slow.pieces.map((piece) => rows[piece.row]));
      const end = stacked.starts[column + 1];
      if (end > stacked.starts[column]) assert.equal(stacked.top[end - 1], total, "bytes of the column");
      else assert.equal(total, 0);
      // What is drawn by itself comes in the slow order, is alive, and has its own bytes.
      let before = 0;
      let last = -1;
      for (let p = stacked.starts[column]; p < end; p++) {
        const what = stacked.what[p];
        const bytes = stacked.top[p] - before;
        before = stacked.top[p];
        if (what < 0) continue;
        single++;
        const place = slow.pieces.findIndex((piece) => piece.row === what);
        assert.ok(place > last, "in order of group and birth, and alive");
        last = place;
        assert.equal(bytes, rows[what].bytes);
      }
      // A pixel high and alive at that moment: never merged.
      const drawn = new Set(stacked.what.subarray(stacked.starts[column], end));
      for (const { row } of slow.pieces) {
        const lives = rows[row].died - rows[row].born;
        const perColumn = (stacked.moments.last[width - 1] - stacked.moments.first[0]) / width;
        if (rows[row].bytes >= high / height && lives > perColumn) assert.ok(drawn.has(row), `allocation ${row} is drawn`);
      }
      // Whatever is pointed at, every byte belongs to one allocation of the right group.
      for (let tries = 0; tries < 6 && total; tries++) {
        const bytes = below(total);
        const found = viewer.hit(track, groups, stacked, column, bytes);
        assert.ok(found && found.row >= 0);
        assert.ok(slow.pieces.some((piece) => piece.row === found.row));
        assert.equal(found.merged, !drawn.has(found.row));
        assert.ok(found.from <= bytes && bytes < found.to && found.to - found.from === rows[found.row].bytes);
        assert.equal(groups.groups[found.group].name.replaceAll(" ", "_"), NAMES[rows[found.row].category]);
      }
      assert.equal(viewer.hit(track, groups, stacked, column, total), null);
    }
    assert.ok(single > 0);
  });
}

test("curves and their peaks are those of a slow sum", async () => {
  for (let seed = 50; seed < 56; seed++) {
    const { track, rows, events } = await made(seed, 700);
    const kinds = [
      [track.requested, (row) => row.bytes, (row) => row.died],
      [track.allocated, (row) => row.bytes + row.slack, (row) => row.freed],
      [track.active, (row) => row.bytes + row.slack, (row) => row.died],
    ];
    for (const [curve, size, end] of kinds) {
      const slow = Array.from({ length: events }, (_, e) => rows.reduce((all, row) => all + (row.born <= e && end(row) > e ? size(row) : 0), 0));
      slow.forEach((bytes, event) => assert.equal(curve.at(event), bytes));
      for (let a = 0; a < events; a += 37) {
        for (const b of [a + 1, a + 5, a + 90, events]) {
          if (b > events) continue;
          const part = slow.slice(a, b);
          assert.equal(curve.peak(a, b), a + part.indexOf(Math.max(...part)));
        }
      }
    }
    const groups = new viewer.Groups(track, "category");
    for (let event = -1; event < events; event += 13) {
      const sums = groups.at(event, new Float64Array(groups.groups.length));
      groups.groups.forEach((group, g) => assert.equal(sums[g], sum(alive(rows, event).filter((row) => NAMES[row.category] === group.name.replaceAll(" ", "_")))));
    }
  }
});

test("a replayed setting's line is the slow one, in every window, to where its program dies", async () => {
  for (let seed = 1; seed <= 30; seed++) {
    const { track, steps, died, events } = await made(seed, 60 + seed * 7);
    const below = random(seed + 500);
    const [line] = track.whatIf;
    for (let event = -1; event < events; event++) {
      const expected = died !== null && event > died ? null : steps.filter(([when]) => when <= event).at(-1)[1];
      assert.equal(line.at(event), expected, `after event ${event}`);
    }
    for (let i = 0; i < 20; i++) {
      const axis = new viewer.Axis(track, i % 2 ? "events" : "time");
      const from = (axis.end * below(100)) / 100;
      const columns = 1 + below(40);
      const { first, last } = viewer.momentsOf(axis, from, from + (axis.end - from) * (0.05 + below(95) / 100), columns);
      const highest = line.highest(first, last);
      const slow = [];
      for (let column = 0; column < columns; column++) {
        if (died !== null && (first[column] > died || (column && last[column - 1] >= died))) break;
        const until = Math.min(last[column], died ?? Infinity);
        const before = steps.filter(([when]) => when <= first[column]).at(-1)[1];
        slow.push(Math.max(before, ...steps.filter(([when]) => when >= first[column] && when <= until).map(([, bytes]) => bytes)));
      }
      assert.deepEqual([...highest], slow, `seed ${seed}, window ${i}`);
    }
  }
});

test("every grouping puts every allocation into a group", async () => {
  const { track } = await made(7, 300);
  for (const by of ["category", "phase", "module", "line", "step", "stream", "age"]) {
    const groups = new viewer.Groups(track, by);
    assert.ok(groups.groups.length > 0 && groups.of.every((group) => group < groups.groups.length), by);
    const total = groups.at(200, new Float64Array(groups.groups.length)).reduce((a, b) => a + b, 0);
    assert.equal(total, track.requested.at(200), by);
  }
});

test("the heap's lines hold every reserved byte once", async () => {
  const { track } = await made(9, 300);
  for (const lines of [1, 3, 12]) {
    const heap = viewer.heapOf(track, 150, 500, lines);
    assert.ok(heap.lines <= lines);
    const bytes = heap.pieces.reduce((total, piece) => total + piece.bytes, 0);
    assert.equal(Math.round(bytes), track.segment.bytes[0]);
  }
});

test("a hole is what no block lies in", async () => {
  const { track, rows } = await made(13, 300);
  const space = new viewer.Space(track);
  for (const event of [20, 150, 299]) {
    const here = alive(rows, event).map((row) => [row.address, row.address + row.bytes + row.slack, row]).sort((a, b) => a[0] - b[0]);
    const blocks = viewer.blocksOf(track, space, event);
    assert.deepEqual(blocks.map((block) => [block.from, block.from + block.bytes]), here.map(([from, to]) => [from, to]));
    for (let address = 0; address < track.segment.bytes[0]; address += 7_654_321) {
      const inside = here.find(([from, to]) => from <= address && address < to);
      const hole = viewer.holeAt(track, blocks, 0, address);
      if (inside) assert.equal(hole, null);
      else {
        const from = Math.max(0, ...here.filter(([, to]) => to <= address).map(([, to]) => to));
        const to = Math.min(track.segment.bytes[0], ...here.filter(([start]) => start > address).map(([start]) => start));
        const oldest = here.map(([, , row]) => row).sort((a, b) => rows.indexOf(a) - rows.indexOf(b))[0];
        assert.deepEqual(hole, { bytes: to - from, segmentBytes: track.segment.bytes[0], blocks: here.length, oldest: rows.indexOf(oldest) });
      }
    }
  }
});

test("tallies and flames add up", async () => {
  const { track, rows } = await made(11, 300);
  const weighed = viewer.weighAt(track, 200);
  const expected = sum(alive(rows, 200));
  for (const kind of ["line", "code", "module", "category", "phase", "stack"]) {
    assert.equal(viewer.tally(track, weighed, kind).reduce((total, entry) => total + entry.weight, 0), expected);
  }
  for (const all of [true, false]) {
    const root = viewer.flameOf(track, weighed, "all", all ? "all" : "own");
    assert.equal(root.weight, expected);
    assert.equal(root.inside.reduce((total, flame) => total + flame.weight, 0), expected, "those of empty stacks, too");
  }
  const lifetimes = viewer.weighLifetimes(track, 0, 300);
  const slow = rows.filter((row) => row.died > 0).reduce((total, row) => total + row.bytes * (track.timeOf(row.died) - track.timeOf(Math.max(0, row.born))), 0) / 1e6;
  const found = viewer.flameOf(track, lifetimes, "all").weight;
  assert.ok(Math.abs(found - slow) <= 1e-9 * slow);
  const tree = viewer.moduleTree([
    { key: 1, name: "a.b", weight: 5, count: 1, example: 0 },
    { key: 2, name: "a.c", weight: 7, count: 2, example: 1 },
    { key: 0, name: "outside modules", weight: 1, count: 1, example: 2 },
  ]);
  assert.deepEqual(tree.map((branch) => [branch.path, branch.depth, branch.weight]), [["a", 0, 12], ["a.c", 1, 7], ["a.b", 1, 5], ["outside modules", 0, 1]]);
});

test("arrow keys lead through a flame graph, and back the same way", async () => {
  const { track } = await made(11, 300);
  const root = viewer.flameOf(track, viewer.weighAt(track, 200), "all");
  const walk = (flame) => {
    for (const [i, inside] of flame.inside.entries()) {
      assert.equal(viewer.neighbor(inside, "ArrowUp"), flame);
      assert.equal(viewer.neighbor(inside, "ArrowRight"), flame.inside[i + 1] ?? null);
      assert.equal(viewer.neighbor(inside, "ArrowLeft"), flame.inside[i - 1] ?? null);
      walk(inside);
    }
    assert.equal(viewer.neighbor(flame, "ArrowDown"), flame.inside[0] ?? null);
  };
  walk(root);
  assert.equal(viewer.neighbor(root, "ArrowUp"), null);
  assert.equal(viewer.neighbor(root, "ArrowLeft"), null);
});

/** Every flame of a tree, and what lies inside of it. */
function* flamesOf(flame) {
  yield flame;
  for (const inside of flame.inside) yield* flamesOf(inside);
}

test("a frame of the graph names the heaviest allocation through it, and the way to it holds when others come and go", async () => {
  const { track } = await made(11, 300);
  const graphs = [100, 200].map((event) => {
    const weighed = viewer.weighAt(track, event);
    return { weighed, root: viewer.flameOf(track, weighed, "all") };
  });
  for (const { weighed, root } of graphs) {
    const heaviest = Math.max(...Array.from(weighed.rows, weighed.weight));
    assert.equal(weighed.weight(root.example), heaviest);
    for (const flame of flamesOf(root)) {
      assert.equal(weighed.weight(flame.example), flame.most);
      assert.equal(viewer.flameAt(root, viewer.pathOf(flame)), flame);
    }
  }
  let shared = 0;
  for (const flame of flamesOf(graphs[0].root)) {
    const same = viewer.flameAt(graphs[1].root, viewer.pathOf(flame));
    if (same.depth !== flame.depth) continue;
    shared++;
    if (flame.depth) assert.equal(same.long, flame.long, "not another one at the same place");
  }
  assert.ok(shared > 3);
});

test("a frame between callers and callees: each stack through it counts once, whole, on both sides", async () => {
  const { track } = await made(11, 300);
  const weighed = viewer.weighAt(track, 200);
  const place = (frame) => `${frame.file}:${frame.line} in ${frame.function}`;
  const stacks = Array.from(weighed.rows, (row) => ({ row, bytes: weighed.weight(row), frames: track.stack(track.row.stack[row]).map(place).reverse() }));
  for (const number of new Set(track.samePlaces)) {
    const name = place(track.frame(number));
    const through = stacks.filter(({ frames }) => frames.includes(name));
    const sandwich = viewer.sandwichOf(track, weighed, number, "all");
    assert.equal(sandwich.center.weight, sum(through));
    const line = track.header.lines.findIndex(([file, at, name]) => `${track.text(file)}:${at} in ${track.text(name)}` === place(track.frame(number)));
    const lent = stacks.filter(({ row, frames }) => track.row.line[row] === line + 1 && line >= 0 && !frames.includes(name));
    assert.equal(sandwich.lent, sum(lent));
    const beside = (by) => {
      const sums = new Map();
      for (const { bytes, frames } of through) {
        const next = frames[frames.indexOf(name) + by];
        if (next) sums.set(next, (sums.get(next) ?? 0) + bytes);
      }
      return [...sums].sort();
    };
    const shown = (flames) => flames.map(({ long, weight }) => [long, weight]).sort();
    assert.deepEqual(shown(sandwich.callers), beside(-1));
    assert.deepEqual(shown(sandwich.center.inside), beside(1));
    const { center, callers } = sandwich;
    const go = (flame, key) => viewer.sandwichNeighbor(sandwich, flame, key);
    if (callers.length) assert.equal(go(go(center, "ArrowUp"), "ArrowDown"), center);
    if (center.inside.length) assert.equal(go(go(center, "ArrowDown"), "ArrowUp"), center);
    if (callers.length > 1) assert.equal(go(go(callers[0], "ArrowRight"), "ArrowLeft"), callers[0]);
    for (const caller of callers) assert.ok(viewer.isCaller(sandwich, caller));
    for (const callee of center.inside) assert.ok(!viewer.isCaller(sandwich, callee));
  }
});

/** Calls of random lengths; every 17th never finished. */
function calls(count, random) {
  const at = [];
  for (let i = 0, us = 0; i < count; i++) at.push((us += random(400)));
  const zeros = at.map(() => 0);
  const took = at.map(() => 1 + random(3) ** 3 * random(300));
  const state = at.map((_, i) => (i % 17 === 16 ? 3 : 1));
  const column = { at, late: zeros, took, finished: zeros, name: zeros, group: zeros, seq: zeros, state, bytes: zeros, shape: zeros, stack: zeros, problem: zeros, frame_file: [], frame_line: [], frame_function: [], frame_user: [], stack_starts: [0] };
  return new viewer.Calls({ n: count, notes: [], groups: [], states: ["", "completed", "started", "scheduled"], flight: true }, column);
}

test("collectives are found in a window and under a pixel, as by a slow search", async () => {
  let seed = 5;
  const random = (below) => (seed = (seed * 48271) % 0x7fffffff) % below;
  const { track } = await made(3, 300);
  const found = calls(60, random);
  for (const kind of ["time", "events"]) {
    const axis = new viewer.Axis(track, kind);
    const { from, to } = found.places(axis);
    for (let i = 0; i < 200; i++) {
      const a = (random(1000) / 1000) * axis.end;
      const b = a + (random(1000) / 1000) * (axis.end - a);
      const [first, end] = found.between(axis, a, b);
      for (let call = 0; call < found.n; call++) {
        if (to[call] >= a && from[call] <= b) assert.ok(first <= call && call < end);
      }
      const band = { left: 74, width: 900, top: 0, height: 10, from: 0, to: axis.end };
      const x = 74 + random(900);
      const place = ((x - 74) / 900) * axis.end;
      const near = [...from.keys()].filter((call) => from[call] - place <= (4 / 900) * axis.end && place - to[call] <= (4 / 900) * axis.end);
      const hit = viewer.callAt(band, found, axis, x);
      if (near.length) assert.ok(near.includes(hit));
      else assert.equal(hit, found.open.filter((call) => from[call] <= place).pop() ?? -1);
      if (near.some((call) => found.flagged[call])) assert.ok(found.flagged[hit], "what never finished comes first");
    }
  }
  assert.deepEqual(found.open, [16, 33, 50]);
});

test("an address holds the whole place, and a hostile one nothing else", () => {
  const shared = { track: 3, axis: "events", by: "line", window: [10, 20.5], bytes: [0, 4096], space: [4096, 8192], cursor: 17, selected: 5, call: 2, finding: 1, group: 3, only: 4, range: [7, 7], search: "a b&c", lines: { allocated: true, active: false, reserved: false }, off: "0_2", sort: "-bytes" };
  for (const own of [{ tab: "who", of: "lifetime", table: "module", frames: "code", zoom: "0.12.3" }, { tab: "compare", table: "code", pair: [2, 1] }, { tab: "ranks", order: "peak" }, { tab: "list" }]) {
    const state = { ...shared, ...own };
    assert.deepEqual(viewer.fromHash(`#${viewer.toHash({ of: "peak", table: "line", frames: "own", zoom: "", pair: [0, 1], order: "accused", ...state })}`), state);
  }
  assert.deepEqual(viewer.fromHash("#view=nothing&x=9_1&y=NaN_3&at=1e400&track=-7&by=__proto__&table=constructor&range=9_1&zoom=0.x&off=a&sort=<b>&pair=1&lines=zz&addresses=5"), {});
});

test("a search that is no regular expression is looked for as it is", () => {
  assert.ok(viewer.pattern("a(b").test("xa(bx"));
  assert.ok(viewer.pattern("step").test("Step"));
  assert.ok(!viewer.pattern("Step").test("step"));
});

test("sizes and times are written as everywhere else", () => {
  const { size, time } = viewer.format;
  assert.deepEqual([1, 512, 1536, 57 * 2 ** 20, 3.71 * 2 ** 30].map(size), ["1 byte", "512 bytes", "1.50 KiB", "57.00 MiB", "3.71 GiB"]);
  const ties = [942800896, 1.375 * 2 ** 20, 2.625 * 2 ** 30, -1.125 * 2 ** 20];
  assert.deepEqual(ties.map(size), ["899.12 MiB", "1.38 MiB", "2.62 GiB", "-1.12 MiB"]); // as Python rounds
  assert.deepEqual([0, 812, 1240, 3.05e6, 125e6, 179.7e6].map((us) => time(us)), ["0", "812 µs", "1.24 ms", "3.05 s", "2 min 5 s", "3 min 0 s"]);
});

test("blocks under a pixel are not taken for free memory", () => {
  const { category, phase, pale, freeColour } = viewer.palette;
  for (const paper of [[255, 255, 255], [22, 26, 32]]) {
    const free = freeColour(paper);
    for (const [name, colour] of [...Object.entries(category), ...Object.entries(phase)]) {
      const distance = Math.hypot(...pale(colour, paper).map((part, i) => part - free[i]));
      assert.ok(distance >= 40, `${name} is ${distance.toFixed(0)} from free`);
    }
  }
});

// Machado, Oliveira and Fernandes 2009, severity 1.
const SEEN = {
  everyone: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}; // prettier-ignore

/** CIE L*a*b* of a colour as some people see it. */
function lab(colour, matrix) {
  const linear = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  const [r, g, b] = matrix.map((row) => Math.min(1, Math.max(0, row.reduce((sum, factor, i) => sum + factor * linear[i], 0))));
  const f = (t) => (t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116);
  const x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
  const y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
  const z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

for (const [who, matrix] of Object.entries(SEEN)) {
  test(`colours differ for ${who}`, () => {
    const { category, phase, distinct } = viewer.palette;
    for (const [name, least, colours] of [["category", 14, Object.values(category)], ["phase", 14, Object.values(phase)], ["distinct", 7, distinct]]) {
      const seen = colours.map((colour) => lab(colour, matrix));
      for (let a = 0; a < seen.length; a++) {
        for (let b = a + 1; b < seen.length; b++) {
          const distance = Math.hypot(...seen[a].map((part, i) => part - seen[b][i]));
          assert.ok(distance >= least, `${name}: ${colours[a]} and ${colours[b]} are ${distance.toFixed(1)} apart`);
        }
      }
    }
  });
}

test("a query keeps what each of its words keeps", async () => {
  const { track, rows } = await made(5, 300);
  const kept = (text, cursor = 120) => [...viewer.matches(track, viewer.parse(text), cursor)].flatMap((flag, i) => (flag ? [i] : []));
  const all = rows.map((_, i) => i);
  assert.deepEqual(kept(""), all);
  assert.deepEqual(kept(">1MiB"), all.filter((i) => rows[i].bytes >= 1 << 20));
  assert.deepEqual(kept("unfreed"), all.filter((i) => rows[i].died >= track.events));
  assert.deepEqual(kept("<=4k alive"), all.filter((i) => rows[i].bytes <= 4096 && rows[i].born <= 120 && rows[i].died > 120));
  const inside = 4096 + rows[7].address + rows[7].bytes - 1;
  assert.deepEqual(kept(`0x${inside.toString(16)}`), [7]);
  assert.deepEqual(kept("line:train.py:9"), kept("LINE:train.PY:9"));
  assert.ok(kept("line:train.py").length > kept("line:train.py:9").length);
  assert.deepEqual(kept("nothing of the kind"), []);
  assert.deepEqual(kept("step:3"), [], "this one has no steps");
  assert.deepEqual({ ...viewer.parse("step:2-5 foo >1.5GiB bar 0x7f00") }, { least: 1.5 * 2 ** 30, most: Infinity, steps: [2, 5], line: "", alive: false, unfreed: false, address: 0x7f00n, text: "foo bar" });
});

test("what a range bears and keeps adds up", async () => {
  const { track, rows } = await made(9, 300);
  for (const [first, last] of [[0, 299], [40, 90], [77, 77]]) {
    const range = viewer.rangeOf(track, first, last);
    const born = rows.filter((row) => row.born >= first && row.born <= last);
    assert.equal(viewer.bytesOf(track, range.born), sum(born));
    assert.equal(viewer.bytesOf(track, range.kept), sum(born.filter((row) => row.died > last)));
    assert.equal(viewer.bytesOf(track, range.freed), sum(rows.filter((row) => row.died >= first && row.died <= last)));
    assert.equal(range.after - range.before, viewer.bytesOf(track, range.born) - viewer.bytesOf(track, range.freed));
    const table = viewer.rangeRows(track, range, "category");
    for (const part of ["born", "freed", "kept"]) assert.equal(table.reduce((total, row) => total + row[part], 0), viewer.bytesOf(track, range[part]));
  }
});

test("a group that is shown alone has its own bytes, and no other's", async () => {
  const { track, rows } = await made(3, 300);
  const only = new viewer.Groups(track, "category", 1);
  const of = rows.filter((_, i) => only.of[i] === 1);
  let most = 0;
  for (let event = 0; event < 300; event++) {
    const sums = [...only.at(event, new Float64Array(only.groups.length))];
    assert.deepEqual(sums, sums.map((_, group) => (group === 1 ? sum(alive(of, event)) : 0)));
    most = Math.max(most, sums[1]);
  }
  assert.equal(only.onlyPeak, most);
});

test("a hole is free from when its last block went until the next one comes", async () => {
  const { track, rows } = await made(6, 200);
  const row = rows.findIndex((one) => one.died < 150 && one.died > 20 && one.bytes > 4096);
  const holes = viewer.holesOf(track, [rows[row].address], [rows[row].bytes], 160);
  assert.equal(holes.total, rows[row].bytes);
  assert.equal(holes.since[0], rows[row].died);
  assert.equal(holes.until[0], 200);
});

test("columns of a thousand ranks are inflated some at a time, and shared chunks once", async () => {
  const { deflateSync } = await import("node:zlib");
  const chunks = Array.from({ length: 3000 }, (_, i) => deflateSync(Buffer.from([i % 256, 7, (i + 1) % 256])));
  const columns = chunks.flatMap((_, chunk) => [0, 1].map((part) => ({ n: part + 1, planes: 1, delta: false, max: 255, chunk, from: part })));
  let at = 0;
  const places = chunks.map((chunk) => ({ at: (at += chunk.length) - chunk.length, size: chunk.length }));
  const header = deflateSync(Buffer.from(JSON.stringify({ tracks: [], columns, chunks: places })));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(header.length);
  const container = await viewer.Container.open(new Uint8Array(Buffer.concat([Buffer.from("vramview"), length, header, ...chunks])));
  const { DecompressionStream } = globalThis;
  let made = 0;
  globalThis.DecompressionStream = class extends DecompressionStream {
    constructor(...kind) {
      super(...kind);
      made++;
    }
  };
  const reading = columns.map((_, i) => container.column(i));
  assert.ok(made <= 32, `${made} streams at once`);
  const read = await Promise.all(reading);
  globalThis.DecompressionStream = DecompressionStream;
  assert.equal(made, 3000);
  read.forEach((values, i) => assert.deepEqual([...values], i % 2 ? [7, ((i >> 1) + 1) % 256] : [(i >> 1) % 256]));
});

test("ranks that look alike are one strip; the accused stand apart", async () => {
  const tracks = await Promise.all([3, 3, 3, 4, 3].map(async (seed) => (await made(seed, 300)).track));
  const axes = tracks.map((track) => new viewer.Axis(track, "events"));
  const shape = (apart) => viewer.strips([0, 1, 2, 3, 4], axes, new Set(apart)).map(({ track, alike }) => [track, alike]);
  assert.deepEqual(shape([]), [[0, [1, 2, 4]], [3, []]]);
  assert.deepEqual(shape([1]), [[0, [2, 4]], [1, []], [3, []]]);
});

test("steps as an axis: the same work lies at the same place", async () => {
  const { track } = await made(8, 300);
  const stepped = new viewer.StepAxis(Object.assign(Object.create(track), { stepStarts: [30, 130, 180] }));
  assert.equal(stepped.end, 4);
  assert.deepEqual([0, 0.5, 1, 1.5, 2, 3, 3.5, 4].map((at) => stepped.event(at)), [0, 15, 30, 80, 130, 180, 240, 299]);
});

test("files are named without what all packages have in common", () => {
  assert.equal(viewer.shortFile("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py"), "torch/nn/modules/linear.py");
  assert.equal(viewer.shortFile("C:\\py\\Lib\\site-packages\\x\\y.py"), "x\\y.py");
  assert.equal(viewer.shortFile("/usr/lib/python3.11/threading.py"), "threading.py");
  assert.equal(viewer.shortFile("/home/me/lib/model.py"), "/home/me/lib/model.py");
});
