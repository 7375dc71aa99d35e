/** The gateway's models in the editor's chat. */

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import type * as vscode from 'vscode'
import { GatewayClient } from '../src/gateway/client.ts'
import { readEvents } from '../src/gateway/sse.ts'
import { countTokens } from '../src/gateway/tokens.ts'
import { GatewayMcpProvider } from '../src/mcp.ts'
import { encodeRequest, GatewayModelProvider } from '../src/provider.ts'
import {
  CancellationTokenSource,
  LanguageModelChatMessage,
  LanguageModelChatToolMode,
  LanguageModelDataPart,
  LanguageModelError,
  LanguageModelPromptTsxPart,
  LanguageModelTextPart,
  LanguageModelThinkingPart,
  LanguageModelToolCallPart,
  LanguageModelToolResultPart,
} from './fakes/vscode.ts'

type Handler = (request: IncomingMessage, response: ServerResponse, body: string) => void

interface Served {
  provider: GatewayModelProvider
  client: GatewayClient
  url: string
  access: { key: string | undefined; proven: boolean }
  requests: { path: string; headers: IncomingMessage['headers']; body: string }[]
}

const MODELS = {
  data: [
    { id: 'gpt', owned_by: 'openai', context_length: 100_000 },
    { id: 'tiny', owned_by: 'local' },
    { id: 'vscode/copilot/gpt-4o', owned_by: 'vscode' },
  ],
}
const TAGS = { models: [{ name: 'gpt', capabilities: ['completion', 'tools', 'vision'] }, { name: 'tiny', capabilities: ['completion'] }] }

async function serve(context: TestContext, chat: Handler): Promise<Served> {
  const requests: Served['requests'] = []
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', () => {
      const body = Buffer.concat(chunks).toString()
      requests.push({ path: request.url ?? '', headers: request.headers, body })
      if (request.url === '/v1/models') response.end(JSON.stringify(MODELS))
      else if (request.url === '/api/tags') response.end(JSON.stringify(TAGS))
      else chat(request, response, body)
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const access = { key: undefined as string | undefined, proven: true }
  const client = new GatewayClient(
    { baseUrl: () => url, key: async () => access.key, proven: () => access.proven, windowId: () => 'w1' },
    '1.2.3',
  )
  const provider = new GatewayModelProvider(client)
  context.after(async () => {
    provider.dispose()
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  })
  return { provider, client, url, access, requests }
}

function chunk(delta: object, finish: string | null = null): string {
  return `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`
}

async function answer(served: Served, source = new CancellationTokenSource(), reported: unknown[] = []): Promise<unknown[]> {
  const model = { id: 'gpt' } as vscode.LanguageModelChatInformation
  const messages = [LanguageModelChatMessage.User([new LanguageModelTextPart('Hi')])] as unknown as vscode.LanguageModelChatRequestMessage[]
  const progress = { report: (part: unknown) => void reported.push(part) }
  const options = { toolMode: LanguageModelChatToolMode.Auto } as unknown as vscode.ProvideLanguageModelChatResponseOptions
  await served.provider.provideLanguageModelChatResponse(model, messages, options, progress, source.token)
  return reported
}

test('a list that arrives after the gateway has gone offers nothing', async (context) => {
  const { provider, access } = await serve(context, () => undefined)
  const readers: (() => void)[] = []
  Object.defineProperty(access, 'key', { get: () => new Promise<void>((resolve) => readers.push(resolve)) })
  provider.available = true
  const listed = provider.refresh()
  provider.available = false
  for (const read of readers) read()
  await listed
  assert.deepEqual(provider.models, [])
})

test('a key is not sent to an address that was set while it was read', async (context) => {
  const { url, requests } = await serve(context, () => undefined)
  let base = 'http://127.0.0.1:9'
  const client = new GatewayClient(
    { baseUrl: () => base, key: async () => ((base = url), 'tg-secret'), proven: () => true, windowId: () => 'w1' },
    '1.2.3',
  )
  await assert.rejects(client.models(), /not connected/)
  assert.deepEqual(requests, [])
})

const streams =
  (...frames: string[]): Handler =>
  (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    for (const frame of frames) response.write(frame)
    response.end()
  }

test('models are listed with what they can do, and models lent by editors are not', async (context) => {
  const { provider, requests } = await serve(context, () => undefined)
  provider.available = true
  const models = await provider.provideLanguageModelChatInformation({ silent: false })
  assert.deepEqual(
    models.map(({ id, maxInputTokens, maxOutputTokens, capabilities }) => ({ id, maxInputTokens, maxOutputTokens, capabilities })),
    [
      { id: 'gpt', maxInputTokens: 83_616, maxOutputTokens: 16_384, capabilities: { toolCalling: true, imageInput: true } },
      { id: 'tiny', maxInputTokens: 111_616, maxOutputTokens: 16_384, capabilities: { toolCalling: false, imageInput: false } },
    ],
  )
  assert.equal(requests[0]!.headers['x-toolgate-editor'], 'w1')
  assert.equal(requests[0]!.headers['user-agent'], 'toolgate-vscode/1.2.3')
  const asked = requests.length
  await provider.provideLanguageModelChatInformation({ silent: true })
  assert.equal(requests.length, asked)
})

