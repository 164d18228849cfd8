// The pages in a real browser: every view of every shared recording, what lies under the pointer, the keyboard alone.
//
// VRAMLENS_CHROMIUM names the browser (default /usr/bin/chromium), VRAMLENS_PYTHON a Python that has NumPy and rich.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import { drawn, settled } from "./settled.mjs";

const PYTHON = process.env.VRAMLENS_PYTHON ?? "python3";
const folder = mkdtempSync(join(tmpdir(), "vramlens-pages-"));
const root = fileURLToPath(new URL("../..", import.meta.url));
/** Whether the checkout has a native core; else the package that is installed is tested, as pages.py does. */
const built = readdirSync(join(root, "src/vramlens")).some((file) => file.startsWith("libvramlens."));
execFileSync(PYTHON, [join(root, "viewer/tests/pages.py"), folder], { stdio: ["ignore", "inherit", "inherit"] });
/** Those with tests of their own alone. */
const APART = new Set(["desync", "pair", "inference_kv"]);
const names = readdirSync(folder).filter((file) => file.endsWith(".html")).map((file) => file.slice(0, -5)).filter((name) => !APART.has(name)); // prettier-ignore
const expected = (name) => JSON.parse(readFileSync(join(folder, `${name}.json`), "utf8"));

let browser;
let page;
before(async () => {
  browser = await chromium.launch({ executablePath: process.env.VRAMLENS_CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
  page = settled(await (await browser.newContext({ acceptDownloads: true })).newPage());
});
after(async () => {
  await browser?.close();
  rmSync(folder, { recursive: true });
});

/** A page, with all that goes wrong on it and all that it asks for. One tab serves all: a new one takes as long as a test. */
async function open(name, { hash = "", url, viewport = { width: 1366, height: 768 }, colorScheme = "light" } = {}) {
  await page.goto("about:blank");
  await page.setViewportSize(viewport);
  await page.emulateMedia({ colorScheme });
  await page.mouse.move(2, 2);
  const seen = { problems: [], requests: [] };
  const address = url ?? pathToFileURL(join(folder, `${name}.html`)).href;
  const heard = {
    console: (message) => seen.problems.push(message.text()),
    pageerror: (error) => seen.problems.push(String(error)),
    dialog: (dialog) => {
      seen.problems.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    },
  };
  for (const [event, listener] of Object.entries(heard)) {
    page.removeAllListeners(event);
    page.on(event, listener);
  }
  page.context().removeAllListeners("request");
  page.context().on("request", (request) => seen.requests.push(request.url()));
  await page.goto(address + hash);
  await page.waitForSelector("html[data-ready]", { timeout: 20_000 });
  return { seen, address };
}

/** Until the page has written its state into the address: its own timer is due before this one, however busy the machine is. */
const quiet = () => page.evaluate(() => new Promise((done) => setTimeout(done, 250)));

/** What an address or the page's own code asks for is drawn; actions wait for it themselves. */
const frame = () => drawn(page);

/** How many colours a canvas shows. */
const colours = (selector) =>
  page.$eval(selector, (canvas) => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  });

const clean = (seen, address) => {
  assert.deepEqual(seen.problems, []);
  assert.deepEqual(seen.requests.map((url) => url.split("#")[0]), [address], "nothing but the page itself is loaded"); // prettier-ignore
};

/** Every key and colouring, on recordings that differ in kind; on the others one colouring each, in turn. */
const THOROUGH = new Set(["gpt_annotated", "oom_fragmented", "hostile", "no_events", "timeless", "ranks"]);
const KEYS = ["w", "w", "s", "a", "d", "e", "q", "x", "0", "p", "o", "ArrowRight", "Shift+ArrowLeft", "ArrowUp", "ArrowDown", "Enter", "l", "n", "Escape"];
const COLOURINGS = ["category", "phase", "module", "line", "code", "step", "stream", "pool", "age"];

async function everyView(name, number) {
  assert.ok((await page.textContent("aside h2")).length > 10, "the verdict stands beside the picture");
  const tabs = await page.$$eval("nav button", (buttons) => buttons.map((button) => button.textContent));
  assert.deepEqual(tabs.slice(0, 4), ["Memory", "Addresses", "Who", "List"]);
  for (const [i, tab] of tabs.entries()) {
    await page.keyboard.press(String(i + 1));
    assert.equal(await page.textContent("nav [aria-current]"), tab);
    if (tab === "List") assert.ok((await page.textContent(".list .answer")).length > 20);
    else assert.ok((await colours(".pane .canvas canvas")) > 3, `${tab} shows something`);
  }
  await page.keyboard.press("1");
  await legendCloses();
  for (const by of THOROUGH.has(name) ? COLOURINGS : [COLOURINGS[number % COLOURINGS.length]]) {
    await page.selectOption("#by", by);
    assert.ok((await colours("canvas.picture")) > 3, `coloured by ${by}`);
    await legendCloses();
  }
  await page.keyboard.press("c");
  for (const key of THOROUGH.has(name) ? KEYS : KEYS.slice(-6)) {
    await page.keyboard.press(key);
  }
  const unnamed = await page.$$eval("button, select, input, canvas[tabindex='0']", (all) =>
    all.filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.closest("label"))).map((one) => one.outerHTML),
  );
  assert.deepEqual(unnamed, [], "everything that can be used has a name");
}

const UNITS = { byte: 1, bytes: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3 };
const bytesOf = (text) => (text ? Number(text.split(" ")[0]) * UNITS[text.split(" ")[1]] : 0);
const roundedBy = (text) => (/[KMG]iB/.test(text) ? 0.0051 * UNITS[text.split(" ")[1]] : 0);

