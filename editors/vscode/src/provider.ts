/**
 * Offers the gateway's models to the editor's chat, and streams their answers over Chat Completions.
 */

import * as vscode from 'vscode'
import { type CallDelta, type GatewayClient, GatewayFailure, type GatewayModel } from './gateway/client.ts'
import { countTokens, MESSAGE_TOKENS, PICTURE_TOKENS } from './gateway/tokens.ts'
import { textOfTsx, thinkingPart } from './lending/parts.ts'
import { isObject } from './protocol.ts'

const DEFAULT_CONTEXT = 128_000
const MOST_OUTPUT = 16_384
const REFRESH_MILLISECONDS = 30_000
const SYSTEM_ROLE = 3 // the editor's own chat sends it; the stable enum does not name it
const OWN_FIELDS = new Set(['model', 'messages', 'tools', 'tool_choice', 'stream', 'stream_options'])
const EDITOR_MODEL = /^vscode\// // a model that an editor lends to the gateway

export class GatewayModelProvider implements vscode.LanguageModelChatProvider, vscode.Disposable {
  readonly #client: GatewayClient
  readonly #changed = new vscode.EventEmitter<void>()
  readonly onDidChangeLanguageModelChatInformation = this.#changed.event
  #models: vscode.LanguageModelChatInformation[] = []
  #available = false
  #turn = 0
  #timer: NodeJS.Timeout | undefined
  /** Why the models could not be listed. */
  problem: string | undefined

  constructor(client: GatewayClient) {
    this.#client = client
  }

  get models(): readonly vscode.LanguageModelChatInformation[] {
    return this.#models
  }

