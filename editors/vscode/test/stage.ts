/** A bridge in the fake editor, connected to a scripted gateway: what most tests begin with. */

import type { TestContext } from 'node:test'
import type * as vscode from 'vscode'
import { Activity } from '../src/activity.ts'
import { ApprovalInbox, type PendingApproval } from '../src/approvals.ts'
import { Bridge } from '../src/bridge.ts'
import type { ConnectionState, Endpoint, Timings } from '../src/connection.ts'
import { bridgeAddress } from '../src/gateway/address.ts'
import { Settings } from '../src/settings.ts'
import { editor, type FakeModel, type FakeRequest, LanguageModelTextPart } from './fakes/vscode.ts'
import { type GatewayOptions, type Peer, ScriptedGateway, TOKEN } from './scripted_gateway.ts'

/** Short delays, and limits that a busy machine does not reach. */
export const TEST_TIMINGS: Timings = {
  firstDelay: 20,
  maxDelay: 100,
  stable: 60_000,
  handshake: 30_000,
  silence: 60_000,
  roundTrip: 30_000,
}

export class MemoryDenials {
  readonly vendors = new Set<string>()
  has = (vendor: string): boolean => this.vendors.has(vendor)
  add = (vendor: string): void => void this.vendors.add(vendor)
  clear = (): void => this.vendors.clear()
}

export interface StageOptions {
  gateway?: GatewayOptions
  timings?: Partial<Timings>
  endpoint?: () => Promise<Endpoint>
  settings?: Record<string, unknown>
}

export class Stage {
  readonly gateway: ScriptedGateway
  readonly denials = new MemoryDenials()
  readonly states: ConnectionState[] = []
  readonly denied: string[] = []
  readonly capped: string[] = []
  readonly approvals: PendingApproval[] = []
  readonly refusals: string[] = []
  readonly settings = new Settings()
  readonly activity: Activity
  readonly inbox: ApprovalInbox
  readonly bridge: Bridge
  #stateWaiters: (() => void)[] = []

  constructor(gateway: ScriptedGateway, options: StageOptions) {
    this.gateway = gateway
    this.activity = new Activity(
      () => this.settings.caps,
      () => undefined,
    )
    this.inbox = new ApprovalInbox((frame) => this.bridge.connection.send(frame), {
      changed: () => undefined,
      arrived: (pending) => this.approvals.push(pending),
      refused: (message) => this.refusals.push(message),
    })
    this.bridge = new Bridge(
      {
        settings: this.settings,
        access: {
          canSendRequest: (model: vscode.LanguageModelChat) => editor.access.get(model.vendor),
          onDidChange: editor.accessChanged.event,
        },
        denials: this.denials,
        activity: this.activity,
        approvals: this.inbox,
        version: '0.0.0',
        endpoint: options.endpoint ?? (async () => ({ ...bridgeAddress(gateway.url), token: TOKEN })),
        timings: { ...TEST_TIMINGS, ...options.timings },
      },
      {
        connectionChanged: (state) => {
          this.states.push(state)
          for (const wake of this.#stateWaiters.splice(0)) wake()
        },
        lendingChanged: () => undefined,
        denied: (vendor) => this.denied.push(vendor),
        capped: (message) => this.capped.push(message),
      },
    )
  }

  /** Wait until the connection has been in a state since the call. */
  async until(kind: ConnectionState['kind']): Promise<ConnectionState> {
    for (let seen = this.states.length; ; seen += 1) {
      const state = this.states[seen]
      if (state?.kind === kind) return state
      if (state === undefined) {
        await new Promise<void>((resolve) => this.#stateWaiters.push(resolve))
        seen -= 1
      }
    }
  }

  /** Connect and return the gateway's end of the connection. */
  async connect(): Promise<Peer> {
    this.bridge.applyLending()
    await this.bridge.models.refresh()
    this.bridge.connection.start()
    return await this.gateway.registered()
  }
}

/** Set up a bridge and its gateway, which the end of the test takes down. */
export async function stage(test: TestContext, options: StageOptions = {}): Promise<Stage> {
  editor.reset()
  editor.userSettings = { 'toolgate.lending.models': true, 'toolgate.lending.tools': true, ...options.settings }
  const gateway = await new ScriptedGateway(options.gateway).start()
  const made = new Stage(gateway, options)
  test.after(async () => {
    made.bridge.dispose()
    await gateway.stop()
  })
  return made
}

export interface ModelScript {
  vendor?: string
  id?: string
  family?: string
  maxInputTokens?: number
  /** The parts of its answer, or what happens instead. */
  answer?: (request: FakeRequest) => AsyncIterable<unknown>
  send?: (request: FakeRequest) => Promise<{ stream: AsyncIterable<unknown> }>
}

/** A model that plays a script and keeps the requests that reach it. */
export function scriptedModel(script: ModelScript = {}): FakeModel & { requests: FakeRequest[] } {
  const requests: FakeRequest[] = []
  const answer = script.answer ?? (() => parts(new LanguageModelTextPart('Hello.')))
  return {
    vendor: script.vendor ?? 'copilot',
    id: script.id ?? 'gpt-4o',
    family: script.family ?? 'gpt-4o',
    version: '1',
    name: 'GPT-4o',
    maxInputTokens: script.maxInputTokens ?? 64_000,
    requests,
    sendRequest: async (messages, options, token) => {
      const request = { messages, options, token }
      requests.push(request)
      return script.send === undefined ? { stream: answer(request) } : await script.send(request)
    },
    countTokens: async (text) => text.length,
  }
}

export async function* parts(...items: unknown[]): AsyncGenerator {
  for (const item of items) yield item
}

/** A stream that yields its parts and then nothing more until it is cancelled; cancelled ones end in silence. */
export async function* hangs(token: FakeRequest['token'], ...items: unknown[]): AsyncGenerator {
  yield* items
  await new Promise<void>((resolve) => token.onCancellationRequested(() => resolve()))
}

export function ask(id: string, text = 'Hi', more: object = {}): object {
  return {
    type: 'ask',
    id,
    model: { vendor: 'copilot', id: 'gpt-4o' },
    messages: [{ role: 'user', parts: [{ type: 'text', text }] }],
    tools: [],
    tool_mode: 'auto',
    options: {},
    caller: 'me',
    request: `req-${id}`,
    round: 1,
    ...more,
  }
}