/** What the legend says sums to what the drawer says of the cursor, to the last digit that is shown. */
async function legendCloses() {
  const parts = await page.$$eval(".legend .entry:not(.line) > .soft", (all) => all.map((one) => one.textContent));
  const [size, words] = await page.$eval(".drawer .facts", (facts) => [...facts.children].slice(0, 2).map((one) => one.textContent));
  const whole = words.startsWith("with ") ? /^with (.+) requested/.exec(words)[1] : size;
  const sum = parts.reduce((before, part) => before + bytesOf(part), 0);
  const slack = [whole, ...parts].reduce((before, part) => before + roundedBy(part), 0);
  assert.ok(Math.abs(sum - bytesOf(whole)) <= slack, `${parts.join(" + ")} is ${whole}`);
}

async function underThePointer({ event, events, probes }) {
  const from = Math.max(0, Math.min(event, events - 4));
  for (const probe of probes) {
    await page.evaluate((hash) => (location.hash = hash), `view=memory&by=category&axis=events&x=${from}_${from + 4}&y=${probe.low}_${probe.high}&at=${event}`);
    await frame(); // the picture before may reach as high
    await page.waitForFunction((high) => Number(document.querySelector("canvas.picture")?.dataset.plot?.split(",")[5]) === high, probe.high);
    const [left, top, width, height] = (await page.getAttribute("canvas.picture", "data-plot")).split(",").map(Number);
    const box = await page.locator("canvas.picture").boundingBox();
    // What is under a pixel lies merged above what is drawn by itself.
    const pixel = (probe.high - probe.low) / height;
    const middle = probe.below + probe.older.filter((size) => size >= pixel).reduce((a, b) => a + b, probe.bytes / 2);
    const y = top + height * (1 - (middle - probe.low) / (probe.high - probe.low));
    await page.mouse.move(box.x + left + ((event + 0.5 - from) / Math.min(4, events)) * width, box.y + y);
    assert.equal(await page.textContent(".drawer .size"), probe.size);
    assert.match(await page.textContent(".drawer .facts"), new RegExp(`${probe.address},`));
    const line = await page.textContent(".drawer .user-line");
    if (probe.line) assert.ok(line.startsWith(probe.line), `${line} begins with ${probe.line}`);
    else assert.match(line, /No line of yours/);
    await page.$$eval(".drawer .folded button", (all) => all.forEach((one) => one.click()));
    assert.deepEqual(await page.$$eval(".drawer .frames .function", (all) => all.map((one) => one.textContent)), probe.frames);
    await page.mouse.move(2, 2);
  }
}

for (const [number, name] of names.entries()) {
  test(`what is under the pointer in ${name}, and every view of it`, async () => {
    const { seen, address } = await open(name);
    if (name !== "ranks") await underThePointer(expected(name));
    await page.evaluate(() => (location.hash = "view=memory&by=category&axis=time"));
    await frame();
    await everyView(name, number);
    clean(seen, address);
  });
}

/** Where a call's bar is: the middle of its place on the band, in the page. */
async function onBand(call, selector = "canvas.picture") {
  const [left, top, width, height] = (await page.getAttribute(selector, "data-plot")).split(",").map(Number);
  const box = await page.locator(selector).boundingBox();
  return [box.x + left + call * width, box.y + top + height + 27];
}

test("collectives lie under the picture, with the pointer and with the keyboard", async () => {
  const { seen, address } = await open("desync", { hash: "#view=memory" });
  assert.equal(await page.textContent(".calls"), "7 collectives: 2 never finished, the ranks differ in 1 (K: the next one).");
  const seconds = 0.197;
  await page.mouse.move(...(await onBand(0.171555 / seconds)));
  assert.match(await page.textContent(".tip"), /^all_reduce, 4.00 MiB, number 6 of group 0 \(default_pg\): never finished.*do not agree here: rank 0 all_reduce.*rank 1 all_gather/);
  assert.match(await page.textContent(".drawer"), /desync.*all_reduce/s);
  // It never finished: its bar goes on to the end.
  await page.mouse.move(...(await onBand(0.99)));
  assert.match(await page.textContent(".tip"), /number 7 .*never finished/);
  await page.mouse.move(...(await onBand(0.5)));
  assert.ok(await page.isHidden(".tip"), "between two calls there is none");
  await page.mouse.click(...(await onBand(0.034252 / seconds)));
  await page.waitForFunction(() => /collective=0/.test(location.hash));
  assert.equal(await page.textContent(".drawer .size"), "all_reduce");
  assert.match(await page.textContent(".drawer .facts"), /4.00 MiB, number 1 of group 0 \(default_pg\).*called34.3 ms, after event 34.*ranks0, 1/);
  assert.equal(await page.textContent(".drawer .user-line"), "train/multi.py:61 in desync");
  for (let i = 0; i < 6; i++) await page.keyboard.press("k");
  await page.waitForFunction(() => /collective=6/.test(location.hash));
  assert.match(await page.textContent(".heard"), /^all_reduce, 4.00 MiB, number 7 of group .*never finished/);
  await page.keyboard.press("Shift+K");
  await page.keyboard.press("x");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /axis=events&x=/.test(location.hash));
  const hash = await page.evaluate(() => location.hash);
  await page.keyboard.press("ArrowUp");
  assert.match(await page.textContent(".drawer .size"), /^(1.00 MiB|4.00 KiB)$/, "an allocation is chosen instead");
  clean(seen, address);
  const again = await open("desync", { hash });
  assert.match(await page.textContent(".drawer .facts"), /number 6 of group/);
  await page.keyboard.press("Escape");
  assert.doesNotMatch(await page.textContent(".drawer"), /number 6/);
  clean(again.seen, again.address);
  await open("gpt");
  assert.ok(await page.isHidden(".calls"));
});

