/** What package.json declares: settings, commands and the pieces of the views agree with the sources. */

import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { claudeCode, codex, continueDev, curl } from '../src/clients.ts'
import { SETTING_DEFAULTS } from '../src/settings.ts'

interface Manifest {
  activationEvents: string[]
  engines: { vscode: string }
  dependencies?: object
  enabledApiProposals?: string[]
  contributes: {
    configuration: { properties: Record<string, { scope: string; default: unknown; description?: string; markdownDescription?: string }> }
    commands: { command: string; title: string }[]
    menus: Record<string, { command: string; when?: string }[]>
    walkthroughs: { steps: { description: string; media: { markdown: string } }[] }[]
  }
}

const root = new URL('../', import.meta.url)
const manifest = JSON.parse(await readFile(new URL('package.json', root), 'utf8')) as Manifest

test('every setting is the person\'s own, described, and has the default of the sources', () => {
  const { properties } = manifest.contributes.configuration
  assert.deepEqual(Object.keys(properties).sort(), Object.keys(SETTING_DEFAULTS).map((name) => `toolgate.${name}`).sort())
  for (const [name, setting] of Object.entries(properties)) {
    assert.equal(setting.scope, 'application', name)
    assert.ok((setting.description ?? setting.markdownDescription ?? '').length > 20, name)
    assert.deepEqual(setting.default, SETTING_DEFAULTS[name.slice('toolgate.'.length) as keyof typeof SETTING_DEFAULTS], name)
  }
})

test('lending is off by default', () => {
  assert.equal(SETTING_DEFAULTS['lending.models'], false)
  assert.equal(SETTING_DEFAULTS['lending.tools'], false)
})

test('every declared command is implemented, and every other way around', async () => {
  const source = await readFile(new URL('src/commands.ts', root), 'utf8')
  const implemented = new Set([...source.matchAll(/^ {4}(\w+): (?:async )?\(/gm)].map(([, name]) => `toolgate.${name ?? ''}`))
  assert.deepEqual(manifest.contributes.commands.map(({ command }) => command).sort(), [...implemented].sort())
})

test('menus and walkthrough name commands and files that exist', async () => {
  const commands = new Set(manifest.contributes.commands.map(({ command }) => command))
  for (const { command } of Object.values(manifest.contributes.menus).flat()) assert.ok(commands.has(command), command)
  for (const { steps } of manifest.contributes.walkthroughs)
    for (const step of steps) {
      await readFile(new URL(step.media.markdown, root))
      for (const [, command] of step.description.matchAll(/command:(toolgate\.\w+)\)/g)) assert.ok(commands.has(command ?? ''), command)
    }
})

test('the extension has no run-time dependencies and uses no proposed API', () => {
  assert.equal(manifest.dependencies, undefined)
  assert.equal(manifest.enabledApiProposals, undefined)
  assert.equal(manifest.engines.vscode, '^1.106.0')
})

test('the settings for other clients are what these clients read', () => {
  const [base, model] = ['http://127.0.0.1:8080', 'vscode/copilot/gpt-4o']
  const { env } = JSON.parse(claudeCode(base, model, undefined).text) as { env: Record<string, string> }
  assert.deepEqual([env['ANTHROPIC_BASE_URL'], env['ANTHROPIC_MODEL'], env['ANTHROPIC_DEFAULT_HAIKU_MODEL']], [base, model, model])
  assert.equal(codex(base, model, undefined).text.includes('env_key'), false)
  assert.match(codex(base, model, 'tg-secret').text, /^env_key = "TOOLGATE_KEY"$/m)
  assert.match(codex(base, model, undefined).terminal?.command ?? '', /-c 'model="vscode\/copilot\/gpt-4o"'/)
  assert.match(continueDev(base, model, undefined).text, /apiBase: http:\/\/127\.0\.0\.1:8080\/v1\n {4}apiKey: unused\n/)
  assert.match(continueDev(base, model, 'tg-secret').text, /apiKey: YOUR_KEY\n/)
  assert.match(curl(base, model, undefined).text, /^curl http:\/\/127\.0\.0\.1:8080\/v1\/chat\/completions -H "content-type: application\/json" -d '\{/)
  assert.match(curl(base, model, 'tg-secret').text, /Bearer \$TOOLGATE_KEY"/)
})

test('the settings for other clients name the gateway and the model, and no key', () => {
  const model = "it's odd"
  const claude = claudeCode('http://127.0.0.1:8080', model, 'tg-secret')
  assert.equal(claude.terminal?.env['ANTHROPIC_AUTH_TOKEN'], 'tg-secret')
  assert.match(codex('http://127.0.0.1:8080', model, 'tg-secret').terminal?.command ?? '', /-c 'model="it'\\''s odd"'/)
  for (const setup of [claude, codex('http://127.0.0.1:8080', model, 'tg-secret'), continueDev('http://127.0.0.1:8080', model, 'tg-secret'), curl('http://127.0.0.1:8080', model, 'tg-secret')]) {
    assert.ok(setup.text.includes('127.0.0.1:8080'), setup.name)
    assert.ok(!setup.text.includes('tg-secret'), setup.name)
    assert.ok(!(setup.terminal?.command ?? '').includes('tg-secret'), setup.name)
  }
})
