/**
 * Answers what the gateway asks of this window: asks of models, invocations of tools, token counts.
 *
 * Each exchange ends with exactly one `done` or `error`, whatever happens. A lost connection cancels all of them.
 * Knows the editor's API and frames. It must not know sockets or views.
 */

import * as vscode from 'vscode'
import type { Activity } from '../activity.ts'
import { BridgeError, MAX_OPEN_IDS } from '../protocol.ts'
import type { Ask, Count, EditorFrame, Invoke, Usage, WirePart } from '../protocol.ts'
import { mapModelError, mapToolError, needsTurn } from './errors.ts'
import type { Denials, ModelLender } from './models.ts'
import { decodePart, decodeToolResult, decodeUsage, encodeMessage } from './parts.ts'
import type { ToolLender } from './tools.ts'

const CONSENT_AFTER = 1000 // `sendRequest` resolves within milliseconds unless a dialog is open
const FLUSH_EVERY = 10
const DEFAULT_SECONDS = 120
const DEFAULT_JUSTIFICATION = 'A client of Toolgate on this machine asks this model. You can stop lending at any time.'

/** What exchanges need of the connection. */
export interface FrameSender {
  send(frame: EditorFrame): void
  drained(): Promise<void>
}

export interface ExchangeEvents {
  /** The person refused to lend the models of a provider. */
  denied(vendor: string): void
  /** A cap of the person stopped a request. */
  capped(message: string): void
}

export class Exchanges {
  readonly #sender: FrameSender
  readonly #models: ModelLender
  readonly #tools: ToolLender
  readonly #denials: Denials
  readonly #activity: Activity
  readonly #events: ExchangeEvents
  readonly #open = new Map<string, vscode.CancellationTokenSource>()
  readonly #paused = new Map<string, () => void>()

  constructor(
    sender: FrameSender,
    lenders: { models: ModelLender; tools: ToolLender; denials: Denials },
    activity: Activity,
    events: ExchangeEvents,
  ) {
    this.#sender = sender
    this.#models = lenders.models
    this.#tools = lenders.tools
    this.#denials = lenders.denials
    this.#activity = activity
    this.#events = events
  }

