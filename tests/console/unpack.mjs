// Unpacks the Chromium of @sparticuz/chromium, its libraries and its font into the folder that is given.
import { createReadStream, createWriteStream, mkdirSync } from "node:fs";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";
import { extract } from "tar-fs";

const packed = join(import.meta.dirname, "node_modules/@sparticuz/chromium/bin");
const target = process.argv[2];
const inflate = (name, sink) =>
  pipeline(createReadStream(join(packed, name)), createBrotliDecompress(), sink);

mkdirSync(target, { recursive: true });
await Promise.all([
  inflate("chromium.br", createWriteStream(join(target, "chromium"), { mode: 0o755 })),
  inflate("al2023.tar.br", extract(target)),
  inflate("fonts.tar.br", extract(target)),
]);
