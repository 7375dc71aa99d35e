/** A client's request to a lent model, from the ask to its end. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  editor,
  LanguageModelChatToolMode,
  LanguageModelDataPart,
  LanguageModelError,
  LanguageModelTextPart,
  LanguageModelThinkingPart,
  LanguageModelToolCallPart,
  LanguageModelToolResultPart,
} from './fakes/vscode.ts'
import type { Frame } from './scripted_gateway.ts'
import { ask, hangs, parts, scriptedModel, stage } from './stage.ts'

const PICTURE = Buffer.from('picture').toString('base64')

function textOf(frames: Frame[]): string {
  const sent = frames.filter(({ type }) => type === 'delta').flatMap((frame) => frame['parts'] as { text?: string }[])
  return sent.map(({ text }) => text ?? '').join('')
}

test('an ask reaches the model and its answer returns as deltas', async (context) => {
  const made = await stage(context)
  const model = scriptedModel()
  editor.models = [model]
  const peer = await made.connect()
  peer.send(ask('a1'))
  assert.deepEqual(await peer.exchange('a1'), [
    { type: 'started', id: 'a1' },
    { type: 'delta', id: 'a1', parts: [{ type: 'text', text: 'Hello.' }] },
    { type: 'done', id: 'a1' },
  ])
  assert.deepEqual(model.requests[0]?.messages[0]?.content, [new LanguageModelTextPart('Hi')])
})

test('all kinds of parts, tools and options reach the model', async (context) => {
  const made = await stage(context)
  const model = scriptedModel()
  editor.models = [model]
  const peer = await made.connect()
  const messages = [
    { role: 'user', name: 'ann', parts: [{ type: 'text', text: 'Look' }, { type: 'data', mime: 'image/png', data: PICTURE }] },
    {
      role: 'assistant',
      parts: [
        { type: 'thinking', text: 'hm', id: 't1' },
        { type: 'tool_call', call_id: 'c1', name: 'look', input: { at: 1 } },
        { type: 'tool_call', call_id: 'c2', name: 'look', input: {} },
      ],
    },
    {
      role: 'user',
      parts: [
        { type: 'tool_result', call_id: 'c1', parts: [{ type: 'text', text: 'seen' }], is_error: false },
        { type: 'tool_result', call_id: 'c2', parts: [{ type: 'text', text: 'no such place' }], is_error: true },
      ],
    },
  ]
  const tools = [{ name: 'look', description: 'Looks.', input_schema: { type: 'object' } }]
  peer.send(ask('a1', '', { messages, tools, tool_mode: 'required', options: { temperature: 0 }, justification: 'because' }))
  await peer.exchange('a1')
  const request = model.requests[0]!
  assert.deepEqual(
    request.messages.map(({ role, name, content }) => ({ role, name, content })),
    [
      {
        role: 1,
        name: 'ann',
        content: [new LanguageModelTextPart('Look'), new LanguageModelDataPart(Buffer.from('picture'), 'image/png')],
      },
      {
        role: 2,
        name: undefined,
        content: [
          new LanguageModelThinkingPart('hm', 't1'),
          new LanguageModelToolCallPart('c1', 'look', { at: 1 }),
          new LanguageModelToolCallPart('c2', 'look', {}),
        ],
      },
      {
        role: 1,
        name: undefined,
        content: [
          new LanguageModelToolResultPart('c1', [new LanguageModelTextPart('seen')]),
          new LanguageModelToolResultPart('c2', [new LanguageModelTextPart('ERROR: '), new LanguageModelTextPart('no such place')]),
        ],
      },
    ],
  )
  assert.deepEqual(request.options, {
    justification: 'because',
    modelOptions: { temperature: 0 },
    tools: [{ name: 'look', description: 'Looks.', inputSchema: { type: 'object' } }],
    toolMode: LanguageModelChatToolMode.Required,
  })
})

test('thinking, calls, pictures and usage return; parts of the provider itself do not', async (context) => {
  const made = await stage(context)
  const usage = { prompt_tokens: 7, completion_tokens: 3, total_tokens: 10, prompt_tokens_details: { cached_tokens: 2 } }
  editor.models = [
    scriptedModel({
      answer: () =>
        parts(
          new LanguageModelThinkingPart(['h', 'm'], 't1'),
          new LanguageModelDataPart(Buffer.from('secret'), 'stateful_marker'),
          new LanguageModelToolCallPart('c1', 'look', { at: 1 }),
          new LanguageModelToolCallPart('c2', 'look', { at: 2 }),
          new LanguageModelDataPart(Buffer.from('picture'), 'image/png'),
          LanguageModelDataPart.json(usage, 'usage'),
        ),
    }),
  ]
  const peer = await made.connect()
  peer.send(ask('a1'))
  const frames = await peer.exchange('a1')
  assert.deepEqual(
    frames.flatMap((frame) => (frame.type === 'delta' ? (frame['parts'] as unknown[]) : [])),
    [
      { type: 'thinking', text: 'hm', id: 't1' },
      { type: 'tool_call', call_id: 'c1', name: 'look', input: { at: 1 } },
      { type: 'tool_call', call_id: 'c2', name: 'look', input: { at: 2 } },
      { type: 'data', mime: 'image/png', data: PICTURE },
    ],
  )
  assert.deepEqual(frames.at(-1), { type: 'done', id: 'a1', usage: { input: 7, output: 3, cached: 2 } })
  assert.equal(made.activity.requests[0]?.inputTokens, 7)
})

test('many small parts travel in few frames, and nothing is lost', async (context) => {
  const made = await stage(context)
  const pieces = Array.from({ length: 2000 }, (_, index) => new LanguageModelTextPart(`${index} `))
  editor.models = [scriptedModel({ answer: () => parts(...pieces) })]
  const peer = await made.connect()
  peer.send(ask('a1'))
  const frames = await peer.exchange('a1')
  assert.equal(textOf(frames), pieces.map(({ value }) => value).join(''))
  assert.ok(frames.length < 500, `${frames.length} frames`)
})

test('a cancelled ask cancels the request in the editor and ends', async (context) => {
  const made = await stage(context)
  const model = scriptedModel({ answer: ({ token }) => hangs(token, new LanguageModelTextPart('one')) })
  editor.models = [model]
  const peer = await made.connect()
  peer.send(ask('a1'))
  await peer.frame('delta')
  assert.equal(made.activity.uses.length, 1)
  peer.send({ type: 'cancel', id: 'a1' })
  const frames = await peer.exchange('a1')
  assert.equal(frames.at(-1)?.['code'], 'cancelled')
  assert.equal(model.requests[0]?.token.isCancellationRequested, true)
  assert.equal(made.activity.uses.length, 0)
})

test('a lost connection cancels what runs', async (context) => {
  const made = await stage(context)
  const model = scriptedModel({ answer: ({ token }) => hangs(token, new LanguageModelTextPart('one')) })
  editor.models = [model]
  const peer = await made.connect()
  peer.send(ask('a1'))
  await peer.frame('delta')
  const away = made.until('waiting')
  peer.destroy()
  await away
  assert.equal(model.requests[0]?.token.isCancellationRequested, true)
})

test('stopping to lend cancels what runs, and further asks find nothing', async (context) => {
  const made = await stage(context)
  const model = scriptedModel({ answer: ({ token }) => hangs(token, new LanguageModelTextPart('one')) })
  editor.models = [model]
  const peer = await made.connect()
  peer.send(ask('a1'))
  await peer.frame('delta')
  editor.userSettings['toolgate.lending.models'] = false
  made.bridge.applyLending()
  assert.equal((await peer.exchange('a1')).at(-1)?.['code'], 'cancelled')
  assert.deepEqual((await peer.frame('models', (frame) => Number(frame['rev']) > 2))['items'], [])
  assert.deepEqual((await peer.frame('window', (frame) => !(frame['lends'] as { models: boolean }).models)).type, 'window')
  peer.send(ask('a2'))
  assert.equal((await peer.exchange('a2')).at(-1)?.['code'], 'not_found')
  assert.equal(model.requests.length, 1)
})

test('an open consent dialog is reported after a second', async (context) => {
  const made = await stage(context)
  const consent = Promise.withResolvers<{ stream: AsyncIterable<unknown> }>()
  editor.models = [scriptedModel({ send: () => consent.promise })]
  const peer = await made.connect()
  peer.send(ask('a1'))
  assert.deepEqual(await peer.frame('waiting'), { type: 'waiting', id: 'a1', for: 'consent' })
  assert.equal(made.activity.uses[0]?.state, 'consent')
  consent.resolve({ stream: parts(new LanguageModelTextPart('Thanks.')) })
  assert.equal(textOf(await peer.exchange('a1')), 'Thanks.')
})

test('a denied consent is remembered, and the person is not asked again', async (context) => {
  const made = await stage(context)
  const model = scriptedModel({ send: () => Promise.reject(LanguageModelError.NoPermissions('denied')) })
  editor.models = [model]
  const peer = await made.connect()
  peer.send(ask('a1'))
  assert.equal((await peer.exchange('a1')).at(-1)?.['code'], 'no_permission')
  assert.deepEqual(made.denied, ['copilot'])
  await peer.frame('models', (frame) => (frame['items'] as { access: unknown }[])[0]?.access === false)
  peer.send(ask('a2'))
  assert.equal((await peer.exchange('a2')).at(-1)?.['code'], 'no_permission')
  assert.equal(model.requests.length, 1)
  made.denials.clear()
  peer.send(ask('a3'))
  await peer.exchange('a3')
  assert.equal(model.requests.length, 2)
})

class NamedError extends Error {
  constructor(name: string, message: string) {
    super(message)
    this.name = name
  }
}

for (const [code, error] of [
  ['blocked', LanguageModelError.Blocked('filtered')],
  ['not_found', LanguageModelError.NotFound('gone')],
  ['rate_limited', new NamedError('ChatRateLimited', 'Slow down, try again in 30 seconds')],
  ['quota', new NamedError('ChatQuotaExceeded', 'No premium requests left')],
  ['too_long', new Error('Message exceeds token limit.')],
  ['rejected', new Error('Cannot have more than 128 tools per request.')],
  ['cancelled', new NamedError('Canceled', 'Canceled')],
  ['failed', new Error('boom')],
  ['failed', {}],
] as const)
  test(`${error instanceof Error ? `${error.name} "${error.message}"` : 'a rejection without an error'} becomes ${code}`, async (context) => {
    const made = await stage(context)
    // eslint-disable-next-line @typescript-eslint/prefer-promise-reject-errors -- as the editor was seen to do
    editor.models = [scriptedModel({ send: () => Promise.reject(error) })]
    const peer = await made.connect()
    peer.send(ask('a1'))
    const end = (await peer.exchange('a1')).at(-1)!
    assert.equal(end['code'], code)
    assert.equal(end['retry_after'], code === 'rate_limited' ? 30 : undefined)
    assert.equal(typeof end['message'], 'string')
  })

test('a failure in the middle of the answer comes after what was answered', async (context) => {
  const made = await stage(context)
  const answer = async function* (): AsyncGenerator {
    yield new LanguageModelTextPart('one ')
    yield new LanguageModelTextPart('two')
    throw new NamedError('ChatQuotaExceeded', 'quota is used up')
  }
  editor.models = [scriptedModel({ answer })]
  const peer = await made.connect()
  peer.send(ask('a1'))
  const frames = await peer.exchange('a1')
  assert.equal(frames.at(-1)?.['code'], 'quota')
  assert.equal(frames.filter(({ type }) => type === 'error' || type === 'done').length, 1)
  assert.match(made.activity.requests[0]?.problem ?? '', /quota/)
})

test('a picture that the editor cannot read is the fault of the request', async (context) => {
  const made = await stage(context)
  // eslint-disable-next-line @typescript-eslint/prefer-promise-reject-errors -- as the editor was seen to do
  editor.models = [scriptedModel({ send: () => Promise.reject({}) })]
  const peer = await made.connect()
  peer.send(ask('a1', '', { messages: [{ role: 'user', parts: [{ type: 'data', mime: 'image/png', data: 'AAAA' }] }] }))
  const end = (await peer.exchange('a1')).at(-1)!
  assert.equal(end['code'], 'rejected')
  assert.match(String(end['message']), /picture/)
})

test('an ask of a model that is gone is answered, not left open', async (context) => {
  const made = await stage(context)
  const peer = await made.connect()
  peer.send(ask('a1'))
  assert.equal((await peer.exchange('a1')).at(-1)?.['code'], 'not_found')
})

test('the cap of rounds for one request stops a loop', async (context) => {
  const made = await stage(context, { settings: { 'toolgate.lending.maxRoundsPerRequest': 2 } })
  const model = scriptedModel()
  editor.models = [model]
  const peer = await made.connect()
  for (const [id, code] of [['a1', undefined], ['a2', undefined], ['a3', 'quota']] as const) {
    peer.send(ask(id, 'again', { request: 'r1' }))
    assert.equal((await peer.exchange(id)).at(-1)?.['code'], code)
  }
  peer.send(ask('a4', 'other', { request: 'r2' }))
  assert.equal((await peer.exchange('a4')).at(-1)?.type, 'done')
  assert.equal(model.requests.length, 3)
  assert.equal(made.capped.length, 1)
  assert.deepEqual(made.activity.requests.map(({ id, rounds }) => [id, rounds]), [['r2', 1], ['r1', 2]])
})

test('rounds that the gateway counts are capped, also of a request that was forgotten here', async (context) => {
  const made = await stage(context, { settings: { 'toolgate.lending.maxRoundsPerRequest': 2 } })
  editor.models = [scriptedModel()]
  const peer = await made.connect()
  peer.send(ask('a1', 'again', { request: 'r1', round: 2 }))
  assert.equal((await peer.exchange('a1')).at(-1)?.type, 'done')
  made.activity.clear()
  peer.send(ask('a2', 'again', { request: 'r1', round: 3 }))
  assert.equal((await peer.exchange('a2')).at(-1)?.['code'], 'quota')
})

test('the cap of rounds within an hour counts all clients, and frees with time', async (context) => {
  const made = await stage(context, { settings: { 'toolgate.lending.maxRoundsPerHour': 1 } })
  editor.models = [scriptedModel()]
  const peer = await made.connect()
  peer.send(ask('a1'))
  await peer.exchange('a1')
  peer.send(ask('a2', 'more', { caller: 'other' }))
  const end = (await peer.exchange('a2')).at(-1)!
  assert.equal(end['code'], 'quota')
  assert.ok(Number(end['retry_after']) > 3000)
  context.mock.timers.enable({ apis: ['Date'], now: Date.now() + 3_700_000 })
  peer.send(ask('a3'))
  assert.equal((await peer.exchange('a3')).at(-1)?.type, 'done')
})

test('a flood of asks is refused beyond what a window answers at a time', async (context) => {
  const made = await stage(context, { settings: { 'toolgate.lending.maxRoundsPerHour': 0 } })
  editor.models = [scriptedModel({ answer: ({ token }) => hangs(token) })]
  const peer = await made.connect()
  for (let index = 0; index < 65; index += 1) peer.send(ask(`a${index}`))
  assert.equal((await peer.exchange('a64')).at(-1)?.['code'], 'rate_limited')
  assert.equal(made.activity.uses.length, 64)
  peer.send({ type: 'cancel', id: 'a0' })
  await peer.exchange('a0')
  peer.send(ask('a65'))
  await peer.frame('started', (frame) => frame['id'] === 'a65')
})

test('an id that is in use is refused, and the first exchange goes on', async (context) => {
  const made = await stage(context)
  editor.models = [scriptedModel({ answer: ({ token }) => hangs(token) })]
  const peer = await made.connect()
  peer.send(ask('a1'))
  await peer.frame('started')
  peer.send(ask('a1'))
  assert.equal((await peer.frame('error'))['code'], 'rejected')
  assert.equal(made.activity.uses.length, 1)
})

test('a part that is larger than the gateway accepts fails the ask and not the connection', async (context) => {
  const made = await stage(context, { gateway: { maxFrame: 5000 } })
  editor.models = [scriptedModel({ answer: () => parts(new LanguageModelTextPart('ok'), new LanguageModelTextPart('x'.repeat(9000))) })]
  const peer = await made.connect()
  peer.send(ask('a1'))
  const frames = await peer.exchange('a1')
  assert.equal(frames.at(-1)?.['code'], 'too_large')
  assert.equal(frames.filter(({ type }) => type === 'error' || type === 'done').length, 1)
  peer.send({ type: 'ping', n: 1 })
  await peer.frame('pong')
})

test('a paused answer is read no further until it is resumed', async (context) => {
  const made = await stage(context)
  let produced = 0
  const gate = Promise.withResolvers<undefined>()
  const answer = async function* (): AsyncGenerator {
    for (produced = 1; produced <= 5; produced += 1) {
      if (produced === 2) await gate.promise
      yield new LanguageModelTextPart(`${produced}`)
    }
  }
  editor.models = [scriptedModel({ answer })]
  const peer = await made.connect()
  peer.send(ask('a1'))
  await peer.frame('delta')
  peer.send({ type: 'pause', id: 'a1' })
  peer.send({ type: 'ping', n: 1 })
  await peer.frame('pong')
  gate.resolve(undefined)
  peer.send({ type: 'ping', n: 2 })
  await peer.frame('pong', (frame) => frame['n'] === 2)
  assert.equal(produced, 2)
  peer.send({ type: 'resume', id: 'a1' })
  assert.equal(textOf(await peer.exchange('a1')), '12345')
})

test('tokens are counted by the model itself', async (context) => {
  const made = await stage(context)
  editor.models = [scriptedModel()]
  const peer = await made.connect()
  peer.send({ type: 'count', id: 'n1', model: { vendor: 'copilot', id: 'gpt-4o' }, texts: ['four', ''] })
  assert.deepEqual((await peer.exchange('n1')).at(-1), { type: 'done', id: 'n1', tokens: [4, 0] })
})

test('models of the gateway itself and models without room for input are not lent', async (context) => {
  const made = await stage(context)
  editor.models = [
    scriptedModel({ vendor: 'toolgate', id: 'local' }),
    scriptedModel({ vendor: 'copilotcli', id: 'auto', maxInputTokens: 0 }),
    scriptedModel(),
  ]
  editor.access.set('copilot', true)
  const peer = await made.connect()
  const listed = (await peer.frame('models', (frame) => (frame['items'] as unknown[]).length > 0))['items']
  assert.deepEqual(listed, [
    {
      vendor: 'copilot',
      id: 'gpt-4o',
      family: 'gpt-4o',
      version: '1',
      name: 'GPT-4o',
      max_input_tokens: 64_000,
      access: true,
      tools: null,
      images: null,
    },
  ])
  peer.send(ask('a1', 'Hi', { model: { vendor: 'toolgate', id: 'local' } }))
  assert.equal((await peer.exchange('a1')).at(-1)?.['code'], 'not_found')
})

test('a change of the models is sent with a higher revision', async (context) => {
  const made = await stage(context)
  editor.models = [scriptedModel()]
  const peer = await made.connect()
  const first = await peer.frame('models', (frame) => (frame['items'] as unknown[]).length === 1)
  editor.setModels(scriptedModel(), scriptedModel({ id: 'other', family: 'other' }))
  const second = await peer.frame('models', (frame) => (frame['items'] as unknown[]).length === 2)
  assert.ok(Number(second['rev']) > Number(first['rev']))
})

test('nothing is lent unless the person switched it on, whatever the folder says', async (context) => {
  const made = await stage(context, { settings: { 'toolgate.lending.models': undefined, 'toolgate.lending.tools': undefined } })
  editor.folderSettings = { 'toolgate.lending.models': true, 'toolgate.lending.tools': true, 'toolgate.url': 'http://127.0.0.1:1' }
  editor.models = [scriptedModel()]
  editor.tools = [{ name: 'look', description: '', tags: [], invoke: async () => [] }]
  const peer = await made.connect()
  assert.deepEqual((await peer.frame('register'))['lends'], { models: false, tools: false, approvals: true })
  assert.deepEqual((await peer.frame('models'))['items'], [])
  assert.deepEqual((await peer.frame('tools'))['items'], [])
  assert.equal(made.settings.baseUrl, 'http://127.0.0.1:8080')
})
