/**
 * Calls the gateway's HTTP API for the editor: lists models, streams chat completions.
 *
 * Requests are made only while the bridge is connected, because only then is it proven who listens at the address:
 * the key is never sent to a stranger.
 */

import { isObject } from '../protocol.ts'
import { readEvents } from './sse.ts'

export interface GatewayModel {
  id: string
  owner: string
  /** Tokens of input and output together, if the gateway knows. */
  context: number | undefined
  tools: boolean
  images: boolean
}

export interface ChatDelta {
  text?: string
  thinking?: string
  calls?: CallDelta[]
  finish?: string
  usage?: Record<string, unknown>
}

export interface CallDelta {
  index: number
  id?: string
  name?: string
  arguments?: string
}

/** The gateway answered with an error, or not at all. */
export class GatewayFailure extends Error {
  readonly status: number
  readonly code: string | undefined

  constructor(message: string, status: number, code?: string) {
    super(message)
    this.status = status
    this.code = code
  }
}

export interface GatewayAccess {
  baseUrl(): string
  key(): Promise<string | undefined>
  /** Whether the program at the address has proven to be the gateway. */
  proven(): boolean
  /** The window on whose behalf requests are made. */
  windowId(): string
}

export class GatewayClient {
  readonly #access: GatewayAccess
  readonly #userAgent: string

  constructor(access: GatewayAccess, version: string) {
    this.#access = access
    this.#userAgent = `toolgate-vscode/${version}`
  }

  /** The headers that every request of this window carries. */
  async headers(): Promise<Record<string, string>> {
    const key = await this.#access.key()
    const identity = { 'user-agent': this.#userAgent, 'x-toolgate-editor': this.#access.windowId() }
    return { ...identity, ...(key === undefined ? {} : { authorization: `Bearer ${key}` }) }
  }

  /** List the models, with what they can do. */
  async models(): Promise<GatewayModel[]> {
    const [models, tags] = await Promise.all([this.#json('/v1/models'), this.#json('/api/tags')])
    const capabilities = new Map(listOf(tags['models']).map((tag) => [String(tag['name']), tag['capabilities']]))
    return listOf(models['data']).map((model) => {
      const id = String(model['id'])
      const can = capabilities.get(id) ?? capabilities.get(`${id}:latest`)
      const flags = Array.isArray(can) ? can : []
      const context = model['context_length']
      return {
        id,
        owner: typeof model['owned_by'] === 'string' ? model['owned_by'] : '',
        context: typeof context === 'number' ? context : undefined,
        tools: !Array.isArray(can) || flags.includes('tools'),
        images: flags.includes('vision'),
      }
    })
  }

  /** Stream an answer of Chat Completions. */
  async *chat(body: object, signal: AbortSignal): AsyncGenerator<ChatDelta> {
    const response = await this.#request('/v1/chat/completions', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    })
    if (response.body === null) throw new GatewayFailure('The gateway sent an empty answer.', response.status)
    let ended = false
    for await (const data of readEvents(response.body)) {
      if (data === '[DONE]') return
      const chunk: unknown = JSON.parse(data)
      if (!isObject(chunk)) continue
      if (isObject(chunk['error'])) throw failureOf(chunk['error'], response.status)
      const delta = decodeChunk(chunk)
      ended ||= delta.finish !== undefined
      yield delta
    }
    if (!ended) throw new GatewayFailure('The connection to the gateway broke in the middle of the answer.', response.status)
  }

  async #json(path: string): Promise<Record<string, unknown>> {
    const response = await this.#request(path, { signal: AbortSignal.timeout(30_000) })
    const body: unknown = await response.json()
    if (!isObject(body)) throw new GatewayFailure(`The gateway answered ${path} with what is no object.`, response.status)
    return body
  }

  async #request(path: string, init: RequestInit): Promise<Response> {
    const baseUrl = this.#access.baseUrl()
    const headers = { ...(await this.headers()), ...(init.headers as Record<string, string> | undefined) }
    // The address may have changed while the key was read.
    if (!this.#access.proven() || this.#access.baseUrl() !== baseUrl)
      throw new GatewayFailure('Toolgate is not connected. Open the Toolgate view to see why.', 0)
    let response
    try {
      response = await fetch(baseUrl + path, { ...init, headers, redirect: 'error' })
    } catch (error) {
      if (init.signal?.aborted === true) throw error
      throw new GatewayFailure('The gateway does not answer. Open the Toolgate view to see why.', 0)
    }
    if (response.ok) return response
    throw await readFailure(response)
  }
}

async function readFailure(response: Response): Promise<GatewayFailure> {
  const text = await response.text()
  try {
    const body: unknown = JSON.parse(text)
    if (isObject(body) && isObject(body['error'])) return failureOf(body['error'], response.status)
  } catch {
    // not JSON: say what there is
  }
  return new GatewayFailure(`The gateway answered with status ${response.status}: ${text.slice(0, 300)}`, response.status)
}

function failureOf(error: Record<string, unknown>, status: number): GatewayFailure {
  const message = typeof error['message'] === 'string' ? error['message'] : JSON.stringify(error)
  const hint = status === 401 ? ' Run "Toolgate: Set API Key".' : ''
  return new GatewayFailure(message + hint, status, typeof error['code'] === 'string' ? error['code'] : undefined)
}

function decodeChunk(chunk: Record<string, unknown>): ChatDelta {
  const usage = isObject(chunk['usage']) ? { usage: chunk['usage'] } : {}
  const choice = listOf(chunk['choices'])[0]
  const delta = choice?.['delta']
  if (choice === undefined || !isObject(delta)) return usage
  const finish = typeof choice['finish_reason'] === 'string' ? { finish: choice['finish_reason'] } : {}
  const text = typeof delta['content'] === 'string' ? delta['content'] : delta['refusal']
  return {
    ...usage,
    ...finish,
    ...(typeof text === 'string' && text !== '' ? { text } : {}),
    ...(typeof delta['reasoning_content'] === 'string' ? { thinking: delta['reasoning_content'] } : {}),
    ...(Array.isArray(delta['tool_calls']) ? { calls: listOf(delta['tool_calls']).map(decodeCall) } : {}),
  }
}

function decodeCall(call: Record<string, unknown>): CallDelta {
  const made = isObject(call['function']) ? call['function'] : {}
  return {
    index: Number(call['index'] ?? 0),
    ...(typeof call['id'] === 'string' ? { id: call['id'] } : {}),
    ...(typeof made['name'] === 'string' ? { name: made['name'] } : {}),
    ...(typeof made['arguments'] === 'string' ? { arguments: made['arguments'] } : {}),
  }
}

function listOf(value: unknown): Record<string, unknown>[] {
  return Array.isArray(value) ? value.filter(isObject) : []
}
