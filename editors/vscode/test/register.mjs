// Resolves the editor's module to the fake one, so that the extension's sources run under node.
import { registerHooks } from 'node:module'

const fake = new URL('./fakes/vscode.ts', import.meta.url).href

registerHooks({
  resolve: (specifier, context, next) =>
    specifier === 'vscode' ? { url: fake, format: 'module-typescript', shortCircuit: true } : next(specifier, context),
})
