/**
 * The frames of `toolgate-bridge.v1`: JSON objects in text frames, with a `type` and mostly an `id`.
 *
 * Knows what frames look like. It must not know the editor or the socket.
 */

export const PROTOCOL = 'toolgate-bridge.v1'
export const MAX_FRAME = 16 * 1024 * 1024
export const MAX_OPEN_IDS = 64

export const CloseCode = {
  normal: 1000,
  notAFrame: 4400,
  proof: 4401,
  silence: 4408,
  sameWindow: 4409,
  windowGone: 4410,
  protocol: 4426,
} as const

export type ErrorCode =
  | 'not_found'
  | 'no_permission'
  | 'blocked'
  | 'rate_limited'
  | 'quota'
  | 'too_long'
  | 'cancelled'
  | 'timeout'
  | 'rejected'
  | 'needs_turn'
  | 'failed'
  | 'too_large'

export type WirePart =
  | { type: 'text'; text: string }
  | { type: 'data'; mime: string; data: string }
  | { type: 'tool_call'; call_id: string; name: string; input: object }
  | { type: 'tool_result'; call_id: string; parts: WirePart[]; is_error?: boolean | null }
  | { type: 'thinking'; text: string; id?: string | null }

export interface ModelKey {
  vendor: string
  id: string
}

export interface WireMessage {
  role: 'user' | 'assistant'
  parts: WirePart[]
  name?: string | null
}

export interface WireTool {
  name: string
  description: string
  input_schema?: object | null
}

export interface Challenge {
  type: 'challenge'
  protocols: string[]
  nonce: string
  auth: 'token' | 'key'
}

export interface Welcome {
  type: 'welcome'
  protocol: string
  proof?: string | null
  session: string
  heartbeat: number
  max_frame: number
  gateway?: { name?: string; version?: string } | null
}

export interface Ask {
  type: 'ask'
  id: string
  model: ModelKey
  messages: WireMessage[]
  tools?: WireTool[] | null
  tool_mode?: 'auto' | 'required' | null
  options?: Record<string, unknown> | null
  justification?: string | null
  caller?: string | null
  request?: string | null
  round?: number | null
}

export interface Invoke {
  type: 'invoke'
  id: string
  tool: string
  input: object
  seconds?: number | null
  caller?: string | null
  request?: string | null
}

export interface Count {
  type: 'count'
  id: string
  model: ModelKey
  texts: string[]
}

export interface WireApproval {
  id?: string
  tool?: string
  title?: string | null
  question?: string | null
  message?: string | null
  caller?: string | null
  arguments?: unknown
  expires_at?: number | null
  [field: string]: unknown
}

export type GatewayFrame =
  | Challenge
  | Welcome
  | Ask
  | Invoke
  | Count
  | { type: 'cancel'; id: string }
  | { type: 'pause'; id: string }
  | { type: 'resume'; id: string }
  | { type: 'approval'; id: string; approval: WireApproval }
  | { type: 'approval_closed'; id: string; state?: string | null }
  | { type: 'answered'; id: string; state?: string | null }
  | { type: 'error'; id: string; code: string; message: string }
  | { type: 'ping'; n: number }
  | { type: 'pong'; n: number }

export interface ModelItem extends ModelKey {
  family: string
  version: string
  name: string
  max_input_tokens: number
  access: boolean | null
  tools: boolean | null
  images: boolean | null
}

export interface ToolItem {
  name: string
  description: string
  input_schema: object | null
  tags: string[]
}

export interface WindowState {
  id: string
  folders: string[]
  remote: string | null
  focused: boolean
  context: Record<string, string | number | boolean | string[]>
}

export interface Lends {
  models: boolean
  tools: boolean
  approvals: boolean
}

export interface Usage {
  input: number
  output: number
  cached?: number
}

export type EditorFrame =
  | { type: 'hello'; protocol: string; nonce: string; address: string; proof?: string }
  | {
      type: 'register'
      editor: { name: string; version: string }
      extension: { version: string }
      window: WindowState
      lends: Lends
      max_frame: number
    }
  | { type: 'window'; window: WindowState; lends: Lends }
  | { type: 'models'; rev: number; items: ModelItem[] }
  | { type: 'tools'; rev: number; items: ToolItem[] }
  | { type: 'started'; id: string }
  | { type: 'waiting'; id: string; for: 'consent' }
  | { type: 'delta'; id: string; parts: WirePart[] }
  | { type: 'done'; id: string; usage?: Usage; parts?: WirePart[]; tokens?: number[] }
  | { type: 'error'; id: string; code: ErrorCode; message: string; retry_after?: number }
  | {
      type: 'answer'
      id: string
      decision: 'approve' | 'deny'
      level?: string
      arguments?: object
      reason?: string
    }
  | { type: 'ping'; n: number }
  | { type: 'pong'; n: number }

/** An exchange failed with a code that the gateway translates for its client. */
export class BridgeError extends Error {
  readonly code: ErrorCode
  readonly retryAfter: number | undefined

  constructor(code: ErrorCode, message: string, retryAfter?: number) {
    super(message)
    this.code = code
    this.retryAfter = retryAfter
  }
}

type FieldType = 'string' | 'number' | 'object' | 'array'

const REQUIRED_FIELDS: Record<GatewayFrame['type'], Record<string, FieldType>> = {
  challenge: { protocols: 'array', nonce: 'string', auth: 'string' },
  welcome: { protocol: 'string', session: 'string', heartbeat: 'number', max_frame: 'number' },
  ask: { id: 'string', model: 'object', messages: 'array' },
  invoke: { id: 'string', tool: 'string', input: 'object' },
  count: { id: 'string', model: 'object', texts: 'array' },
  cancel: { id: 'string' },
  pause: { id: 'string' },
  resume: { id: 'string' },
  approval: { id: 'string', approval: 'object' },
  approval_closed: { id: 'string' },
  answered: { id: 'string' },
  error: { id: 'string', code: 'string', message: 'string' },
  ping: { n: 'number' },
  pong: { n: 'number' },
}

/** Decode a frame; undefined for a type that this version does not know, an error for what is no frame at all. */
export function decodeFrame(text: string): GatewayFrame | undefined {
  const frame: unknown = JSON.parse(text)
  if (!isObject(frame) || typeof frame['type'] !== 'string') throw new Error('a frame is an object with a type')
  const fields = Object.hasOwn(REQUIRED_FIELDS, frame['type'])
    ? REQUIRED_FIELDS[frame['type'] as GatewayFrame['type']]
    : undefined
  if (fields === undefined) return undefined
  for (const [name, type] of Object.entries(fields))
    if (fieldType(frame[name]) !== type) throw new Error(`${frame['type']}.${name} is not of type ${type}`)
  return frame as unknown as GatewayFrame
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function fieldType(value: unknown): string {
  return Array.isArray(value) ? 'array' : typeof value
}
