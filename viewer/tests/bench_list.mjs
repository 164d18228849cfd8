// Times the list of allocations in a headless browser without a GPU: from a query's last letter, or a click on a
// column's head, to the list that answers it; on the clock, and in the main thread's own time.
//
//     node viewer/tests/bench_list.mjs PAGE [ROUNDS]
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [target, rounds = "3"] = process.argv.slice(2);
const QUERIES = [">64MiB", ">1MiB <4MiB", "step:3", "step:2-5 >1MiB", "line:py", "alive", "unfreed", "forward", "back.*ward", "optim", "zzz", ""];
const browser = await chromium.launch({
  executablePath: process.env.VRAMLENS_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu"],
});
const page = await browser.newPage({ viewport: { width: 1366, height: 768 } });
const session = await page.context().newCDPSession(page);
await session.send("Performance.enable", { timeDomain: "threadTicks" });
const spent = async () => (await session.send("Performance.getMetrics")).metrics.find((one) => one.name === "TaskDuration").value * 1000;
await page.goto(`${pathToFileURL(target).href}#view=list`);
await page.waitForSelector("html[data-ready]", { timeout: 240_000, state: "attached" });
await page.waitForSelector(".list .list-inner > *", { state: "attached" });

/** Does something in the page, and waits for the frame that shows what came of it. */
const timed = async (act, given) => {
  const before = await spent();
  const clock = await page.evaluate(
    async ({ act, given }) => {
      await new Promise(requestAnimationFrame);
      const began = performance.now();
      if (act === "query") {
        const search = document.querySelector("header input[type=search]");
        search.value = given;
        search.dispatchEvent(new InputEvent("input", { bubbles: true }));
      } else document.querySelectorAll(".list .list-head button")[given].click();
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      if (given === "zzz" && !document.querySelector(".list .answer").textContent.startsWith("0 of"))
        throw new Error("the list was not there yet");
      return performance.now() - began;
    },
    { act, given },
  );
  return { clock, own: (await spent()) - before };
};
const columns = await page.$$eval(".list .list-head button", (all) => all.length);
const answers = { query: [], sort: [] };
for (let round = 0; round < Number(rounds); round++) {
  for (const query of QUERIES) answers.query.push(await timed("query", query));
  for (let column = 0; column < columns; column++) answers.sort.push(await timed("sort", column));
}
const at = (times, share) => Number(times.sort((a, b) => a - b)[Math.min(times.length - 1, Math.floor(times.length * share))].toFixed(1));
for (const [what, times] of Object.entries(answers)) {
  const clock = times.map((one) => one.clock);
  const own = times.map((one) => one.own);
  console.log(JSON.stringify({ what, answers: times.length, p50_ms: at(clock, 0.5), p95_ms: at(clock, 0.95), most_ms: at(clock, 1), cpu_p50_ms: at(own, 0.5), cpu_p95_ms: at(own, 0.95) }));
}
await browser.close();
