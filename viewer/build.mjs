// Builds the bundle that the Python package ships: one script, one style sheet. `--check` compares instead of writing.
import { build } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const target = new URL("../src/vramlens/view/static/", import.meta.url);
const check = process.argv.includes("--check");
const result = await build({
  entryPoints: { viewer: fileURLToPath(new URL("src/main.ts", import.meta.url)) },
  outdir: fileURLToPath(target),
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii", // the page's hash is of these very bytes
  legalComments: "none",
  write: false,
});
let differs = 0;
for (const file of result.outputFiles) {
  const name = file.path.split(/[/\\]/).pop();
  const place = new URL(name, target);
  // Inside a page, nothing may end the element that the text stands in.
  if (/<\/(script|style)|<!--/i.test(file.text)) throw new Error(`${name} holds an end tag or a comment of HTML`);
  if (check) {
    const there = await readFile(place, "utf8").catch(() => "");
    if (there !== file.text) {
      differs += 1;
      console.error(`${name} is not what its sources say: run "npm run build" in viewer/ and commit the result`);
    }
  } else {
    await writeFile(place, file.text);
  }
  console.log(`${name}: ${file.contents.length.toLocaleString("en")} bytes`);
}
process.exit(differs ? 1 : 0);
