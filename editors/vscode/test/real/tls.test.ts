/** The extension's code against a real gateway behind a proxy that ends TLS, as one on another machine is. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { resolveEndpoint } from '../../src/endpoint.ts'
import { KeyStore } from '../../src/keys.ts'
import { Settings } from '../../src/settings.ts'
import { editor } from '../fakes/vscode.ts'
import { ScriptedGateway } from '../scripted_gateway.ts'
import { scriptedModel, Stage } from '../stage.ts'

const env = (name: string): string => process.env[`TOOLGATE_TEST_${name}`] ?? ''

test('an editor joins over wss by a key, and its model answers a client with another key', async (context) => {
  editor.reset()
  editor.userSettings = { 'toolgate.url': env('URL'), 'toolgate.lending.models': true }
  const model = scriptedModel()
  editor.models = [model]
  const keys = new KeyStore({ get: async () => env('KEY'), store: async () => undefined, delete: async () => undefined })
  const endpoint = await resolveEndpoint(new Settings(), keys)
  assert.match(endpoint.url, /^wss:\/\/localhost:\d+\/bridge$/)
  assert.equal(endpoint.token, undefined)
  const made = new Stage(new ScriptedGateway(), { endpoint: async () => endpoint })
  context.after(() => made.bridge.dispose())
  made.bridge.applyLending()
  const outcome = Promise.race([made.until('connected'), made.until('waiting')])
  made.bridge.connection.start()
  assert.deepEqual((await outcome).kind, 'connected', JSON.stringify(made.states.at(-1)))

  const ask = async (key: string): Promise<Response> =>
    await fetch(`${env('URL')}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'gpt-4o', messages: [{ role: 'user', content: 'Hi' }] }),
    })
  let response = await ask(env('CLIENT_KEY'))
  while (response.status === 404) response = await ask(env('CLIENT_KEY')) // until the list of models has arrived
  assert.match(await response.text(), /Hello\./)
  assert.equal((await ask(env('KEY'))).status, 403, 'the key of the editor asks no models')
  assert.equal(model.requests.length, 1)
})
