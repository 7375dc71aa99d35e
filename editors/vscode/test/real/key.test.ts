/** The extension's code against a real gateway that is joined by a key, as one on another machine is. */

import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { resolveEndpoint } from '../../src/endpoint.ts'
import { GatewayClient } from '../../src/gateway/client.ts'
import { KeyStore } from '../../src/keys.ts'
import { Settings } from '../../src/settings.ts'
import { editor } from '../fakes/vscode.ts'
import { ScriptedGateway } from '../scripted_gateway.ts'
import { scriptedModel, Stage } from '../stage.ts'

const url = process.env['TOOLGATE_TEST_URL'] ?? ''
const right = process.env['TOOLGATE_TEST_KEY'] ?? ''

function dial(context: TestContext, key: string | undefined): Stage {
  editor.reset()
  editor.userSettings = { 'toolgate.url': url, 'toolgate.authentication': 'key', 'toolgate.lending.models': true }
  editor.models = [scriptedModel()]
  const keys = new KeyStore({ get: async () => key, store: async () => undefined, delete: async () => undefined })
  const made = new Stage(new ScriptedGateway(), { endpoint: () => resolveEndpoint(new Settings(), keys) })
  context.after(() => made.bridge.dispose())
  made.bridge.applyLending()
  return made
}

test('an editor with the right key joins, lends and lists the models', async (context) => {
  const made = dial(context, right)
  const connected = made.until('connected')
  made.bridge.connection.start()
  await connected
  const access = { baseUrl: () => url, key: async () => right, proven: () => true, windowId: () => made.bridge.window.id }
  const client = new GatewayClient(access, '0.0.0')
  assert.ok((await client.models()).some(({ id }) => id === 'echo'))
  const headers = { authorization: `Bearer ${right}` }
  for (;;) {
    const listed = await (await fetch(`${url}/v1/models`, { headers })).text()
    if (listed.includes('vscode/copilot/gpt-4o')) break
  }
})

for (const [name, key, problem] of [
  ['a wrong key', 'tg-wrong', /refused the key|asks for a key/],
  ['no key', undefined, /needs a key/],
] as const)
  test(`an editor with ${name} is told what is missing`, async (context) => {
    const made = dial(context, key)
    const waiting = made.until('waiting')
    made.bridge.connection.start()
    const state = await waiting
    assert.match(state.kind === 'waiting' ? state.problem : '', problem)
  })
