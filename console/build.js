// Builds the console into src/toolgate/console/static: one script, one style sheet, and the page that names both.
// The output depends on the sources and the lock file alone, so that a test can rebuild it and compare.
import { createHash } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const target = process.argv[2] ?? here("../src/toolgate/console/static");
const versionOf = (content) => createHash("sha256").update(content).digest("hex").slice(0, 16);

const { outputFiles } = await build({
  absWorkingDir: here("."),
  entryPoints: { app: "src/main.js" },
  outdir: target,
  bundle: true,
  charset: "utf8",
  format: "iife",
  legalComments: "none",
  minify: true,
  target: ["chrome110", "firefox115", "safari16.4"],
  write: false,
});

let page = await readFile(here("src/index.html"), "utf8");
await mkdir(target, { recursive: true });
for (const { path, contents } of outputFiles) {
  const name = path.split("/").at(-1);
  page = page.replace(`"${name}"`, `"${name}?v=${versionOf(contents)}"`);
  await writeFile(path, contents);
}
await writeFile(`${target}/index.html`, page);