test("each rank has its own band, and names from a flight record are text", async () => {
  const { seen, address } = await open("desync");
  assert.equal(await page.textContent("nav [aria-current]"), "Ranks");
  assert.match(await page.textContent(".answer"), /2 collectives of rank 0, 1 collective of rank 2 never finished\.$/);
  const box = await page.locator(".ranks canvas").boundingBox();
  const x = box.x + 240 + (0.009 / 0.197) * (box.width - 254) + 1;
  await page.mouse.move(x, box.y + 2 * 46 + 41);
  const title = await page.getAttribute(".ranks canvas", "title");
  assert.match(title, /<img src=x onerror="alert\(1\)">.*number 1 of group .*started, and never finished$/);
  await page.mouse.click(x, box.y + 2 * 46 + 41);
  assert.equal(await page.textContent("nav [aria-current]"), "Memory");
  assert.match(await page.textContent(".drawer .size"), /<img src=x/);
  assert.equal(await page.$("img"), null);
  // The keyboard goes from strip to strip.
  await page.keyboard.press("6");
  await page.keyboard.press("ArrowUp");
  assert.match(await page.textContent(".heard"), /^rank 1, peak 1.00 MiB/);
  clean(seen, address);
});

test("a flame graph by the keyboard alone", async () => {
  const { seen, address } = await open("gpt", { hash: "#view=who&of=peak" });
  await page.evaluate(() => [...document.querySelectorAll(".bar button")].pop().focus());
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "flame");
  const heard = () => page.textContent(".heard");
  assert.match(await heard(), /^at the peak, 1.84 GiB, 100%, level 0, 2 inside$/);
  await page.keyboard.press("ArrowDown");
  assert.match(await heard(), /^workloads.py:312 in <module>, .*, your code, level 1, 1 of 2 beside each other/);
  await page.keyboard.press("ArrowRight");
  assert.match(await heard(), /^no stack \(PyTorch's own threads\), .*, level 1, 2 of 2 /);
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  const deep = await heard();
  assert.match(deep, /^workloads.py:77 in gpt, .*level 3/);
  assert.match(await page.textContent(".drawer .frames"), /gpt/);
  await page.keyboard.press("Enter");
  assert.equal(await heard(), `${deep}, zoomed in`);
  await page.keyboard.press("Escape");
  assert.match(await heard(), /^workloads.py:292 in main, .*zoomed in$/);
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  assert.match(await heard(), /level 0, 2 inside$/);
  clean(seen, address);
});

test("a frame between its callers and callees: by the keyboard, by clicks, in the address, as a picture", async () => {
  const { seen, address } = await open("lightning", { hash: "#view=who&of=peak&table=line&frames=code" });
  const heard = () => page.textContent(".heard");
  const middle = () => page.textContent(".path [aria-current]");
  await page.click(".bar button:has-text('callers and callees')");
  await hashHas(/around=\d+/);
  assert.match(await heard(), /^Callers and callees of .+\.py:\d+ in .+, your code: \d+ callers?, \d+ callees?$/, "where nothing is chosen, the heaviest line");
  const amount = /^Callers and callees of .+, ([\d.]+ \wiB), /.exec(await heard())[1];
  assert.match(await page.textContent(".who .merged"), new RegExp(`; ${amount} of it through `));
  const [first] = await page.$$eval(".who tbody td:first-child", (all) => all.map((one) => one.textContent));
  const [through, lent] = /([\d.]+ \wiB) of it through .+, ([\d.]+ \wiB) more likely for it/.exec(await page.textContent(".who .merged")).slice(1).map(bytesOf);
  assert.equal(through + lent, bytesOf(first), "with what it was lent, as the table says");
  await page.keyboard.press("v");
  assert.equal(await page.isVisible(".path"), false, "the flame graph again");
  await page.focus("canvas.flame");
  for (const key of ["ArrowDown", "ArrowDown", "ArrowDown"]) await page.keyboard.press(key);
  const chosen = (await heard()).split(",")[0];
  await page.keyboard.press("v");
  assert.equal(await middle(), chosen);
  await page.keyboard.press("ArrowUp");
  assert.match(await heard(), /, a caller, level 1.*(, \d+ above|, the outermost)$/);
  const caller = (await heard()).split(",")[0];
  await page.keyboard.press("ArrowDown");
  assert.match(await heard(), /, the frame in the middle, \d+ callers?, \d+ callees?$/);
  await page.keyboard.press("ArrowDown");
  assert.match(await heard(), /, a callee, level 1, /);
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Enter");
  assert.equal(await middle(), caller);
  await quiet();
  const hash = await page.evaluate(() => location.hash);
  const svg = await saved();
  for (const words of [/>↑ /, />↓ calls</, /the peak; callers and callees of /]) assert.match(svg, words);
  const words = await page.textContent(".who .merged");
  await page.keyboard.press("Escape");
  assert.equal(await page.$eval(".bar button:has-text('flame graph')", (button) => button.ariaPressed), "true");
  await page.keyboard.press("u");
  assert.equal(await middle(), caller);
  assert.deepEqual(seen.problems, []);
  for (const colorScheme of ["light", "dark"]) {
    const again = await open("lightning", { hash, colorScheme });
    assert.equal(await page.textContent(".who .merged"), words);
    assert.ok((await colours("canvas.flame")) > 3);
    clean(again.seen, address);
  }
  await open("lightning", { hash: hash.replace(/around=\d+/, "around=999999") });
  assert.equal(await page.isVisible(".path"), false, "a frame that the recording does not have");
});

test("the search leaves the same in the flame graph and in the table", async () => {
  const { seen, address } = await open("gpt", { hash: "#view=who&of=peak&table=line" });
  const whole = /^([\d.]+ \wiB) at the peak/.exec(await page.textContent(".who .merged"))[1];
  for (const query of [">16MiB", "line:workloads.py:39", "layer_norm"]) {
    await page.fill("header input[type=search]", query);
    const [, matching, of] = /^([\d.]+ \w+) of ([\d.]+ \wiB) at the peak match the search/.exec(await page.textContent(".who .merged"));
    assert.equal(of, whole);
    const cells = await page.$$eval(".who tbody td:first-child", (all) => all.map((one) => one.textContent));
    const total = cells.reduce((sum, cell) => sum + bytesOf(cell), 0);
    assert.ok(total > 0 && Math.abs(total - bytesOf(matching)) <= [matching, ...cells].reduce((sum, cell) => sum + roundedBy(cell), 0), `${query}: ${matching} is the sum of its lines`);
  }
  clean(seen, address);
});

test("in the address map, blocks and holes say what they are, and the heap goes event by event", async () => {
  const { seen, address } = await open("oom_fragmented", { hash: "#view=addresses" });
  await frame();
  const found = await page.evaluate(() => {
    const kinds = new Set();
    for (const selector of ["canvas.picture", "canvas.heap"]) {
      const canvas = document.querySelector(selector);
      const box = canvas.getBoundingClientRect();
      for (let i = 0; i < 400; i++) {
        const point = { clientX: box.left + box.width * (0.08 + 0.0023 * i), clientY: box.top + box.height * (0.1 + ((i * 7) % 20) * 0.04) };
        canvas.dispatchEvent(new PointerEvent("pointermove", { ...point, bubbles: true }));
        const facts = document.querySelector(".drawer .facts");
        if (facts.querySelector("table")) kinds.add(`${selector} ${/^A free block of/.test(facts.children[1].textContent) ? "hole" : "block"}`);
      }
    }
    return [...kinds].sort();
  });
  assert.deepEqual(found, ["canvas.heap block", "canvas.heap hole", "canvas.picture block", "canvas.picture hole"]);
  await page.mouse.move(2, 2);
  const before = await page.textContent(".stepper .event");
  await page.keyboard.press("ArrowLeft");
  assert.notEqual(await page.textContent(".stepper .event"), before);
  clean(seen, address);
});

test("the smallest window shows every button, and no word of the answer is cut", async () => {
  for (const width of [1024, 1280]) {
    await open("ranks", { viewport: { width, height: 640 } });
    await page.$$eval("header option, header h1", (all) => all.forEach((one) => (one.textContent = "a_run_with_a_long_name.rank00000.pickle.xz")));
    for (const key of ["1", "2", "3", "4", "5", "6"]) {
      await page.keyboard.press(key);
      const beyond = await page.$$eval("header > * > *, .toolbar > *, .bar > *", (all) => all.filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.outerHTML));
      assert.deepEqual(beyond, []);
      const cut = await page.$$eval(".merged, .stepper .event, .answer", (all) => all.filter((one) => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight + 2).map((one) => one.textContent));
      assert.deepEqual(cut, []);
    }
  }
});

