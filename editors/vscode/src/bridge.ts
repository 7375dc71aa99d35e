/**
 * The bridge: joins the connection with what this window lends, and hands frames to those who answer them.
 */

import * as vscode from 'vscode'
import type { Activity } from './activity.ts'
import type { ApprovalInbox } from './approvals.ts'
import { BridgeConnection, TIMINGS } from './connection.ts'
import type { ConnectionState, Endpoint, Timings } from './connection.ts'
import { Exchanges } from './lending/exchanges.ts'
import { type Denials, ModelLender } from './lending/models.ts'
import { ToolLender } from './lending/tools.ts'
import { MAX_FRAME } from './protocol.ts'
import type { EditorFrame, GatewayFrame, Lends } from './protocol.ts'
import type { Settings } from './settings.ts'
import { WindowReporter } from './window.ts'

export interface BridgeParts {
  settings: Settings
  access: vscode.LanguageModelAccessInformation
  denials: Denials
  activity: Activity
  approvals: ApprovalInbox
  version: string
  endpoint: () => Promise<Endpoint>
  timings?: Timings
}

export interface BridgeEvents {
  connectionChanged(state: ConnectionState): void
  lendingChanged(): void
  denied(vendor: string): void
  capped(message: string): void
}

export class Bridge implements vscode.Disposable {
  readonly connection: BridgeConnection
  readonly models: ModelLender
  readonly tools: ToolLender
  readonly window: WindowReporter
  readonly #parts: BridgeParts
  readonly #events: BridgeEvents
  readonly #exchanges: Exchanges
  #revision = 0

  constructor(parts: BridgeParts, events: BridgeEvents) {
    this.#parts = parts
    this.#events = events
    this.connection = new BridgeConnection(
      {
        endpoint: parts.endpoint,
        register: () => this.#register(),
        roundTrip: (n) => vscode.commands.executeCommand('setContext', 'toolgate.heartbeat', n),
        stateChanged: (state) => this.#stateChanged(state),
        received: (frame) => this.#received(frame),
      },
      parts.timings ?? TIMINGS,
    )
    this.models = new ModelLender(parts.access, parts.denials, () => this.#lendingChanged('models'))
    this.tools = new ToolLender(
      () => parts.settings.get('lending.excludedTools'),
      () => this.#lendingChanged('tools'),
    )
    this.window = new WindowReporter(() => this.sendWindow())
    this.#exchanges = new Exchanges(
      this.connection,
      { models: this.models, tools: this.tools, denials: parts.denials },
      parts.activity,
      events,
    )
  }

  get lends(): Lends {
    return {
      models: this.models.enabled,
      tools: this.tools.enabled,
      approvals: this.#parts.settings.get('approvals.enabled'),
    }
  }

  /** Lend what the settings say, and take back at once what they no longer say. */
  applyLending(): void {
    const { settings } = this.#parts
    const [models, tools] = [settings.get('lending.models'), settings.get('lending.tools')]
    const stopped = (this.models.enabled && !models) || (this.tools.enabled && !tools)
    if (this.models.enabled !== models) this.models.enabled = models
    if (this.tools.enabled !== tools) this.tools.enabled = tools
    this.tools.refresh()
    if (stopped) this.#exchanges.cancelAll()
    this.sendWindow()
    this.#events.lendingChanged()
  }

  sendWindow(): void {
    this.connection.send({ type: 'window', window: this.window.state, lends: this.lends })
  }

  dispose(): void {
    this.#exchanges.cancelAll()
    this.connection.stop()
    this.models.dispose()
    this.tools.dispose()
    this.window.dispose()
  }

  #register(): Extract<EditorFrame, { type: 'register' }> {
    return {
      type: 'register',
      editor: { name: vscode.env.appName, version: vscode.version },
      extension: { version: this.#parts.version },
      window: this.window.state,
      lends: this.lends,
      max_frame: MAX_FRAME,
    }
  }

  #stateChanged(state: ConnectionState): void {
    if (state.kind === 'connected') {
      this.#send('models')
      this.#send('tools')
    } else {
      this.#exchanges.cancelAll()
      this.#parts.approvals.reset()
    }
    this.#events.connectionChanged(state)
  }

  #received(frame: GatewayFrame): void {
    switch (frame.type) {
      case 'ask':
      case 'invoke':
      case 'count':
        return void this.#exchanges.answer(frame)
      case 'cancel':
        return this.#exchanges.cancel(frame.id)
      case 'pause':
      case 'resume':
        return this.#exchanges.pause(frame.id, frame.type === 'pause')
      default:
        return this.#parts.approvals.received(frame)
    }
  }

  #lendingChanged(what: 'models' | 'tools'): void {
    this.#send(what)
    this.#events.lendingChanged()
  }

  #send(what: 'models' | 'tools'): void {
    this.#revision += 1
    this.connection.send({ type: what, rev: this.#revision, items: [...this[what].items] } as EditorFrame)
  }
}