test('nothing is sent to an address at which no gateway is proven', async (context) => {
  const { provider, client, access, requests } = await serve(context, () => undefined)
  access.key = 'tg-secret'
  access.proven = false
  provider.available = true
  assert.deepEqual(await provider.provideLanguageModelChatInformation({ silent: false }), [])
  await assert.rejects(client.models(), /not connected/)
  assert.deepEqual(requests, [])
})

test('text, thinking, parallel calls and usage are reported as they come', async (context) => {
  const usage = { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 }
  const served = await serve(
    context,
    streams(
      chunk({ role: 'assistant', content: '' }),
      ': keep-alive\n\n',
      chunk({ reasoning_content: 'hm' }),
      chunk({ content: 'Let me ' }),
      chunk({ content: 'look.' }),
      chunk({ tool_calls: [{ index: 0, id: 'c1', function: { name: 'look', arguments: '' } }] }),
      chunk({ tool_calls: [{ index: 1, id: 'c2', function: { name: 'look', arguments: '{"at"' } }] }),
      chunk({ tool_calls: [{ index: 1, function: { arguments: ':2}' } }] }),
      chunk({}, 'tool_calls'),
      `data: ${JSON.stringify({ choices: [], usage })}\n\n`,
      'data: [DONE]\n\n',
    ),
  )
  assert.deepEqual(await answer(served), [
    new LanguageModelThinkingPart('hm'),
    new LanguageModelTextPart('Let me '),
    new LanguageModelTextPart('look.'),
    new LanguageModelToolCallPart('c1', 'look', {}),
    new LanguageModelToolCallPart('c2', 'look', { at: 2 }),
    LanguageModelDataPart.json(usage, 'usage'),
  ])
  assert.deepEqual(JSON.parse(served.requests[0]?.body ?? ''), {
    model: 'gpt',
    messages: [{ role: 'user', content: 'Hi' }],
    stream: true,
    stream_options: { include_usage: true },
  })
})

test('events are read the same wherever their bytes are split', async () => {
  const bytes = Buffer.from('event: x\r\ndata: {"a":"ä"}\r\n\r\n: comment\n\ndata: two\ndata: lines\n\n')
  for (let size = 1; size < 8; size += 1) {
    const split = async function* (): AsyncGenerator<Uint8Array> {
      for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size)
    }
    const events: string[] = []
    for await (const event of readEvents(split())) events.push(event)
    assert.deepEqual(events, ['{"a":"ä"}', 'two\nlines'])
  }
})

const fails =
  (status: number, error: object): Handler =>
  (_request, response) =>
    response.writeHead(status).end(JSON.stringify({ error }))

for (const [name, handler, pattern, code] of [
  ['an unknown model', fails(404, { message: 'There is no model gpt.' }), /There is no model gpt/, 'NotFound'],
  ['a missing key', fails(401, { message: 'A key is needed.' }), /A key is needed\. Run "Toolgate: Set API Key"/, 'NoPermissions'],
  ['an upstream that is down', fails(502, { message: 'openai is down.' }), /openai is down/, undefined],
  ['an answer that is no JSON', (_request, response) => response.writeHead(500).end('oops'), /status 500: oops/, undefined],
  ['an error in the stream', streams(chunk({ content: 'a' }), 'data: {"error":{"message":"broke"}}\n\n', 'data: [DONE]\n\n'), /broke/, undefined],
  ['a stream that breaks', streams(chunk({ content: 'a' })), /broke in the middle/, undefined],
  ['broken arguments', streams(chunk({ tool_calls: [{ index: 0, id: 'c', function: { name: 'look', arguments: '{"a' } }] }), chunk({}, 'tool_calls')), /called look with arguments that are no JSON/, undefined],
  ['a filtered answer', streams(chunk({}, 'content_filter'), 'data: [DONE]\n\n'), /filtered/, 'Blocked'],
] as [string, Handler, RegExp, string | undefined][])
  test(`${name} is an error with a message and without a stack`, async (context) => {
    const served = await serve(context, handler)
    await assert.rejects(answer(served), (error: Error) => {
      assert.match(error.message, pattern)
      assert.equal(error.stack, undefined)
      assert.equal(error instanceof LanguageModelError ? error.code : undefined, code)
      return true
    })
  })

