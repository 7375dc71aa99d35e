/** A gateway that the window starts as a child process. */

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { chmod, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { dialWhenReady, startServerSilently } from '../src/commands.ts'
import { findProgram, LocalServer } from '../src/server.ts'
import { Settings } from '../src/settings.ts'
import { editor } from './fakes/vscode.ts'

async function place(context: TestContext): Promise<string> {
  const folder = await realpath(await mkdtemp(join(tmpdir(), 'toolgate-')))
  context.after(() => rm(folder, { recursive: true, force: true }))
  return folder
}

class Recorder {
  text = ''
  problems: (string | undefined)[] = []
  #wake: () => void = () => undefined
  output = (text: string): void => {
    this.text += text
    this.#wake()
  }
  changed = (problem?: string): void => {
    this.problems.push(problem)
    this.#wake()
  }
  async until(fits: () => boolean): Promise<void> {
    while (!fits()) await new Promise<void>((resolve) => (this.#wake = resolve))
  }
}

test('the server gets its port and configuration, runs outside of the workspace, and ends when it is stopped', async (context) => {
  const folder = await place(context)
  const recorder = new Recorder()
  const server = new LocalServer(join(folder, 'storage'), recorder)
  const script = 'console.log(process.cwd(), process.argv.slice(1).join(" ")); setInterval(() => {}, 1000)'
  await server.start([process.execPath, '-e', script, '--'], '8123', '/etc/toolgate.yaml')
  await recorder.until(() => recorder.text.includes('/storage serve --host 127.0.0.1 --port 8123 --config /etc/toolgate.yaml'))
  assert.ok(server.running)
  await server.stop()
  assert.ok(!server.running)
  assert.deepEqual(recorder.problems, [undefined, undefined])
})

test('a server that ends by itself says why', async (context) => {
  const recorder = new Recorder()
  const server = new LocalServer(await place(context), recorder)
  await server.start([process.execPath, '-e', 'console.error("the port is taken"); process.exit(3)', '--'], '1', '')
  await recorder.until(() => recorder.problems.length === 2)
  assert.match(recorder.problems[1] ?? '', /status 3.*the port is taken/)
  assert.ok(!server.running)
})

test('a program that does not exist is named', async (context) => {
  const server = new LocalServer(await place(context), new Recorder())
  await assert.rejects(server.start(['/no/such/toolgate'], '1', ''), /\/no\/such\/toolgate cannot be started/)
  assert.ok(!server.running)
})

for (const [name, answers] of [['runs', true], ['does not run', false]] as const)
  test(`a gateway that ${name} is ${answers ? 'not ' : ''}started with the editor`, async (context) => {
    const running = createServer((_, response) => response.end())
    running.listen(0, '127.0.0.1')
    await once(running, 'listening')
    const { port } = running.address() as AddressInfo
    if (!answers) await new Promise((resolve) => running.close(resolve))
    context.after(() => running.close())
    editor.reset()
    editor.userSettings = { 'toolgate.url': `http://127.0.0.1:${port}`, 'toolgate.server.command': ['toolgate'] }
    const started: string[] = []
    const parts = {
      settings: new Settings(),
      server: { running: false, start: async (_: readonly string[], at: string) => void started.push(at) },
      bridge: { connection: { connected: false, start: () => undefined } },
    } as unknown as Parameters<typeof startServerSilently>[0]
    await startServerSilently(parts)
    assert.deepEqual(started, answers ? [] : [String(port)])
  })

test('a gateway that takes its time to start is dialled when it answers', async (context) => {
  const server = createServer((_, response) => response.end())
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  context.after(() => server.close())
  editor.reset()
  editor.userSettings = { 'toolgate.url': `http://127.0.0.1:${port}` }
  const answered: boolean[] = []
  const dialled = dialWhenReady({
    settings: new Settings(),
    server: { running: true },
    bridge: { connection: { connected: false, start: () => answered.push(server.listening) } },
  } as unknown as Parameters<typeof dialWhenReady>[0])
  server.listen(port, '127.0.0.1')
  await dialled
  assert.deepEqual(answered, [false, true])
})

test('programs are found on the PATH', async (context) => {
  const folder = await place(context)
  const path = join(folder, 'toolgate-test-program')
  await writeFile(path, '#!/bin/sh\n')
  assert.equal(await findProgram('toolgate-test-program', { PATH: folder }), undefined)
  await chmod(path, 0o755)
  assert.equal(await findProgram('toolgate-test-program', { PATH: `/nowhere:${folder}` }), path)
})
