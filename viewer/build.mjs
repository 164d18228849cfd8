// Builds the bundles that the Python package ships: the script and the style of a page, and the script of a page that opens files. `--check` compares instead of writing.
import { build } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const target = new URL("../src/vramlens/view/static/", import.meta.url);
const check = process.argv.includes("--check");
const result = await build({
  entryPoints: {
    viewer: fileURLToPath(new URL("src/main.ts", import.meta.url)),
    open: fileURLToPath(new URL("src/open.ts", import.meta.url)),
  },
  outdir: fileURLToPath(target),
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii", // the page's hash is of these very bytes
  legalComments: "none",
  write: false,
});
const licenses = await readFile(new URL("licenses.txt", import.meta.url), "utf8");
let differs = 0;
for (const file of result.outputFiles) {
  const name = file.path.split(/[/\\]/).pop();
  const text = name === "open.js" ? `/*\n${licenses}*/\n${file.text}` : file.text;
  const place = new URL(name, target);
  // Inside a page, nothing may end the element that the text stands in.
  if (/<\/(script|style)|<!--/i.test(text))
    throw new Error(`${name} holds an end tag or a comment of HTML`);
  if (check) {
    const there = await readFile(place, "utf8").catch(() => "");
    if (there !== text) {
      differs += 1;
      console.error(
        `${name} is not what its sources say: run "npm run build" in viewer/ and commit the result`,
      );
    }
  } else {
    await writeFile(place, text);
  }
  console.log(`${name}: ${text.length.toLocaleString("en")} bytes`);
}
process.exit(differs ? 1 : 0);
