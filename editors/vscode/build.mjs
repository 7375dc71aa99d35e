// Bundles the extension into dist/extension.js; `--watch` rebuilds after every change.
import { build, context } from 'esbuild'

const options = {
  entryPoints: ['src/extension.ts'],
  outfile: 'dist/extension.js',
  bundle: true,
  platform: 'node',
  format: 'cjs',
  target: 'node22',
  external: ['vscode'],
  minify: !process.argv.includes('--watch'),
  legalComments: 'none',
  logLevel: 'warning',
}

if (process.argv.includes('--watch')) await (await context(options)).watch()
else await build(options)
