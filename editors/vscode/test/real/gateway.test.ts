/** The extension's code against the real gateway, whose address is in TOOLGATE_TEST_URL. */

import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type * as vscode from 'vscode'
import { resolveEndpoint } from '../../src/endpoint.ts'
import { GatewayClient } from '../../src/gateway/client.ts'
import { KeyStore } from '../../src/keys.ts'
import { GatewayModelProvider } from '../../src/provider.ts'
import { Settings } from '../../src/settings.ts'
import {
  CancellationTokenSource,
  editor,
  type FakeRequest,
  LanguageModelChatMessage,
  LanguageModelChatToolMode,
  LanguageModelDataPart,
  LanguageModelError,
  LanguageModelTextPart,
  LanguageModelToolCallPart,
  LanguageModelToolResultPart,
} from '../fakes/vscode.ts'
import { ScriptedGateway } from '../scripted_gateway.ts'
import { hangs, parts, scriptedModel, Stage, type ModelScript } from '../stage.ts'

const url = process.env['TOOLGATE_TEST_URL'] ?? ''
const MODEL = 'vscode/copilot/gpt-4o'
const keys = new KeyStore({ get: async () => undefined, store: async () => undefined, delete: async () => undefined })

/** Join the real gateway with one model, and wait until it is listed. */
async function join(context: TestContext, script: ModelScript = {}): Promise<{ made: Stage; requests: FakeRequest[] }> {
  editor.reset()
  editor.userSettings = { 'toolgate.url': url, 'toolgate.lending.models': true, 'toolgate.lending.tools': true }
  const model = scriptedModel(script)
  editor.models = [model]
  editor.tools = [
    {
      name: 'look',
      description: 'Looks.',
      tags: ['sight'],
      inputSchema: { type: 'object', properties: { at: { type: 'number' } }, required: ['at'] },
      invoke: async ({ at }) => [new LanguageModelTextPart(`saw ${String(at)}`)],
    },
  ]
  const made = new Stage(new ScriptedGateway(), { endpoint: () => resolveEndpoint(new Settings(), keys) })
  context.after(async () => {
    made.bridge.dispose()
    await until(async () => !(await modelNames()).includes(MODEL))
  })
  made.bridge.applyLending()
  const connected = made.until('connected')
  made.bridge.connection.start()
  await connected
  await until(async () => (await modelNames()).includes(MODEL))
  return { made, requests: model.requests }
}

async function until(fits: () => Promise<boolean>): Promise<void> {
  while (!(await fits())) await new Promise((resolve) => setTimeout(resolve, 20))
}

async function modelNames(): Promise<string[]> {
  const listed = (await (await fetch(`${url}/v1/models`)).json()) as { data: { id: string }[] }
  return listed.data.map(({ id }) => id)
}

function post(path: string, body: object, signal?: AbortSignal): Promise<Response> {
  const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }
  return fetch(url + path, signal === undefined ? init : { ...init, signal })
}

const message = { role: 'user', content: 'Hi' }

for (const [path, body] of [
  ['/v1/chat/completions', { messages: [message] }],
  ['/v1/responses', { input: [message] }],
  ['/v1/messages', { messages: [message], max_tokens: 100 }],
  ['/api/chat', { messages: [message] }],
] as const)
  for (const stream of [false, true])
    test(`a lent model answers ${path}, ${stream ? 'streamed' : 'whole'}`, async (context) => {
      const usage = { prompt_tokens: 7, completion_tokens: 3, total_tokens: 10 }
      const answer = (): AsyncIterable<unknown> => parts(new LanguageModelTextPart('Hello there.'), LanguageModelDataPart.json(usage, 'usage'))
      const { requests } = await join(context, { answer })
      const response = await post(path, { model: 'gpt-4o', stream, ...body })
      const text = await response.text()
      assert.equal(response.status, 200, text)
      assert.match(text, /Hello there\./)
      assert.deepEqual(requests[0]?.messages.at(-1)?.content, [new LanguageModelTextPart('Hi')])
    })

