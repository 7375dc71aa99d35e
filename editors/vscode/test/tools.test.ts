/** The editor's tools: which are lent, and how the gateway's invocations end. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  CancellationError,
  editor,
  type FakeTool,
  LanguageModelDataPart,
  LanguageModelPromptTsxPart,
  LanguageModelTextPart,
} from './fakes/vscode.ts'
import type { Frame } from './scripted_gateway.ts'
import { stage } from './stage.ts'

function tool(name: string, invoke: FakeTool['invoke'] = async () => [new LanguageModelTextPart('done')]): FakeTool {
  return { name, description: `${name}.`, inputSchema: { type: 'object' }, tags: ['a', 'b'], invoke }
}

function invoke(id: string, name: string, more: object = {}): object {
  return { type: 'invoke', id, tool: name, input: { at: 1 }, seconds: 120, caller: 'me', request: `req-${id}`, ...more }
}

function names(frame: Frame): string[] {
  return (frame['items'] as { name: string }[]).map(({ name }) => name)
}

test('tools are listed with schema and tags, without the gateway\'s own and those that need a turn', async (context) => {
  const made = await stage(context, { settings: { 'toolgate.lending.excludedTools': ['mcp_*', 'secret'] } })
  editor.tools = ['look', 'mcp_toolgate_clock', 'mcp_other_x', 'run_in_terminal', 'secret', 'secrets'].map((name) => tool(name))
  const peer = await made.connect()
  const listed = await peer.frame('tools', (frame) => names(frame).length > 0)
  assert.deepEqual(names(listed), ['look', 'secrets'])
  assert.deepEqual((listed['items'] as unknown[])[0], {
    name: 'look',
    description: 'look.',
    input_schema: { type: 'object' },
    tags: ['a', 'b'],
  })
})

test('a new tool is noticed by the next comparison, and an unchanged list is not sent again', async (context) => {
  context.mock.timers.enable({ apis: ['setInterval'] })
  const made = await stage(context)
  editor.tools = [tool('look')]
  const peer = await made.connect()
  await peer.frame('tools', (frame) => names(frame).length === 1)
  context.mock.timers.tick(3000)
  editor.tools = [tool('look'), tool('listen')]
  context.mock.timers.tick(3000)
  await peer.frame('tools', (frame) => names(frame).length === 2)
  assert.equal(peer.frames.filter(({ type }) => type === 'tools').length, 2)
})

test('an invocation returns text, rendered prompts as text, and pictures as data', async (context) => {
  const made = await stage(context)
  const tree = {
    node: {
      type: 1,
      children: [
        { type: 2, text: 'line one', lineBreakBefore: true },
        { type: 1, children: [{ type: 2, text: 'line two', lineBreakBefore: true }, { type: 2, text: '!' }] },
      ],
    },
  }
  const inputs: unknown[] = []
  editor.tools = [
    tool('look', async (input) => {
      inputs.push(input)
      return [
        new LanguageModelTextPart('text'),
        new LanguageModelPromptTsxPart(tree),
        new LanguageModelDataPart(Buffer.from('picture'), 'image/png'),
        LanguageModelDataPart.json({ a: 1 }),
        { odd: true },
      ]
    }),
  ]
  const peer = await made.connect()
  peer.send(invoke('i1', 'look'))
  assert.deepEqual(await peer.exchange('i1'), [
    { type: 'started', id: 'i1' },
    {
      type: 'done',
      id: 'i1',
      parts: [
        { type: 'text', text: 'text' },
        { type: 'text', text: 'line one\nline two!' },
        { type: 'data', mime: 'image/png', data: Buffer.from('picture').toString('base64') },
        { type: 'text', text: '{"a":1}' },
        { type: 'text', text: '{"odd":true}' },
      ],
    },
  ])
  assert.deepEqual(inputs, [{ at: 1 }])
  assert.deepEqual(made.activity.requests.map(({ calls, rounds }) => ({ calls, rounds })), [{ calls: 1, rounds: 0 }])
})

for (const [code, error] of [
  ['failed', new Error('the disk is full')],
  ['cancelled', new CancellationError()],
  ['not_found', new Error('Tool x was not contributed')],
] as const)
  test(`a tool that throws "${error.message}" ends with ${code}`, async (context) => {
    const made = await stage(context)
    editor.tools = [tool('look', () => Promise.reject(error))]
    const peer = await made.connect()
    peer.send(invoke('i1', 'look'))
    assert.equal((await peer.exchange('i1')).at(-1)?.['code'], code)
  })

test('a tool that turns out to need a turn is lent no longer', async (context) => {
  const made = await stage(context)
  editor.tools = [tool('look'), tool('type', () => Promise.reject(new Error('Invocation context must be provided')))]
  const peer = await made.connect()
  peer.send(invoke('i1', 'type'))
  assert.equal((await peer.exchange('i1')).at(-1)?.['code'], 'needs_turn')
  await peer.frame('tools', (frame) => names(frame).join() === 'look')
  editor.tools = [tool('look'), tool('task', async () => [new LanguageModelTextPart('No invocation context')])]
  made.bridge.tools.refresh()
  peer.send(invoke('i2', 'task'))
  assert.equal((await peer.exchange('i2')).at(-1)?.['code'], 'needs_turn')
})

test('a tool that never ends is cancelled at its deadline', async (context) => {
  const made = await stage(context)
  let cancelled = false
  editor.tools = [
    tool('hang', async (_input, token) => {
      token.onCancellationRequested(() => (cancelled = true))
      return await new Promise(() => undefined)
    }),
  ]
  const peer = await made.connect()
  peer.send(invoke('i1', 'hang', { seconds: 0.05 }))
  assert.equal((await peer.exchange('i1')).at(-1)?.['code'], 'timeout')
  assert.ok(cancelled)
  assert.equal(made.activity.uses.length, 0)
})

test('a cancelled invocation ends at once, though the tool does not notice', async (context) => {
  const made = await stage(context)
  editor.tools = [tool('hang', () => new Promise(() => undefined))]
  const peer = await made.connect()
  peer.send(invoke('i1', 'hang'))
  await peer.frame('started')
  peer.send({ type: 'cancel', id: 'i1' })
  assert.equal((await peer.exchange('i1')).at(-1)?.['code'], 'cancelled')
})

test('a tool that is not lent is never invoked', async (context) => {
  const made = await stage(context, { settings: { 'toolgate.lending.excludedTools': ['secret'] } })
  let invoked = 0
  const count = async (): Promise<unknown[]> => {
    invoked += 1
    return []
  }
  editor.tools = [tool('secret', count), tool('run_in_terminal', count)]
  const peer = await made.connect()
  for (const name of ['secret', 'run_in_terminal', 'unknown']) {
    peer.send(invoke(name, name))
    assert.equal((await peer.exchange(name)).at(-1)?.['code'], 'not_found')
  }
  editor.userSettings['toolgate.lending.tools'] = false
  editor.tools.push(tool('look', count))
  made.bridge.applyLending()
  peer.send(invoke('look', 'look'))
  assert.equal((await peer.exchange('look')).at(-1)?.['code'], 'not_found')
  assert.equal(invoked, 0)
})

test('a result that is larger than the gateway accepts is an error of its own', async (context) => {
  const made = await stage(context, { gateway: { maxFrame: 5000 } })
  editor.tools = [tool('look', async () => [new LanguageModelTextPart('x'.repeat(9000))])]
  const peer = await made.connect()
  peer.send(invoke('i1', 'look'))
  assert.equal((await peer.exchange('i1')).at(-1)?.['code'], 'too_large')
})