test("a finding moves the picture to its place and marks its allocations", async () => {
  const { seen, address } = await open("leak_hook", { hash: "#view=memory" });
  await page.click("[data-finding=leak]");
  assert.match(await page.textContent(".found"), /^11 allocations marked, 22.00 MiB at the cursor$/, "exactly what the finding says");
  assert.equal(await page.getAttribute("[data-finding=leak]", "aria-expanded"), "true");
  await page.keyboard.press("Escape");
  assert.equal(await page.textContent(".found"), "");
  clean(seen, address);
});

test("a failed run opens at the failure", async () => {
  await open("oom_train");
  await page.waitForFunction(() => location.hash.includes("at=")).catch(() => undefined);
  assert.match(await page.textContent(".drawer"), /wanted/);
  assert.match(await page.textContent(".drawer .stack"), /lm_loss/);
});

test("the keyboard alone: from the search to an allocation, and the place in the address", async () => {
  const { seen, address } = await open("gpt");
  await page.keyboard.press("/");
  await page.keyboard.type("workloads.py:39");
  await page.keyboard.press("Enter");
  assert.match(await page.textContent(".found"), /allocations marked/);
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("ArrowUp");
  const size = await page.textContent(".drawer .size");
  assert.ok((await page.textContent(".heard")).startsWith(`${size}, workloads.py:`), "what is chosen is said");
  const line = await page.textContent(".drawer .user-line");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /allocation=\d+/.test(location.hash) && /search=/.test(location.hash));
  const hash = await page.evaluate(() => location.hash);
  clean(seen, address);
  const again = await open("gpt", { hash });
  assert.equal(await page.textContent(".drawer .size"), size);
  assert.equal(await page.textContent(".drawer .user-line"), line);
  assert.equal(await page.inputValue("input[type=search]"), "workloads.py:39");
  await page.keyboard.press("?");
  assert.ok(await page.isVisible("dialog.help"));
  await page.keyboard.press("Escape");
  assert.ok(!(await page.isVisible("dialog.help")));
  clean(again.seen, again.address);
});

test("an address that is about another recording, or made up, does no harm", async () => {
  for (const hash of ["#view=ranks&track=99&at=9007199254740991&allocation=9007199254740991&finding=77&x=1e9_2e9&y=1e15_2e15", "#view=who&search=%28%5B%3C%2Fscript%3E&at=-1"]) {
    const { seen, address } = await open("gpt", { hash });
    await frame();
    await page.evaluate(() => (location.hash = "#track=7&at=99999999&allocation=99999999&view=compare"));
    await frame();
    assert.equal(await page.textContent("nav [aria-current]"), "Memory");
    clean(seen, address);
  }
});

test("wheel and drag zoom and move", async () => {
  await open("gpt_varlen", { hash: "#axis=events&view=memory" });
  const window = async () => {
    await quiet();
    return /x=([\d.]+)_([\d.]+)/.exec(await page.evaluate(() => location.hash))?.slice(1).map(Number) ?? null;
  };
  const box = await page.locator("canvas.picture").boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  for (let i = 0; i < 6; i++) await page.mouse.wheel(0, -240);
  const near = await window();
  assert.ok(near, "zoomed in");
  await page.mouse.down();
  await page.mouse.move(box.x + box.width / 2 - 200, box.y + box.height / 2, { steps: 5 });
  await page.mouse.up();
  const moved = await window();
  assert.ok(moved[0] > near[0] && Math.abs(moved[1] - moved[0] - (near[1] - near[0])) < 1);
  await page.keyboard.press("0");
  assert.equal(await window(), null);
});

