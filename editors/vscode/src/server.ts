/**
 * A gateway that this window starts: a child process that ends with the window.
 *
 * It runs in the extension's own folder, so that no file of the workspace is taken for its configuration.
 */

import { type ChildProcess, spawn } from 'node:child_process'
import { access, constants, mkdir } from 'node:fs/promises'
import { homedir } from 'node:os'
import { delimiter, join } from 'node:path'

export const UVX_COMMAND = ['uvx', '--from', 'toolgate-server', 'toolgate']
const KILL_AFTER = 10_000

export interface ServerEvents {
  output(text: string): void
  /** The process has started or ended; a problem if it ended by itself. */
  changed(problem?: string): void
}

export class LocalServer {
  readonly #folder: string
  readonly #events: ServerEvents
  #process: ChildProcess | undefined

  constructor(folder: string, events: ServerEvents) {
    this.#folder = folder
    this.#events = events
  }

  get running(): boolean {
    return this.#process !== undefined
  }

  /** Start the gateway at a port of this machine; resolves when the process runs, rejects if it cannot be started. */
  async start(command: readonly string[], port: string, config: string): Promise<void> {
    if (this.running) return
    const [program, ...first] = command
    if (program === undefined) throw new Error('There is no command to start.')
    await mkdir(this.#folder, { recursive: true })
    const args = [...first, 'serve', '--host', '127.0.0.1', '--port', port, ...(config === '' ? [] : ['--config', config])]
    this.#events.output(`> ${[program, ...args].join(' ')}\n`)
    const child = spawn(program, args, { cwd: this.#folder, stdio: ['ignore', 'pipe', 'pipe'] })
    this.#process = child
    const tail: string[] = []
    const read = (data: Buffer): void => {
      tail.push(data.toString('utf8'))
      tail.splice(0, tail.length - 20)
      this.#events.output(data.toString('utf8'))
    }
    child.stdout.on('data', read)
    child.stderr.on('data', read)
    let stopped = false
    child.once('exit', (code, signal) => {
      stopped = this.#process !== child
      if (!stopped) this.#process = undefined
      this.#events.changed(stopped ? undefined : `The server ended (${signal ?? `status ${code ?? '?'}`}): ${lastLine(tail)}`)
    })
    await new Promise<void>((resolve, reject) => {
      child.once('spawn', resolve)
      child.once('error', (error) => {
        this.#process = undefined
        reject(new Error(`${program} cannot be started: ${error.message}`))
      })
    })
    this.#events.changed()
  }

  /** Ask the process to end, and end it after ten seconds. */
  async stop(): Promise<void> {
    const child = this.#process
    if (child === undefined) return
    this.#process = undefined
    const ended = new Promise((resolve) => child.once('exit', resolve))
    child.kill('SIGTERM')
    const timer = setTimeout(() => child.kill('SIGKILL'), KILL_AFTER)
    await ended
    clearTimeout(timer)
  }
}

/** Find a program as a shell would, and where `pip install --user` and `uv tool install` put it. */
export async function findProgram(name: string, env: NodeJS.ProcessEnv = process.env): Promise<string | undefined> {
  const folders = [...(env['PATH'] ?? '').split(delimiter), join(homedir(), '.local', 'bin'), join(homedir(), '.cargo', 'bin')]
  const endings = process.platform === 'win32' ? ['.exe'] : ['']
  for (const folder of folders)
    for (const ending of endings) {
      const path = join(folder, name + ending)
      try {
        if (folder !== '') await access(path, constants.X_OK)
        if (folder !== '') return path
      } catch {
        // not there
      }
    }
  return undefined
}

function lastLine(tail: string[]): string {
  return tail.join('').trimEnd().split('\n').at(-1)?.slice(0, 300) ?? ''
}