test('cancelling closes the connection to the gateway', async (context) => {
  const closed = Promise.withResolvers<undefined>()
  const served = await serve(context, (_request, response) => {
    response.writeHead(200).write(chunk({ content: 'one' }))
    response.on('close', () => closed.resolve(undefined))
  })
  const source = new CancellationTokenSource()
  const reported: unknown[] = []
  const answering = answer(served, source, reported)
  while (reported.length === 0) await new Promise((resolve) => setImmediate(resolve))
  source.cancel()
  await assert.rejects(answering, { name: 'Canceled' })
  await closed.promise
})

test('a conversation of the editor\'s agent becomes Chat Completions', () => {
  const system = new LanguageModelChatMessage(3, [new LanguageModelTextPart('Be '), new LanguageModelTextPart('brief.')])
  const user = LanguageModelChatMessage.User([
    new LanguageModelTextPart('What is this?'),
    new LanguageModelDataPart(Buffer.from('picture'), 'image/png'),
    new LanguageModelDataPart(Buffer.from('x'), 'cache_control'),
  ])
  const assistant = LanguageModelChatMessage.Assistant([
    new LanguageModelThinkingPart('hm'),
    new LanguageModelTextPart('Looking.'),
    new LanguageModelToolCallPart('c1', 'look', { at: 1 }),
  ])
  const result = LanguageModelChatMessage.User([
    new LanguageModelToolResultPart('c1', [
      new LanguageModelTextPart('seen'),
      new LanguageModelPromptTsxPart({ node: { type: 1, children: [{ type: 2, text: ' well' }] } }),
      new LanguageModelDataPart(Buffer.from('picture'), 'image/png'),
    ]),
  ])
  const options = {
    toolMode: 2,
    tools: [{ name: 'look', description: 'Looks.', inputSchema: undefined }],
    modelOptions: { temperature: 0.1, _conversationId: 'private', model: 'other', stream: false },
  }
  const picture = { type: 'image_url', image_url: { url: `data:image/png;base64,${Buffer.from('picture').toString('base64')}` } }
  const messages = [system, user, assistant, result] as unknown as vscode.LanguageModelChatRequestMessage[]
  assert.deepEqual(encodeRequest('gpt', messages, options as unknown as vscode.ProvideLanguageModelChatResponseOptions), {
    temperature: 0.1,
    model: 'gpt',
    messages: [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: [{ type: 'text', text: 'What is this?' }, picture] },
      {
        role: 'assistant',
        content: 'Looking.',
        reasoning_content: 'hm',
        tool_calls: [{ id: 'c1', type: 'function', function: { name: 'look', arguments: '{"at":1}' } }],
      },
      { role: 'tool', tool_call_id: 'c1', content: 'seen well' },
      { role: 'user', content: [{ type: 'text', text: 'Pictures from the tool results:' }, picture] },
    ],
    tools: [{ type: 'function', function: { name: 'look', description: 'Looks.', parameters: { type: 'object', properties: {} } } }],
    tool_choice: 'required',
  })
})

test('tokens are counted in this process, whatever the text', async (context) => {
  const { provider, requests } = await serve(context, () => undefined)
  const model = {} as vscode.LanguageModelChatInformation
  assert.equal(await provider.provideTokenCount(model, ''), 0)
  assert.equal(await provider.provideTokenCount(model, 'four'.repeat(100)), 100)
  assert.ok(countTokens('東京'.repeat(50)) >= 80)
  const message = LanguageModelChatMessage.User([new LanguageModelTextPart('four')]) as unknown as vscode.LanguageModelChatRequestMessage
  assert.equal(await provider.provideTokenCount(model, message), 5)
  assert.deepEqual(requests, [])
})

test('the MCP server is offered only while the gateway answers, and gets the key when it starts', async () => {
  const provider = new GatewayMcpProvider({
    baseUrl: () => 'http://127.0.0.1:8080',
    headers: async () => ({ authorization: 'Bearer tg-1' }),
    version: () => '1.0',
  })
  let changes = 0
  provider.onDidChangeMcpServerDefinitions(() => (changes += 1))
  assert.deepEqual(await provider.provideMcpServerDefinitions(), [])
  provider.available = true
  provider.available = true
  const [server] = await provider.provideMcpServerDefinitions()
  assert.equal(server?.uri.toString(), 'http://127.0.0.1:8080/mcp')
  assert.deepEqual(server.headers, {})
  assert.deepEqual((await provider.resolveMcpServerDefinition(server)).headers, { authorization: 'Bearer tg-1' })
  provider.available = false
  assert.deepEqual(await provider.provideMcpServerDefinitions(), [])
  assert.equal(changes, 2)
})