test("text from a hostile recording is text", async () => {
  const { seen, address } = await open("hostile");
  for (const key of ["1", "ArrowUp", "2", "3", "n"]) {
    await page.keyboard.press(key);
  }
  assert.equal(await page.$("img"), null);
  assert.match(await page.textContent("header h1"), /><img src=x onerror="alert\(1\)">/);
  assert.match(await page.textContent("body"), /<img src=x/);
  clean(seen, address);
});

test("even markup that got in could not run", async () => {
  const { seen } = await open("gpt");
  await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "window.ran = true";
    document.body.append(script);
    const image = document.createElement("img");
    image.setAttribute("onerror", "window.ran = true");
    image.src = "data:,";
    document.body.append(image);
  });
  await page.waitForTimeout(100);
  assert.equal(await page.evaluate(() => window.ran), undefined);
  const fetched = await page.evaluate(() => fetch("https://example.invalid/").then(() => true, () => false));
  assert.equal(fetched, false);
  assert.ok(seen.problems.some((problem) => problem.includes("Content Security Policy")));
});

/** What is shown, saved as an SVG; its text. */
async function saved() {
  await frame();
  const [svg] = await Promise.all([page.waitForEvent("download"), page.click("text=SVG")]);
  const text = readFileSync(await svg.path(), "utf8");
  const parsed = await page.evaluate((markup) => {
    const found = new DOMParser().parseFromString(markup, "image/svg+xml");
    return { error: found.querySelector("parsererror")?.textContent, shapes: found.querySelectorAll("path, rect, polygon").length, texts: found.querySelectorAll("text").length };
  }, text);
  assert.equal(parsed.error, undefined);
  assert.ok(parsed.shapes > 5 && parsed.texts > 3);
  return text;
}

test("what is shown can be saved", async () => {
  for (const [name, tabs] of [["gpt_annotated", "123"], ["desync", "156"]]) {
    const { seen, address } = await open(name);
    for (const tab of tabs) {
      await page.keyboard.press(tab);
      const svg = await saved();
      const [png] = name === "desync" ? [] : await Promise.all([page.waitForEvent("download"), page.click("text=PNG")]);
      if (png) assert.equal(readFileSync(await png.path()).subarray(1, 4).toString(), "PNG");
      if (name === "desync" && tab === "1") assert.match(svg, />collective<.*fill="#b3261e"/s);
    }
    assert.deepEqual(seen.problems, []);
    assert.deepEqual(seen.requests.filter((url) => !url.startsWith("blob:")).map((url) => url.split("#")[0]), [address]); // prettier-ignore
  }
});

test("many ranks, and two of them compared", async () => {
  const { seen, address } = await open("ranks");
  assert.equal(await page.textContent("nav [aria-current]"), "Ranks");
  assert.match(await page.textContent(".answer"), /peaks highest, at .+ lowest, at/);
  await page.click(".bar button:has-text('in order')");
  const box = await page.locator(".ranks canvas").boundingBox();
  await page.mouse.click(box.x + 400, box.y + 46 + 10);
  assert.equal(await page.textContent("nav [aria-current]"), "Memory", "a click on a strip opens it");
  assert.equal(await page.$eval("header select", (select) => select.selectedOptions[0].textContent), "fsdp2-rank0.vram"); // the second of rank 0
  await page.keyboard.press("5");
  assert.match(await page.textContent(".compare .answer"), /Both peak at the same|The second peaks/);
  assert.ok((await page.$$(".table tbody tr")).length > 3);
  await page.fill(".bar input[type=search]", "forward$");
  const rows = await page.$$eval(".table tbody .who", (all) => all.map((one) => one.textContent));
  assert.ok(rows.length > 0 && rows.every((row) => row.endsWith("forward")));
  clean(seen, address);
});

test("ranks of a job: what differs comes first, at the rank that differs", async () => {
  const { seen, address } = await open("job");
  assert.equal(await page.textContent("nav [aria-current]"), "Ranks", "also where there are two");
  assert.match(await page.textContent("aside .headline"), /^Rank 1 leaks/);
  assert.equal(await page.$eval("header select", (select) => select.selectedIndex), 1);
  await page.selectOption("header select", "0");
  await page.click("aside [data-finding=rank]");
  assert.equal(await page.$eval("header select", (select) => select.selectedIndex), 1);
  await page.keyboard.press("1");
  assert.equal(await page.$("aside [data-finding=rank]"), null, "one rank's picture has its own verdict");
  clean(seen, address);
});

test("tables sort and filter; modules are a tree", async () => {
  const { seen, address } = await open("lightning", { hash: "#view=who&table=module&of=peak" });
  await frame();
  const names = await page.$$eval(".table tbody .who", (all) => all.map((one) => one.textContent));
  assert.ok(names.length > 5);
  await page.click(".table thead button:has-text('allocations')");
  const counts = await page.$$eval(".table tbody td:nth-child(3)", (all) => all.map((one) => Number(one.textContent.replaceAll(",", ""))));
  assert.deepEqual(counts, [...counts].sort((a, b) => b - a));
  clean(seen, address);
});

