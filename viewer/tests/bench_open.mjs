// Times the page that opens files: from letting go of a file to its first picture, in a headless browser without a GPU.
//
//     node viewer/tests/bench_open.mjs OPEN_PAGE RECORDING [ROUNDS]
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [target, recording, rounds = "5"] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.VRAMLENS_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"],
});
const times = [];
const own = [];
/** How long the page stood still at the longest. */
const still = [];
let heap = 0;
for (let round = 0; round < Number(rounds); round++) {
  const page = await browser.newPage({ viewport: { width: 1366, height: 768 } });
  await page.goto(pathToFileURL(target).href);
  await page.waitForSelector("html[data-waiting]");
  // The clock starts in the page: handing the file over is the driver's time, not the page's.
  await page.evaluate(() => {
    window.longest = 0;
    const watch = (last) => requestAnimationFrame((now) => {
      window.longest = Math.max(window.longest, now - last);
      watch(now);
    });
    window.addEventListener("change", () => watch((window.began = performance.now())), { capture: true, once: true });
  });
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const spent = async () => (await session.send("Performance.getMetrics")).metrics.find((one) => one.name === "TaskDuration").value * 1000;
  const before = await spent();
  await page.setInputFiles("input[type=file]", recording);
  await page.waitForSelector("html[data-ready]", { timeout: 240_000 });
  times.push(
    await page.evaluate(
      () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - window.began)))),
    ),
  );
  own.push((await spent()) - before);
  still.push(await page.evaluate(() => window.longest));
  heap = await page.evaluate(() => performance.memory.usedJSHeapSize);
  if (round + 1 < Number(rounds)) await page.close();
}
// The most that any of the browser's pages has had in memory, the reader's own included.
const session = await browser.newBrowserCDPSession();
const { processInfo } = await session.send("SystemInfo.getProcessInfo");
const highest = processInfo.filter(({ type }) => type === "renderer").map(({ id }) => Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${id}/status`, "utf8"))[1]));
for (const all of [times, own]) all.sort((a, b) => a - b);
console.log(JSON.stringify({ first_picture_ms: times.map(Math.round), median_ms: Math.round(times[times.length >> 1]), own_thread_ms: own.map(Math.round), longest_still_ms: still.map(Math.round), js_heap_mb: Math.round(heap / 1e6), most_memory_mb: Math.round((Math.max(...highest) * 1024) / 1e6) }));
await browser.close();
