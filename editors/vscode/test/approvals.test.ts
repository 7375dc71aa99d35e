/** Approvals of the gateway that are answered in the editor. */

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { notifyApproval, questionText } from '../src/views/approvals.ts'
import { editor } from './fakes/vscode.ts'
import { type Stage, stage } from './stage.ts'

const APPROVAL = { id: 'mcpr_1', tool: 'delete_file', caller: 'me', arguments: '{"path":"a.txt"}', question: '', title: '' }

async function asked(context: Parameters<typeof stage>[0]): Promise<Stage & { send: (frame: object) => void }> {
  const made = await stage(context)
  const peer = await made.connect()
  peer.send({ type: 'approval', id: 'mcpr_1', approval: APPROVAL })
  peer.send({ type: 'ping', n: 1 })
  await peer.frame('pong')
  return Object.assign(made, { send: (frame: object) => peer.send(frame) })
}

async function pong(made: Stage, n: number): Promise<void> {
  const peer = await made.gateway.connected()
  peer.send({ type: 'ping', n })
  await peer.frame('pong', (frame) => frame['n'] === n)
}

test('an approval arrives once and waits for an answer', async (context) => {
  const made = await asked(context)
  made.send({ type: 'approval', id: 'mcpr_1', approval: APPROVAL })
  await pong(made, 2)
  assert.deepEqual(made.approvals.map(({ id }) => id), ['mcpr_1'])
  assert.equal(questionText(made.approvals[0]!), 'Run delete_file for me?')
})

for (const [choice, decision] of [['Approve', 'approve'], ['Deny', 'deny']] as const)
  test(`the notification's button ${choice} answers ${decision}`, async (context) => {
    const made = await asked(context)
    void notifyApproval(made.inbox, made.approvals[0]!)
    const toast = editor.toasts[0]!
    assert.match(toast.message, /delete_file for me\? \{"path":"a.txt"\}/)
    toast.choose(choice)
    const peer = await made.gateway.connected()
    const answer = await peer.frame('answer')
    assert.deepEqual([answer['id'], answer['decision']], ['mcpr_1', decision])
    made.send({ type: 'answered', id: 'mcpr_1', state: 'approved' })
    await pong(made, 2)
    assert.deepEqual(made.inbox.pending, [])
  })

test('names and arguments cannot put links into the notification', async (context) => {
  const made = await stage(context)
  const peer = await made.connect()
  const linked = '{"path":"[safe](command:workbench.action.reloadWindow)"}'
  peer.send({ type: 'approval', id: 'mcpr_2', approval: { ...APPROVAL, arguments: linked } })
  await pong(made, 1)
  void notifyApproval(made.inbox, made.approvals[0]!)
  assert.ok(!editor.toasts[0]!.message.includes(']('))
})

test('a call that is too long for a notification cannot be approved before the person has seen it', async (context) => {
  const made = await stage(context)
  const peer = await made.connect()
  const long = JSON.stringify({ command: `echo ${'x'.repeat(300)}; rm -rf /` })
  peer.send({ type: 'approval', id: 'mcpr_3', approval: { ...APPROVAL, arguments: long } })
  await pong(made, 1)
  void notifyApproval(made.inbox, made.approvals[0]!)
  assert.deepEqual(editor.toasts[0]!.items, ['Deny', 'Review…'])
  void notifyApproval(made.inbox, made.approvals[0]!, true)
  assert.deepEqual(editor.toasts[1]!.items, ['Approve', 'Deny', 'Review…'])
})

test('a notification that is closed leaves the question open', async (context) => {
  const made = await asked(context)
  const closed = notifyApproval(made.inbox, made.approvals[0]!)
  editor.toasts[0]!.choose(undefined)
  await closed
  assert.equal(made.inbox.pending.length, 1)
})

test('a question that was decided elsewhere disappears, and a late answer is refused', async (context) => {
  const made = await asked(context)
  made.send({ type: 'approval_closed', id: 'mcpr_1', state: 'denied' })
  await pong(made, 2)
  assert.deepEqual(made.inbox.pending, [])
  made.inbox.answer('mcpr_1', { decision: 'approve' })
  await pong(made, 3)
  const peer = await made.gateway.connected()
  assert.deepEqual(peer.frames.filter(({ type }) => type === 'answer'), [])
  assert.match(made.refusals[0] ?? '', /no longer open/)
})

test('an answer that the gateway refuses is shown', async (context) => {
  const made = await asked(context)
  made.inbox.answer('mcpr_1', { decision: 'approve', level: 'session', arguments: { path: 'b.txt' } })
  const peer = await made.gateway.connected()
  const answer = await peer.frame('answer')
  assert.deepEqual(answer, {
    type: 'answer',
    id: 'mcpr_1',
    decision: 'approve',
    level: 'session',
    arguments: { path: 'b.txt' },
  })
  made.send({ type: 'error', id: 'mcpr_1', code: 'invalid_arguments', message: 'path must be relative.' })
  await pong(made, 4)
  assert.equal(made.inbox.pending.length, 1, 'the question is still open')
  made.send({ type: 'error', id: 'mcpr_1', code: 'already_approved', message: 'Somebody else was first.' })
  await pong(made, 2)
  assert.deepEqual(made.refusals, ['path must be relative.', 'Somebody else was first.'])
  assert.deepEqual(made.inbox.pending, [])
})

test('a lost connection empties the list, which the gateway fills again', async (context) => {
  const made = await asked(context)
  const away = made.until('waiting')
  const peer = await made.gateway.connected()
  peer.destroy()
  await away
  assert.deepEqual(made.inbox.pending, [])
})