  /** Answer one frame. */
  async answer(frame: Ask | Invoke | Count): Promise<void> {
    const source = new vscode.CancellationTokenSource()
    try {
      if (this.#open.has(frame.id)) throw new BridgeError('rejected', `The id ${frame.id} is in use.`)
      if (this.#open.size >= MAX_OPEN_IDS)
        throw new BridgeError('rate_limited', `This window answers ${MAX_OPEN_IDS} requests at a time.`, 1)
    } catch (error) {
      return this.#fail(frame.id, error as BridgeError)
    }
    this.#open.set(frame.id, source)
    try {
      if (frame.type === 'ask') await this.#ask(frame, source)
      else if (frame.type === 'invoke') await this.#invoke(frame, source)
      else await this.#count(frame, source.token)
    } finally {
      this.#open.delete(frame.id)
      this.#paused.delete(frame.id)
      source.dispose()
    }
  }

  cancel(id: string): void {
    this.#open.get(id)?.cancel()
  }

  /** Stop reading the model's answer, or go on with it: the client at the other end is slow. */
  pause(id: string, paused: boolean): void {
    if (!paused) {
      this.#paused.get(id)?.()
      this.#paused.delete(id)
    } else if (this.#open.has(id) && !this.#paused.has(id)) this.#paused.set(id, () => undefined)
  }

  cancelAll(): void {
    for (const source of this.#open.values()) source.cancel()
  }

  async #ask(ask: Ask, source: vscode.CancellationTokenSource): Promise<void> {
    const { id } = ask
    const request = ask.request ?? id
    const deltas = new DeltaSender(id, this.#sender)
    let usage: Usage | undefined
    let failure: BridgeError | undefined
    try {
      const model = this.#lentModel(ask)
      const name = `${model.vendor}/${model.family || model.id}`
      const use = { kind: 'model', name, caller: callerOf(ask), request, round: ask.round ?? 1 } as const
      this.#activity.begin(id, { ...use, cancel: () => source.cancel() })
      const response = await this.#sendRequest(model, ask, source.token)
      for await (const part of untilCancelled(response.stream, source.token)) {
        usage = decodeUsage(part) ?? usage
        const wire = decodePart(part)
        if (wire !== undefined) await deltas.add(wire)
        if (this.#paused.has(id)) await rejectWhenCancelled(this.#resumed(id), source.token)
      }
      deltas.flush()
      this.#sender.send({ type: 'done', id, ...(usage === undefined ? {} : { usage }) })
    } catch (error) {
      failure = source.token.isCancellationRequested
        ? new BridgeError('cancelled', 'The request was cancelled.')
        : mapModelError(error, hasPictures(ask))
      deltas.dispose()
      this.#modelFailed(ask, failure)
    } finally {
      deltas.dispose()
      this.#activity.end(id, request, {
        ...(usage === undefined ? {} : { inputTokens: usage.input, outputTokens: usage.output }),
        ...(failure === undefined ? {} : { problem: failure.message }),
      })
    }
  }

  async #resumed(id: string): Promise<void> {
    await new Promise<void>((resolve) => this.#paused.set(id, resolve))
  }

  #lentModel(frame: Ask | Count): vscode.LanguageModelChat {
    if (!this.#models.enabled) throw new BridgeError('not_found', 'This window does not lend its models.')
    const model = this.#models.find(frame.model)
    if (model === undefined)
      throw new BridgeError('not_found', `The editor has no model ${frame.model.vendor}/${frame.model.id} any more.`)
    if (this.#denials.has(model.vendor))
      throw new BridgeError(
        'no_permission',
        `The person denied access to the models of ${model.vendor}. "Toolgate: Ask Again for Model Access" in the editor changes that.`,
      )
    return model
  }

  async #sendRequest(
    model: vscode.LanguageModelChat,
    ask: Ask,
    token: vscode.CancellationToken,
  ): Promise<vscode.LanguageModelChatResponse> {
    const { id } = ask
    const options: vscode.LanguageModelChatRequestOptions = {
      justification: ask.justification ?? DEFAULT_JUSTIFICATION,
      modelOptions: ask.options ?? {},
      tools: (ask.tools ?? []).map((tool) => ({
        name: tool.name,
        description: tool.description,
        ...(tool.input_schema ? { inputSchema: tool.input_schema } : {}),
      })),
      toolMode:
        ask.tool_mode === 'required' ? vscode.LanguageModelChatToolMode.Required : vscode.LanguageModelChatToolMode.Auto,
    }
    const slow = setTimeout(() => {
      this.#activity.waiting(id, true)
      this.#sender.send({ type: 'waiting', id, for: 'consent' })
    }, CONSENT_AFTER)
    try {
      const messages = ask.messages.map(encodeMessage)
      const response = await rejectWhenCancelled(model.sendRequest(messages, options, token), token)
      this.#sender.send({ type: 'started', id })
      return response
    } finally {
      clearTimeout(slow)
      this.#activity.waiting(id, false)
    }
  }

  #modelFailed(ask: Ask, failure: BridgeError): void {
    if (failure.code === 'no_permission' && !this.#denials.has(ask.model.vendor)) {
      this.#denials.add(ask.model.vendor)
      this.#events.denied(ask.model.vendor)
      void this.#models.refresh()
    }
    if (failure.code === 'not_found') void this.#models.refresh()
    if (failure.code === 'quota' && failure.message.includes('toolgate.lending.')) this.#events.capped(failure.message)
    this.#fail(ask.id, failure)
  }

  async #invoke(invoke: Invoke, source: vscode.CancellationTokenSource): Promise<void> {
    const { id, tool } = invoke
    const request = invoke.request ?? id
    const seconds = invoke.seconds ?? DEFAULT_SECONDS
    let failure: BridgeError | undefined
    const timedOut = new AbortController()
    const deadline = setTimeout(() => {
      timedOut.abort()
      source.cancel()
    }, seconds * 1000)
    try {
      if (!this.#tools.has(tool)) throw new BridgeError('not_found', `This window does not lend a tool ${tool}.`)
      this.#activity.begin(id, { kind: 'tool', name: tool, caller: callerOf(invoke), request, cancel: () => source.cancel() })
      this.#sender.send({ type: 'started', id })
      const options = { input: invoke.input, toolInvocationToken: undefined }
      const result = await rejectWhenCancelled(vscode.lm.invokeTool(tool, options, source.token), source.token)
      const parts = decodeToolResult(result.content)
      if (saysNeedsTurn(parts)) throw new BridgeError('needs_turn', `The tool ${tool} works only within a turn of the editor's chat.`)
      this.#sender.send({ type: 'done', id, parts })
    } catch (error) {
      failure = timedOut.signal.aborted
        ? new BridgeError('timeout', `The tool ${tool} did not end within ${seconds} s. A dialog may still be open in the editor.`)
        : mapToolError(error)
      if (failure.code === 'needs_turn') this.#tools.exclude(tool)
      this.#fail(id, failure)
    } finally {
      clearTimeout(deadline)
      this.#activity.end(id, request, failure === undefined ? {} : { problem: failure.message })
    }
  }

  async #count(count: Count, token: vscode.CancellationToken): Promise<void> {
    try {
      const model = this.#lentModel(count)
      const tokens: number[] = []
      for (const text of count.texts) tokens.push(await rejectWhenCancelled(model.countTokens(text, token), token))
      this.#sender.send({ type: 'done', id: count.id, tokens })
    } catch (error) {
      this.#fail(count.id, mapModelError(error, false))
    }
  }

  #fail(id: string, { code, message, retryAfter }: BridgeError): void {
    this.#sender.send({ type: 'error', id, code, message, ...(retryAfter === undefined ? {} : { retry_after: retryAfter }) })
  }
}

