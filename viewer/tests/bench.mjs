// Times pages in a headless browser without a GPU: the first picture; of ours also frames while panning and zooming,
// on the clock and in the main thread's own time, and hovering.
//
//     node viewer/tests/bench.mjs ours PAGE_OR_URL
//     node viewer/tests/bench.mjs trace_plot PAGE FOLDER    FOLDER: MemoryViz.js, and the modules that it imports
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [kind, target, modules] = process.argv.slice(2);
const url = target.startsWith("http") ? target : pathToFileURL(target).href;
const browser = await chromium.launch({
  executablePath: process.env.VRAMLENS_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu"],
});
const page = await browser.newPage({ viewport: { width: 1366, height: 768 } });
if (modules) {
  // The page's scripts come from two content networks; here they come from files.
  await page.route(/^https:/, (route) => {
    const { pathname } = new URL(route.request().url());
    const name = /\/(d3(?:-[a-z]+)?)@/.exec(pathname)?.[1] ?? pathname.split("/").pop();
    const body = readFileSync(join(modules, name.endsWith(".js") ? name : `${name}.js`));
    return route.fulfill({ body, contentType: "text/javascript", headers: { "access-control-allow-origin": "*" } });
  });
}
const shown = kind === "ours" ? "html[data-ready]" : "svg polygon";
const session = await page.context().newCDPSession(page);
await session.send("Performance.enable", { timeDomain: "threadTicks" });
const spent = async () => (await session.send("Performance.getMetrics")).metrics.find((one) => one.name === "TaskDuration").value * 1000;
const started = performance.now();
await page.goto(url, { waitUntil: "commit" });
await page.waitForSelector(shown, { timeout: 240_000, state: "attached" });
await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
const first = performance.now() - started;
const firstOwn = await spent();

if (kind !== "ours") {
  const heap = await page.evaluate(() => performance.memory?.usedJSHeapSize ?? null);
  console.log(JSON.stringify({ first_picture_ms: Math.round(first), js_heap_mb: heap && Math.round(heap / 1e6) }));
  await browser.close();
  process.exit(0);
}
const frames = await page.evaluate(
  async ({ selector, steps }) => {
    const found = [...document.querySelectorAll(selector)].filter((one) => one.getBoundingClientRect().width > 200)[0];
    const box = found.getBoundingClientRect();
    const point = { clientX: box.left + box.width * 0.6, clientY: box.top + box.height * 0.6, bubbles: true, cancelable: true };
    const times = [];
    let last = await new Promise(requestAnimationFrame);
    for (let i = 0; i < steps; i++) {
      // In, across, out again: the ways that a hand takes.
      const turn = i % 30;
      const wheel = turn < 12 ? { deltaY: -120 } : turn < 18 ? { deltaX: 90 } : { deltaY: 120 };
      found.dispatchEvent(new WheelEvent("wheel", { ...point, ...wheel }));
      const now = await new Promise(requestAnimationFrame);
      times.push(now - last);
      last = now;
    }
    return times.sort((a, b) => a - b);
  },
  { selector: "canvas.picture", steps: 150 },
);
// The same again, frame by frame, in the main thread's own time: what a machine that others use would take when idle.
const own = [];
for (let i = 0; i < 60; i++) {
  const before = await spent();
  await page.evaluate(
    async ({ selector, turn }) => {
      const found = [...document.querySelectorAll(selector)].filter((one) => one.getBoundingClientRect().width > 200)[0];
      const box = found.getBoundingClientRect();
      const wheel = turn < 12 ? { deltaY: -120 } : turn < 18 ? { deltaX: 90 } : { deltaY: 120 };
      const point = { clientX: box.left + box.width * 0.6, clientY: box.top + box.height * 0.6, bubbles: true, cancelable: true };
      found.dispatchEvent(new WheelEvent("wheel", { ...point, ...wheel }));
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    },
    { selector: "canvas.picture", turn: i % 30 },
  );
  own.push((await spent()) - before);
}
own.sort((a, b) => a - b);
const hover = await page.evaluate(async () => {
  const canvas = document.querySelector("canvas.picture");
  const box = canvas.getBoundingClientRect();
  const times = [];
  for (let i = 0; i < 200; i++) {
    const point = { clientX: box.left + 80 + ((i * 37) % (box.width - 110)), clientY: box.top + 60 + ((i * 53) % (box.height - 120)), bubbles: true };
    const start = performance.now();
    canvas.dispatchEvent(new PointerEvent("pointermove", point));
    void document.body.offsetHeight; // the answer is laid out, too
    times.push(performance.now() - start);
    if (i % 20 === 0) await new Promise(requestAnimationFrame);
  }
  return times.sort((a, b) => a - b);
});
const at = (times, share) => times && Number(times[Math.min(times.length - 1, Math.floor(times.length * share))].toFixed(1));
const heap = await page.evaluate(() => performance.memory?.usedJSHeapSize ?? null);
// The most that the tab has had in memory.
const { processInfo } = await (await browser.newBrowserCDPSession()).send("SystemInfo.getProcessInfo");
const tabs = processInfo.filter(({ type }) => type === "renderer").map(({ id }) => Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${id}/status`, "utf8"))[1]));
console.log(JSON.stringify({ first_picture_ms: Math.round(first), first_picture_cpu_ms: Math.round(firstOwn), frame_p50_ms: at(frames, 0.5), frame_p95_ms: at(frames, 0.95), frame_cpu_p50_ms: at(own, 0.5), frame_cpu_p95_ms: at(own, 0.95), hover_p50_ms: at(hover, 0.5), hover_p95_ms: at(hover, 0.95), js_heap_mb: heap && Math.round(heap / 1e6), most_memory_mb: Math.round((Math.max(...tabs) * 1024) / 1e6) }));
await browser.close();
