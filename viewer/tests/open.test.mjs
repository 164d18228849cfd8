// The page that opens files: what is dropped onto it, in a real browser; and what it prepares beside what Python prepares.
//
// VRAMLENS_CHROMIUM names the browser (default /usr/bin/chromium), VRAMLENS_PYTHON a Python that has NumPy and rich.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { inflateSync } from "node:zlib";
import { chromium } from "playwright-core";
import { modules } from "./bundle.mjs";
import { settled } from "./settled.mjs";

const PYTHON = process.env.VRAMLENS_PYTHON ?? "python3";
const folder = mkdtempSync(join(tmpdir(), "vramlens-open-"));
const root = fileURLToPath(new URL("../..", import.meta.url));
execFileSync(PYTHON, [join(root, "viewer/tests/open_files.py"), folder], { stdio: ["ignore", "inherit", "inherit"] });
const files = JSON.parse(readFileSync(join(folder, "files.json"), "utf8"));
const html = readFileSync(join(folder, "open.html"), "utf8");
const { Container, format, opened, rulesOf, Track } = await modules();

let browser;
let page;
before(async () => {
  browser = await chromium.launch({ executablePath: process.env.VRAMLENS_CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
  page = settled(await browser.newPage({ viewport: { width: 1366, height: 768 } }));
});
after(async () => {
  await browser?.close();
  rmSync(folder, { recursive: true });
});

const address = pathToFileURL(join(folder, "open.html")).href;
const seen = { problems: [], requests: [] };

async function open() {
  await page.goto("about:blank");
  page.removeAllListeners();
  seen.problems = [];
  seen.requests = [];
  page.on("console", (message) => seen.problems.push(message.text()));
  page.on("pageerror", (error) => seen.problems.push(String(error)));
  page.on("dialog", (dialog) => seen.problems.push(dialog.message()));
  page.on("request", (request) => seen.requests.push(request.url()));
  await page.goto(address);
  await page.waitForSelector("html[data-waiting]");
}

const clean = () => {
  assert.deepEqual(seen.problems, []);
  assert.deepEqual(seen.requests, [address], "nothing but the page itself is loaded, nothing is sent");
};

/** Lets go of a file over the page, as a hand does. */
async function drop(name) {
  const content = readFileSync(join(folder, name)).toString("base64");
  await page.evaluate(
    ({ name, content }) => {
      const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File([bytes], name));
      for (const kind of ["dragover", "drop"])
        document.body.dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
    },
    { name, content },
  );
}

const shown = () => page.waitForSelector("html[data-ready]:not([data-waiting]) header h1", { timeout: 20_000 });

const UNITS = { bytes: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3 };
const bytesOf = (text) => Number(text.split(" ")[0]) * UNITS[text.split(" ")[1]];

test("every kind of file that is dropped shows the bytes that explain gives", async () => {
  await open();
  for (const [name, { peaks }] of Object.entries(files).filter(([, { peaks }]) => peaks)) {
    await drop(name);
    await shown();
    await page.waitForFunction((name) => document.querySelector("header h1")?.textContent === name, name);
    assert.equal(await page.textContent(".verdict .figures tr:nth-last-child(2) td"), format.size(peaks[0]), name);
    await page.keyboard.press("1");
    await page.keyboard.press("p");
    await page.waitForFunction(() => document.querySelector("canvas.picture"));
    const figure = await page.evaluate(async (wanted) => {
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      return document.querySelector(".drawer .facts")?.textContent ?? wanted;
    }, "");
    assert.ok(figure.includes(format.size(peaks[0])), `${name}: ${figure} at the peak, explain ${format.size(peaks[0])}`);
    const parts = await page.$$eval(".legend .entry:not(.line) > .soft", (all) => all.map((one) => one.textContent).filter(Boolean));
    const sum = parts.reduce((before, part) => before + bytesOf(part), 0);
    assert.ok(Math.abs(sum - peaks[0]) <= 0.0051 * parts.length * UNITS[format.size(peaks[0]).split(" ")[1]], `${name}: the groups sum to the peak`);
    for (const view of ["2", "3", "4"]) await page.keyboard.press(view);
  }
  clean();
});

test("a failed run shows the request that failed, its stack, and where the verdict is", async () => {
  await open();
  await page.setInputFiles("input[type=file]", join(folder, "plain.pickle"));
  await shown();
  const verdict = await page.textContent("aside");
  assert.match(verdict, /A request of [\d.]+ [KMG]iB failed\./);
  assert.match(verdict, /For the verdict: vramlens explain plain\.pickle/);
  assert.doesNotMatch(verdict, /What to do/, "it has no advice of its own");
  assert.match(await page.textContent(".drawer"), /wanted.*with .* requested and alive/);
  assert.match(await page.textContent(".drawer .stack"), /\.py:\d+ in /);
  const groupings = await page.$$eval("#by option", (all) => all.map((one) => one.value));
  assert.ok(groupings.includes("line") && !groupings.includes("category"), `${groupings}: only what is known`);
  await page.keyboard.press("3");
  await page.waitForSelector("[aria-label='table by'] button");
  assert.deepEqual(await page.$$eval("[aria-label='table by'] button", (all) => all.map((one) => one.textContent)), ["line", "code", "stack"]);
  clean();
});

test("while a file is read the page says how far it has come, and what comes of it is the same", async () => {
  await open();
  await page.evaluate(() => {
    // A clock by which every part of the work has taken too long: the reader pauses as often as it can.
    let now = 0;
    performance.now = () => (now += 1000);
    window.words = [];
    const heard = () => window.words.push(document.querySelector(".dropping [role=status]")?.textContent);
    new MutationObserver(heard).observe(document.body, { subtree: true, childList: true, characterData: true });
  });
  await drop("plain.pickle");
  await shown();
  const words = await page.evaluate(() => window.words);
  const canWait = await page.evaluate(() => "Suspending" in WebAssembly);
  assert.equal(words.some((line) => /^Reading: \d0?%$/.test(line)), canWait);
  for (const step of ["Following every allocation…", "Drawing…"]) assert.ok(words.includes(step), step);
  assert.equal(await page.textContent(".verdict .figures tr:nth-last-child(2) td"), format.size(files["plain.pickle"].peaks[0]));
  clean();
});

test("a file of several devices has a choice of them, and the next file takes its place", async () => {
  await open();
  await drop("two.pickle");
  await shown();
  assert.deepEqual(await page.$$eval("header select option", (all) => all.map((one) => one.textContent)), ["two.pickle, device 1", "two.pickle, device 0"]);
  await drop("stored.vram");
  await page.waitForFunction(() => document.querySelector("header h1")?.textContent === "stored.vram");
  assert.match(await page.textContent("header .told"), /torch 2\.13\.0/);
  await page.keyboard.press("c");
  assert.equal(await page.$$eval("header h1", (all) => all.length), 1, "one page, not two");
  clean();
});

test("what is damaged, foreign or evil is one line, and the next file opens", async () => {
  await open();
  for (const [name, { problem }] of Object.entries(files).filter(([, { problem }]) => problem)) {
    await drop(name);
    const words = await page.waitForSelector(".dropping .problem").then((line) => line.textContent());
    assert.ok(words.startsWith(`${name}: `) && words.includes(problem), `${name}: ${words}`);
    assert.ok(words.length < 160 && !words.includes("\n"), words);
  }
  await drop("packed.pickle.gz");
  await shown();
  clean();
});

/** Of a track, all that a dropped file shows as Python prepares it. */
function preparedOf(track) {
  const { header, row, segment, frames, bands } = track;
  const isOwn = (_, i) => !row.inferred[i];
  const place = (number) => (number ? header.lines[number - 1].map((part, i) => (i === 1 ? part : track.text(part))) : null);
  const named = (ids) => Array.from(ids, (id) => track.text(id));
  return {
    device: header.device,
    events: header.events,
    counters: header.counters,
    failures: header.failures,
    pools: header.pools,
    settings: header.settings,
    complete: header.complete,
    clock: Array.from(track.clock),
    base: header.rows.base,
    streams: header.rows.streams,
    segmentStreams: header.segments.streams,
    rows: Object.fromEntries(["born", "kept", "pending", "address", "bytes", "slack", "stack", "segment", "pool", "stream"].map((name) => [name, Array.from(row[name])])),
    lines: Array.from(row.line, place).filter(isOwn),
    segments: Object.fromEntries(Object.entries(segment).map(([name, column]) => [name, Array.from(column)])),
    segmentBorn: Array.from(track.segmentBorn),
    frames: { line: Array.from(frames.line), kind: Array.from(frames.kind), code: Array.from(frames.code), of: Array.from(frames.of_stacks), starts: Array.from(frames.starts), file: named(frames.file), function: named(frames.function) },
    bands: { begin: Array.from(bands.begin), end: Array.from(bands.end), depth: Array.from(bands.depth), name: named(bands.name) },
    steps: [header.steps.source, Array.from(track.stepStarts)],
    rank: header.rank,
    limit: header.verdict.limit === null || !header.failures.length ? header.limit_bytes : null,
    total: header.total_bytes,
    gpu: header.gpu,
    torch: header.torch,
  };
}

test("what the page prepares is what Python prepares, column by column", async () => {
  const rules = rulesOf(/id="rules">([^<]*)</.exec(html)[1]);
  const wasm = inflateSync(Buffer.from(/id="reader">([^<]*)</.exec(html)[1], "base64"));
  for (const view of readdirSync(folder).filter((file) => file.endsWith(".view"))) {
    const name = view.slice(0, -5);
    const container = await Container.open(new Uint8Array(readFileSync(join(folder, view))));
    const python = await Promise.all(container.header.tracks.map((track) => Track.read(container, track)));
    const { tracks } = await opened(new File([readFileSync(join(folder, name))], name), wasm, rules);
    assert.equal(tracks.length, python.length, name);
    for (const [i, track] of tracks.entries()) {
      const [ours, theirs] = [preparedOf(track), preparedOf(python[i])];
      const inferred = python[i].row.inferred;
      ours.lines = Array.from(track.row.line, (number) => number).map((number) => (number ? track.header.lines[number - 1].map((part, at) => (at === 1 ? part : track.text(part))) : null)).filter((_, at) => !inferred[at]);
      for (const part of Object.keys(theirs)) assert.deepEqual(ours[part], theirs[part], `${name}, device ${theirs.device}: ${part}`);
    }
  }
});