test('a lent model uses a lent tool in the loop of the server, as one request of two rounds', async (context) => {
  const answer = ({ messages }: FakeRequest): AsyncIterable<unknown> => {
    const result = messages.at(-1)?.content.find((part) => part instanceof LanguageModelToolResultPart)
    if (result === undefined) return parts(new LanguageModelToolCallPart('c1', 'look', { at: 7 }))
    return parts(new LanguageModelTextPart(`The tool ${(result.content[0] as LanguageModelTextPart).value}.`))
  }
  const { made, requests } = await join(context, { answer })
  const tools = (await (await fetch(`${url}/v1/tools?tags=sight`)).json()) as { data: { name: string; tags: string[] }[] }
  assert.deepEqual(tools.data.map(({ name, tags }) => ({ name, tags })), [{ name: 'look', tags: ['sight'] }])
  const body = { model: MODEL, messages: [message], tool_execution: 'auto', use_vscode_tools: ['look'] }
  const text = await (await post('/v1/chat/completions', body)).text()
  assert.match(text, /The tool saw 7\./)
  assert.equal(requests.length, 2)
  const [record] = made.activity.requests
  assert.deepEqual([made.activity.requests.length, record?.rounds, record?.calls], [1, 2, 1])
})

test('a client that leaves cancels the request in the editor', async (context) => {
  const { requests } = await join(context, { answer: ({ token }) => hangs(token, new LanguageModelTextPart('One.')) })
  const abort = new AbortController()
  const response = await post('/v1/chat/completions', { model: MODEL, messages: [message], stream: true }, abort.signal)
  await response.body?.getReader().read()
  abort.abort()
  await until(async () => requests[0]?.token.isCancellationRequested === true)
})

test('a denied consent is an error of permission, and the model is no longer offered', async (context) => {
  const { requests } = await join(context, { send: () => Promise.reject(LanguageModelError.NoPermissions('denied')) })
  const response = await post('/v1/chat/completions', { model: MODEL, messages: [message] })
  assert.equal(response.status, 403, await response.text())
  await until(async () => !(await modelNames()).includes(MODEL))
  assert.equal(requests.length, 1)
})

test('an approval of the gateway is denied in the editor', async (context) => {
  const answer = ({ messages }: FakeRequest): AsyncIterable<unknown> => {
    const done = messages.some(({ content }) => content.some((part) => part instanceof LanguageModelToolResultPart))
    return done
      ? parts(new LanguageModelTextPart('I may not.'))
      : parts(new LanguageModelToolCallPart('c1', 'fetch', { url: 'http://127.0.0.1:9/' }))
  }
  const { made } = await join(context, { answer })
  const body = { model: MODEL, messages: [message], tool_execution: 'auto', use_server_tools: ['fetch'] }
  const answered = post('/v1/chat/completions', body)
  await until(async () => made.approvals.length > 0)
  assert.equal(made.approvals[0]?.approval.tool, 'fetch')
  made.inbox.answer(made.approvals[0].id, { decision: 'deny', reason: 'not today' })
  assert.match(await (await answered).text(), /I may not\./)
  await until(async () => made.inbox.pending.length === 0)
})

test('the gateway\'s models answer in the editor\'s chat', async (context) => {
  const { made } = await join(context)
  const client = new GatewayClient(
    { baseUrl: () => url, key: async () => undefined, proven: () => made.bridge.connection.connected, windowId: () => made.bridge.window.id },
    '0.0.0',
  )
  const provider = new GatewayModelProvider(client)
  context.after(() => provider.dispose())
  provider.available = true
  const models = await provider.provideLanguageModelChatInformation({ silent: false })
  assert.deepEqual(models.map(({ id }) => id), ['echo'])
  const reported: unknown[] = []
  const messages = [LanguageModelChatMessage.User([new LanguageModelTextPart('Say this')])] as unknown as vscode.LanguageModelChatRequestMessage[]
  const options = { toolMode: LanguageModelChatToolMode.Auto } as unknown as vscode.ProvideLanguageModelChatResponseOptions
  await provider.provideLanguageModelChatResponse(
    models[0]!,
    messages,
    options,
    { report: (part) => void reported.push(part) },
    new CancellationTokenSource().token,
  )
  const text = reported.map((part) => (part instanceof LanguageModelTextPart ? part.value : '')).join('')
  assert.match(text, /Say this/)
})