  /** Offer the models while the gateway is there. */
  set available(available: boolean) {
    this.#available = available
    clearInterval(this.#timer)
    if (available) this.#timer = setInterval(() => void this.refresh(), REFRESH_MILLISECONDS)
    void this.refresh()
  }

  /** List the models again, and report a change; a later call overtakes an earlier one that still waits. */
  async refresh(): Promise<void> {
    const turn = ++this.#turn
    const models = this.#available ? await this.#list() : []
    if (turn !== this.#turn) return
    if (JSON.stringify(models) === JSON.stringify(this.#models)) return
    this.#models = models
    this.#changed.fire()
  }

  async provideLanguageModelChatInformation(
    options: vscode.PrepareLanguageModelChatModelOptions,
  ): Promise<vscode.LanguageModelChatInformation[]> {
    if (!options.silent) await this.refresh()
    return this.#models
  }

  async provideLanguageModelChatResponse(
    model: vscode.LanguageModelChatInformation,
    messages: readonly vscode.LanguageModelChatRequestMessage[],
    options: vscode.ProvideLanguageModelChatResponseOptions,
    progress: vscode.Progress<vscode.LanguageModelResponsePart>,
    token: vscode.CancellationToken,
  ): Promise<void> {
    const abort = new AbortController()
    const subscription = token.onCancellationRequested(() => abort.abort())
    try {
      await this.#answer(encodeRequest(model.id, messages, options), progress, abort.signal)
    } catch (error) {
      if (token.isCancellationRequested) throw new vscode.CancellationError()
      throw shownError(error)
    } finally {
      subscription.dispose()
    }
  }

  async provideTokenCount(
    _model: vscode.LanguageModelChatInformation,
    text: string | vscode.LanguageModelChatRequestMessage,
  ): Promise<number> {
    return typeof text === 'string' ? countTokens(text) : MESSAGE_TOKENS + sum(text.content.map(countPart))
  }

  dispose(): void {
    clearInterval(this.#timer)
    this.#changed.dispose()
  }

  async #list(): Promise<vscode.LanguageModelChatInformation[]> {
    try {
      const models = await this.#client.models()
      this.problem = undefined
      return models.filter(({ id }) => !EDITOR_MODEL.test(id)).map(describe)
    } catch (error) {
      this.problem = (error as Error).message
      return []
    }
  }

  async #answer(
    body: object,
    progress: vscode.Progress<vscode.LanguageModelResponsePart>,
    signal: AbortSignal,
  ): Promise<void> {
    const calls = new CallAssembler()
    const Thinking = thinkingPart()
    for await (const delta of this.#client.chat(body, signal)) {
      if (delta.thinking && Thinking !== undefined)
        progress.report(new Thinking(delta.thinking) as unknown as vscode.LanguageModelTextPart)
      if (delta.text) progress.report(new vscode.LanguageModelTextPart(delta.text))
      for (const call of delta.calls ?? []) calls.add(call)
      if (delta.finish !== undefined) for (const call of calls.take()) progress.report(call)
      if (delta.finish === 'content_filter') throw vscode.LanguageModelError.Blocked('The model\'s provider filtered the answer.')
      if (delta.usage !== undefined) progress.report(vscode.LanguageModelDataPart.json(delta.usage, 'usage'))
    }
  }
}

/** Describe a model to the editor, which counts input and output apart. */
function describe(model: GatewayModel): vscode.LanguageModelChatInformation {
  const context = model.context ?? DEFAULT_CONTEXT
  const output = Math.min(MOST_OUTPUT, Math.floor(context / 4))
  return {
    id: model.id,
    name: model.id,
    family: model.id,
    version: '1',
    detail: 'Toolgate',
    tooltip: `${model.id} through Toolgate${model.owner === '' ? '' : ` (${model.owner})`}`,
    maxInputTokens: context - output,
    maxOutputTokens: output,
    capabilities: { toolCalling: model.tools, imageInput: model.images },
  }
}

/** Encode a request of the editor's chat as Chat Completions. */
export function encodeRequest(
  model: string,
  messages: readonly vscode.LanguageModelChatRequestMessage[],
  options: vscode.ProvideLanguageModelChatResponseOptions,
): object {
  const tools = (options.tools ?? []).map((tool) => ({
    type: 'function',
    function: {
      name: tool.name,
      description: tool.description,
      parameters: tool.inputSchema ?? { type: 'object', properties: {} },
    },
  }))
  const required = options.toolMode === vscode.LanguageModelChatToolMode.Required
  return {
    ...publicOptions(options.modelOptions ?? {}),
    model,
    messages: messages.flatMap(encodeMessage),
    ...(tools.length === 0 ? {} : { tools, tool_choice: required ? 'required' : 'auto' }),
  }
}

/** Drop the editor's private options, which begin with an underscore, and what this request sets itself. */
function publicOptions(options: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(options).filter(([name]) => !name.startsWith('_') && !OWN_FIELDS.has(name)))
}

/** Encode one message; results of tools become messages of their own, pictures in them a message of the user. */
function encodeMessage(message: vscode.LanguageModelChatRequestMessage): object[] {
  const results = message.content.filter((part) => part instanceof vscode.LanguageModelToolResultPart)
  const others = message.content.filter((part) => !(part instanceof vscode.LanguageModelToolResultPart))
  const name = message.name ? { name: message.name } : {}
  const encoded: object[] = results.map((result) => ({
    role: 'tool',
    tool_call_id: result.callId,
    content: result.content.map(textOf).join(''),
  }))
  const pictures = results.flatMap((result) => result.content.flatMap(encodePicture))
  if (pictures.length > 0)
    encoded.push({ role: 'user', content: [{ type: 'text', text: 'Pictures from the tool results:' }, ...pictures] })
  if (others.length === 0) return encoded
  if (message.role === vscode.LanguageModelChatMessageRole.Assistant) return [encodeAssistant(others, name), ...encoded]
  if ((message.role as number) === SYSTEM_ROLE)
    return [...encoded, { role: 'system', content: others.map(textOf).join(''), ...name }]
  const content = encodeContent(others)
  return content.length === 0 ? encoded : [...encoded, { role: 'user', content, ...name }]
}

function encodeAssistant(parts: unknown[], name: object): object {
  const calls = parts.filter((part) => part instanceof vscode.LanguageModelToolCallPart)
  const Thinking = thinkingPart()
  const thoughts = parts
    .filter((part) => Thinking !== undefined && part instanceof Thinking)
    .map((part) => [(part as { value: string | string[] }).value].flat().join(''))
    .join('')
  return {
    role: 'assistant',
    content: parts.map(textOf).join(''),
    ...name,
    ...(thoughts === '' ? {} : { reasoning_content: thoughts }),
    ...(calls.length === 0
      ? {}
      : {
          tool_calls: calls.map((call) => ({
            id: call.callId,
            type: 'function',
            function: { name: call.name, arguments: JSON.stringify(call.input) },
          })),
        }),
  }
}

function encodeContent(parts: unknown[]): string | object[] {
  const content = parts.flatMap((part): ({ type: 'text'; text: string } | Picture)[] => {
    const text = textOf(part)
    return text === '' ? encodePicture(part) : [{ type: 'text', text }]
  })
  return content.every((part) => part.type === 'text') ? content.map(({ text }) => text).join('') : content
}

interface Picture {
  type: 'image_url'
  image_url: { url: string }
}

function encodePicture(part: unknown): Picture[] {
  if (!(part instanceof vscode.LanguageModelDataPart) || !part.mimeType.startsWith('image/')) return []
  const url = `data:${part.mimeType};base64,${Buffer.from(part.data).toString('base64')}`
  return [{ type: 'image_url', image_url: { url } }]
}

function textOf(part: unknown): string {
  if (part instanceof vscode.LanguageModelTextPart) return part.value
  if (part instanceof vscode.LanguageModelPromptTsxPart) return textOfTsx(part.value)
  if (part instanceof vscode.LanguageModelDataPart && /^text\/|^application\/json$/.test(part.mimeType))
    return Buffer.from(part.data).toString('utf8')
  return ''
}

function countPart(part: unknown): number {
  if (part instanceof vscode.LanguageModelToolCallPart) return countTokens(part.name + JSON.stringify(part.input))
  if (part instanceof vscode.LanguageModelToolResultPart) return sum(part.content.map(countPart))
  if (part instanceof vscode.LanguageModelDataPart && part.mimeType.startsWith('image/')) return PICTURE_TOKENS
  return countTokens(textOf(part))
}

/** Assembles calls from their deltas, in the order of their indexes. */
class CallAssembler {
  readonly #calls = new Map<number, { id: string; name: string; arguments: string[] }>()

  add(delta: CallDelta): void {
    const call = this.#calls.get(delta.index) ?? { id: '', name: '', arguments: [] }
    this.#calls.set(delta.index, call)
    call.id ||= delta.id ?? ''
    call.name ||= delta.name ?? ''
    if (delta.arguments !== undefined) call.arguments.push(delta.arguments)
  }

  take(): vscode.LanguageModelToolCallPart[] {
    const calls = [...this.#calls.values()]
    this.#calls.clear()
    return calls.map((call) => new vscode.LanguageModelToolCallPart(call.id, call.name, parseArguments(call)))
  }
}

/** Parse a call's arguments; broken ones fail the answer, because a tool must not run with guessed ones. */
function parseArguments(call: { name: string; arguments: string[] }): object {
  const text = call.arguments.join('')
  if (text.trim() === '') return {}
  try {
    const input: unknown = JSON.parse(text)
    if (isObject(input)) return input
  } catch {
    // reported below
  }
  throw new GatewayFailure(`The model called ${call.name} with arguments that are no JSON object.`, 200)
}

/** Make an error that the chat shows without a stack. */
function shownError(error: unknown): Error {
  const shown = toLanguageModelError(error)
  delete shown.stack
  Object.defineProperty(shown, 'stack', { value: undefined })
  return shown
}

function toLanguageModelError(error: unknown): Error {
  if (error instanceof vscode.LanguageModelError) return error
  const message = error instanceof Error ? error.message : String(error)
  if (!(error instanceof GatewayFailure)) return new Error(message)
  if (error.status === 401 || error.status === 403) return vscode.LanguageModelError.NoPermissions(message)
  if (error.status === 404) return vscode.LanguageModelError.NotFound(message)
  if (error.code === 'content_filter') return vscode.LanguageModelError.Blocked(message)
  return new Error(message)
}

function sum(numbers: number[]): number {
  return numbers.reduce((total, number) => total + number, 0)
}