test("replayed settings are drawn over the recorded ones: values, names, words, and where a program dies", async () => {
  const { lines, recorded, at, words } = expected("what_if");
  const { seen } = await open("what_if");
  assert.deepEqual(await page.$$eval(".what-if p", (all) => all.map((one) => one.textContent)), words);
  for (const axis of ["events", "time"]) {
    for (const [i, event] of at.entries()) {
      // By time, the page says which event a column shows; by events four of them fill the picture.
      const x = axis === "events" ? `&x=${event - 2}_${event + 2}` : "";
      await page.evaluate((hash) => (location.hash = hash), `view=memory&by=category&axis=${axis}&at=${event}${x}`);
      await page.waitForFunction((event) => document.querySelector(".legend .line .soft").title.endsWith("at the cursor") && new RegExp(`event ${event.toLocaleString("en")}\\b`).test(document.querySelector(".drawer .facts").textContent), event);
      const values = lines.map(({ after }) => after[i]);
      // The facts may be there a frame before the legend.
      const isShown = (wanted) => [...document.querySelectorAll(".legend .line .soft")].map((one) => one.textContent).join() === wanted;
      await page.waitForFunction(isShown, values.join()).catch(() => {});
      assert.deepEqual(await page.$$eval(".legend .line .soft", (all) => all.map((one) => one.textContent)), values);
      if (axis === "time") continue;
      const [left, top, width] = (await page.getAttribute("canvas.picture", "data-plot")).split(",").map(Number);
      const box = await page.locator("canvas.picture").boundingBox();
      const share = event + 2 > expected("what_if").events ? 2 + event + 2 - expected("what_if").events : 2;
      await page.mouse.move(box.x + left + ((share + 0.5) / 4) * width, box.y + top + 3);
      const rows = await page.$$eval(".tip .reserved > div", (all) => all.map((row) => [row.children[1].textContent, row.lastChild.textContent.trim()]));
      assert.deepEqual(rows, [[recorded[i], "reserved, as recorded"], ...lines.map(({ conf, after }) => [after[i], `with ${conf}`])]);
      assert.match(await page.textContent(".tip"), new RegExp(`after event ${event.toLocaleString("en")}$`));
    }
    await page.evaluate((hash) => (location.hash = hash), `view=memory&axis=${axis}&at=${at[0]}`);
    await frame();
    const [svg] = await Promise.all([page.waitForEvent("download"), page.click("text=SVG")]);
    const text = readFileSync(await svg.path(), "utf8");
    assert.match(text, />expandable_segments:True: peak 2.84 GiB to 3.09 GiB, may run out here</);
    assert.match(text, />max_split_size_mb:32: peak 2.91 GiB to 3.15 GiB, runs out here</);
    assert.match(text, />PyTorch&#39;s default: peak 2.92 GiB, runs out here</);
    assert.equal(text.match(/stroke="#b3261e" stroke-width="2.5"/g).length, 2 * lines.length, "a cross for each that dies");
  }
  // Before any of them dies nothing says that it does.
  await page.evaluate((hash) => (location.hash = hash), `view=memory&axis=events&x=0_500&at=100`);
  await frame();
  const [svg] = await Promise.all([page.waitForEvent("download"), page.click("text=SVG")]);
  const text = readFileSync(await svg.path(), "utf8");
  assert.match(text, />max_split_size_mb:32: peak 2.91 GiB to 3.15 GiB</);
  assert.ok(!/out here|stroke-width="2.5"/.test(text));
  assert.deepEqual(seen.problems, []);
});

test("light and dark", async () => {
  for (const colorScheme of ["light", "dark"]) {
    await open("gpt", { colorScheme });
    assert.equal(await page.getAttribute("html", "data-theme"), colorScheme);
    const [paper, ink] = await page.evaluate(() => [getComputedStyle(document.querySelector("aside")).backgroundColor, getComputedStyle(document.body).color]);
    const light = (colour) => /\d+/g.exec(colour) && colour.match(/\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3;
    assert.ok(Math.abs(light(paper) - light(ink)) > 150);
    await page.keyboard.press("l");
    assert.equal(await page.getAttribute("html", "data-theme"), colorScheme === "dark" ? "light" : "dark");
  }
});

test("the local page asks its own server alone", async () => {
  const server = spawn(PYTHON, ["-m", "vramlens", "view", join(root, "tests/data/recordings/gpt.pickle.xz"), "--no-browser"], {
    env: { ...process.env, ...(built && { PYTHONPATH: join(root, "src") }) },
    stdio: ["ignore", "pipe", "ignore"],
  });
  try {
    const url = await new Promise((found) => {
      let text = "";
      server.stdout.on("data", (data) => (text += data).includes("\n") && found(text.trim()));
    });
    const { seen } = await open("", { url });
    assert.match(await page.textContent("aside h2"), /Peak 1.84 GiB/);
    assert.deepEqual(seen.problems, []);
    assert.deepEqual(seen.requests.map((asked) => new URL(asked).origin + new URL(asked).pathname), [new URL(url).origin + "/", new URL(url).origin + "/data"]); // prettier-ignore
  } finally {
    server.kill();
  }
});

const hashHas = (pattern) => page.waitForFunction((text) => new RegExp(text).test(location.hash), pattern.source);

/** How many pixels of a canvas are redder than anything that is no alarm. */
const alarmed = (selector) =>
  page.$eval(selector, (canvas) => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i] - data[i + 1] > 60 && data[i] - data[i + 2] > 60) count++;
    return count;
  });