/** Collects parts of an answer: the first is sent at once, later ones together, a few milliseconds apart. */
class DeltaSender {
  readonly #id: string
  readonly #sender: FrameSender
  #parts: WirePart[] = []
  #sentAt = 0
  #timer: NodeJS.Timeout | undefined
  #failure: BridgeError | undefined

  constructor(id: string, sender: FrameSender) {
    this.#id = id
    this.#sender = sender
  }

  async add(part: WirePart): Promise<void> {
    this.#parts.push(part)
    if (Date.now() - this.#sentAt < FLUSH_EVERY) {
      this.#timer ??= setTimeout(() => this.#flushLate(), FLUSH_EVERY)
      return
    }
    this.flush()
    await this.#sender.drained()
  }

  /** Send what was collected; fails if that, or what the timer sent before, is too large. */
  flush(): void {
    this.dispose()
    const parts = joinText(this.#parts)
    this.#parts = []
    this.#sentAt = Date.now()
    if (this.#failure !== undefined) throw this.#failure
    if (parts.length > 0) this.#sender.send({ type: 'delta', id: this.#id, parts })
  }

  dispose(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  /** Flush from the timer, where a failure has to wait for the next call. */
  #flushLate(): void {
    try {
      this.flush()
    } catch (error) {
      this.#failure = error as BridgeError
    }
  }
}

function joinText(parts: WirePart[]): WirePart[] {
  const joined: WirePart[] = []
  for (const part of parts) {
    const last = joined.at(-1)
    if (part.type === 'text' && last?.type === 'text') joined[joined.length - 1] = { type: 'text', text: last.text + part.text }
    else joined.push(part)
  }
  return joined
}

/** Settle as the promise does, or reject at the moment of cancellation: some providers never notice it. */
function rejectWhenCancelled<T>(promise: PromiseLike<T>, token: vscode.CancellationToken): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const subscription = token.onCancellationRequested(() => reject(new vscode.CancellationError()))
    if (token.isCancellationRequested) reject(new vscode.CancellationError())
    promise.then(
      (value) => {
        subscription.dispose()
        resolve(value)
      },
      (error: unknown) => {
        subscription.dispose()
        // eslint-disable-next-line @typescript-eslint/prefer-promise-reject-errors -- the editor rejects with `{}` for bad pictures
        reject(error)
      },
    )
  })
}

/** Yield the items of a stream until the token is cancelled, and then fail, though the stream may end in silence. */
async function* untilCancelled<T>(stream: AsyncIterable<T>, token: vscode.CancellationToken): AsyncGenerator<T> {
  const iterator = stream[Symbol.asyncIterator]()
  for (;;) {
    const next = await rejectWhenCancelled(iterator.next(), token)
    if (token.isCancellationRequested) throw new vscode.CancellationError()
    if (next.done === true) return
    yield next.value
  }
}

/** Whether a result is nothing but a short complaint that there is no turn. */
function saysNeedsTurn(parts: WirePart[]): boolean {
  const [first] = parts
  return parts.length === 1 && first?.type === 'text' && first.text.length < 80 && needsTurn(first.text)
}

function hasPictures(ask: Ask): boolean {
  return ask.messages.some((message) =>
    message.parts.some((part) => part.type === 'data' || (part.type === 'tool_result' && part.parts.some(({ type }) => type === 'data'))),
  )
}

function callerOf({ caller }: Ask | Invoke): string {
  return caller ?? 'anonymous'
}