test("a page opens at the answer: holes among the addresses, a leak over the whole run", async () => {
  const { seen, address } = await open("oom_fragmented");
  assert.equal(await page.textContent("nav [aria-current]"), "Addresses");
  assert.equal(await page.textContent(".found"), "195 free blocks marked, 1.28 GiB");
  assert.ok((await alarmed("canvas.heap")) > 2000, "the holes are marked in the heap");
  assert.ok((await alarmed("canvas.picture")) > 1000, "and in the map, for as long as they are free");
  assert.match(await page.textContent(".pane.addresses .merged"), /64[56] blocks of 646 drawn, each one pixel high/);
  await page.keyboard.press("Escape");
  assert.equal(await alarmed("canvas.heap"), 0);
  clean(seen, address);
  const leak = await open("leak_hook");
  await hashHas(/by=leak/);
  assert.doesNotMatch(await page.evaluate(() => location.hash), /[&#]x=/, "the whole run");
  assert.match(await page.textContent(".legend"), /everything else.*kept from steps? /);
  assert.equal(await page.textContent(".found"), "11 allocations marked, 22.00 MiB at the cursor");
  clean(leak.seen, leak.address);
  const cache = await open("inference_kv");
  await hashHas(/axis=events/);
  assert.doesNotMatch(await page.evaluate(() => location.hash), /[&#]x=/, "all of a staircase");
  assert.match(await page.evaluate(() => location.hash), /[&#]y=/, "as high as it can be seen");
  assert.match(await page.textContent("aside"), /allocator's settings are the default/);
  clean(cache.seen, cache.address);
});

test("a step, a phase or any range tells what is born in it, freed in it and kept after it", async () => {
  const { seen, address } = await open("gpt", { hash: "#view=memory&axis=events" });
  const [left, top, width, height] = (await page.getAttribute("canvas.picture", "data-plot")).split(",").map(Number);
  const box = await page.locator("canvas.picture").boundingBox();
  const strip = (share, y) => [box.x + left + width * share, box.y + top + height + y];
  await page.mouse.move(...strip(0.5, 28));
  assert.match(await page.textContent(".tip"), /^Step \d+: .*events, [+−].*click/);
  await page.mouse.click(...strip(0.5, 28));
  await hashHas(/range=\d+_\d+/);
  assert.match(await page.textContent(".drawer .size"), /^Step \d+$/);
  assert.match(await page.textContent(".drawer .facts"), /born in it.*freed in it.*kept after it/s);
  const sums = await page.$$eval(".drawer .facts .figures .number", (all) => all.map((one) => one.textContent));
  for (const [i, column] of [2, 3, 1].entries()) {
    const cells = await page.$$eval(`.range-rows tbody td:nth-child(${column})`, (all) => all.map((one) => one.textContent));
    const total = cells.reduce((sum, cell) => sum + bytesOf(cell), 0);
    const slack = [sums[i], ...cells].reduce((sum, cell) => sum + roundedBy(cell), 0);
    assert.ok(Math.abs(total - bytesOf(sums[i])) <= slack, `${sums[i]} is the sum of its lines`);
  }
  await page.click(".range-rows button:has-text('module')");
  assert.ok((await page.$$(".range-rows tbody tr")).length > 0);
  await page.keyboard.press("z");
  await hashHas(/[&#]x=/);
  await page.keyboard.press("0");
  await page.mouse.click(...strip(0.5, 43));
  assert.match(await page.textContent(".drawer .facts"), /^Events/, "a stretch of one phase");
  await page.keyboard.down("Shift");
  await page.mouse.move(...strip(0.2, -40));
  await page.mouse.down();
  await page.mouse.move(...strip(0.3, -40), { steps: 3 });
  await page.mouse.up();
  await page.keyboard.up("Shift");
  const [first, last] = /range=(\d+)_(\d+)/.exec((await quiet(), await page.evaluate(() => location.hash))).slice(1).map(Number);
  assert.ok(last - first > 300);
  await page.keyboard.press("Escape");
  assert.doesNotMatch(await page.textContent(".drawer"), /born in it/);
  clean(seen, address);
});

test("the list shows every allocation, and those that a query matches", async () => {
  const { seen, address } = await open("gpt", { hash: "#view=list" });
  assert.match(await page.textContent(".list .answer"), /^2,490 allocations/);
  assert.ok((await page.$$(".list-row")).length < 80, "only what is seen is in the page");
  await page.click(".list-head button:has-text('bytes')");
  const sizes = await page.$$eval(".list-row .bytes", (all) => all.map((one) => one.textContent));
  assert.deepEqual(sizes.map(bytesOf), sizes.map(bytesOf).sort((a, b) => b - a));
  await page.keyboard.press("/");
  await page.keyboard.type(">100MiB step:1");
  await page.keyboard.press("Enter");
  const count = Number(/^(\d+) of 2,490/.exec(await page.textContent(".list .answer"))[1]);
  assert.equal((await page.$$(".list-row")).length, count);
  for (const step of await page.$$eval(".list-row .step", (all) => all.map((one) => one.textContent))) assert.equal(step, "1");
  await page.keyboard.press("]");
  const chosen = await page.textContent(".list-row.chosen .address");
  assert.match(await page.textContent(".drawer .facts"), new RegExp(chosen));
  await page.keyboard.press("]");
  assert.notEqual(await page.textContent(".list-row.chosen .address"), chosen);
  await page.keyboard.press("[");
  await page.click(".drawer button:has-text('in the picture')");
  await hashHas(/view=memory/);
  assert.match(await page.textContent(".drawer .facts"), new RegExp(chosen));
  await page.click(".drawer button:has-text('among addresses')");
  assert.match(await page.textContent(".drawer .facts"), new RegExp(chosen));
  clean(seen, address);
});

test("the legend marks a group, a double click shows it alone; every change can be undone, and Back works", async () => {
  const { seen, address } = await open("gpt", { hash: "#view=memory&by=category" });
  const entry = ".legend .entry:nth-child(2)";
  await page.click(entry);
  await hashHas(/group=1/);
  assert.match(await page.textContent(".found"), /allocations marked/);
  await page.click(entry);
  await quiet();
  await page.dblclick(entry);
  await hashHas(/only=1/);
  await frame();
  const [, , , , , high] = (await page.getAttribute("canvas.picture", "data-plot")).split(",").map(Number);
  assert.ok(high < 2 ** 30, "its own scale");
  await page.keyboard.press("u");
  await page.waitForFunction(() => !/only=/.test(location.hash));
  await page.keyboard.press("w");
  await hashHas(/[&#]x=/);
  await page.keyboard.press("Control+z");
  await page.waitForFunction(() => !/[&#]x=/.test(location.hash));
  await page.keyboard.press("2");
  await hashHas(/view=addresses/);
  await page.keyboard.press("3");
  await hashHas(/view=who/);
  await page.goBack();
  await hashHas(/view=addresses/);
  await page.waitForFunction(() => document.querySelector("nav [aria-current]")?.textContent === "Addresses");
  await page.keyboard.press("1");
  await hashHas(/view=memory/);
  await page.click(".holders .link >> nth=0");
  await hashHas(/search=line/);
  assert.match(await page.textContent(".found"), /^[1-9].* allocations marked/);
  clean(seen, address);
});

test("the link is the state: another page that is opened with it shows the same", async () => {
  const hash = "#view=addresses&by=pool&axis=events&x=1000.0_3000.0&addresses=100000000_900000000&at=2000&allocation=900&range=1500_1800&search=line%3Aworkloads.py";
  for (const state of [hash, "#view=who&by=category&axis=time&at=2000&table=module&of=cursor&frames=all&zoom=n&sort=-share", "#view=memory&by=line&axis=events&at=2000&only=2&lines=ac&range=100_900"]) {
    const { seen, address } = await open("gpt", { hash: state });
    await frame();
    const text = await page.textContent(".right");
    await page.keyboard.press("l");
    await quiet();
    const written = await page.evaluate(() => location.hash);
    for (const part of state.slice(1).split("&")) assert.ok(written.includes(part), `${part} in ${written}`);
    clean(seen, address);
    await open("gpt", { hash: written });
    await frame();
    assert.equal(await page.textContent(".right"), text);
  }
});

test("stacks fold what only passes calls on, and are copied whole; a line of code stands below the user's", async () => {
  const { seen, address } = await open("lightning", { hash: "#view=memory&by=code" });
  await page.keyboard.press("ArrowUp");
  for (let i = 0; i < 40 && !(await page.$(".drawer .folded")); i++) {
    await page.keyboard.press("ArrowUp");
  }
  const frames = await page.$$eval(".drawer .frames li", (all) => all.length);
  assert.doesNotMatch(await page.textContent(".drawer .frames"), /site-packages/);
  await page.click(".drawer .folded button");
  assert.ok((await page.$$eval(".drawer .frames li", (all) => all.length)) > frames);
  assert.ok(await page.isVisible(".drawer .copy:has-text('copy stack')"));
  clean(seen, address);
});

test("a saved picture stands for itself: whose it is, the verdict, the range and the legend", async () => {
  const { seen } = await open("gpt", { hash: "#view=memory&axis=events&x=1000_2000&by=category" });
  const svg = await saved();
  for (const words of [/>gpt\.pickle\.xz/, />Peak 1\.84 GiB/, />events 1,000 to 2,000 of 7,545</, />activations</]) assert.match(svg, words);
  assert.deepEqual(seen.problems, []);
});

test("two recordings are compared step by step, in the words of diff", async () => {
  const { seen, address } = await open("pair");
  assert.equal(await page.textContent("nav [aria-current]"), "Compare");
  const { headline } = expected("pair");
  assert.ok((await page.textContent(".compare .answer")).startsWith(headline), headline);
  const box = await page.locator(".compare canvas").boundingBox();
  await page.mouse.move(box.x + 500, box.y + 60);
  assert.match(await page.textContent(".compare .tip"), /reserved.*reserved.*(step \d+|before the first step): /);
  await page.mouse.wheel(0, -300);
  await hashHas(/both=/);
  await page.keyboard.press("0");
  await page.click(".bar button:has-text('from the start')");
  await hashHas(/align=start/);
  assert.ok((await page.$$(".table tbody tr")).length > 0);
  clean(seen, address);
});

test("a phone and a small laptop: nothing beyond the edge, and the keys are told", async () => {
  for (const viewport of [{ width: 390, height: 780 }, { width: 1024, height: 640 }]) {
    const { seen, address } = await open("gpt", { viewport, hash: "#view=memory" });
    for (const key of ["1", "2", "3", "4"]) {
      await page.keyboard.press(key);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `view ${key} at ${viewport.width}`);
    }
    const cut = await page.$$eval("header h1, header .told", (all) => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent));
    assert.deepEqual(cut, [], `the header at ${viewport.width}`);
    const [head, line] = await page.$$eval(".list-head :nth-child(2), .list-row:first-child .line", (all) => all.map((one) => one.getBoundingClientRect().toJSON()));
    assert.ok(line.width >= 170 && line.right <= viewport.width, `the line of an allocation is read at ${viewport.width}`);
    assert.equal(head.left, line.left, "a heading stands over its column");
    await page.keyboard.press("?");
    assert.match(await page.textContent("dialog"), /Shift \+ drag.*>64MiB/s);
    const dialog = await page.locator("dialog").boundingBox();
    assert.ok(dialog.x >= 0 && dialog.x + dialog.width <= viewport.width);
    const close = await page.locator("dialog button").boundingBox();
    assert.ok(close.y >= 0 && close.y + close.height <= viewport.height, "it closes without scrolling");
    await page.keyboard.press("Escape");
    clean(seen, address);
  }
  const { seen, address } = await open("ranks", { viewport: { width: 390, height: 780 }, hash: "#view=ranks" });
  assert.ok(await page.$eval("header nav", (nav) => nav.scrollWidth <= nav.clientWidth), "every tab is there");
  clean(seen, address);
});

test("the edges between the parts move, and stay where they were", async () => {
  await open("gpt");
  const width = () => page.$eval("aside", (aside) => aside.getBoundingClientRect().width);
  const before = await width();
  await page.focus(".splitter.vertical");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  assert.equal(await width(), before + 48);
  await open("gpt");
  assert.equal(await width(), before + 48);
  await page.dblclick(".splitter.vertical");
  assert.equal(await width(), before);
});

test("no view breaks a rule of accessibility that can be checked, in the light and in the dark", async () => {
  const axe = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
  for (const [name, tabs, colorScheme] of [["gpt", "1234", "light"], ["gpt", "1234", "dark"], ["ranks", "56", "light"]]) {
    await open(name, { colorScheme, hash: "#view=memory&finding=0" });
    await page.evaluate(`${axe};undefined`);
    for (const tab of tabs) {
      await page.keyboard.press(tab);
      const broken = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.html.slice(0, 160)} ${node.any[0]?.message ?? ""}`).join(" | ")}`)));
      assert.deepEqual(broken, [], `${name}, view ${tab}, ${colorScheme}`);
    }
  }
});
