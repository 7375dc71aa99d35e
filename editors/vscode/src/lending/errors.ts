/**
 * Maps what the editor's API throws to the codes of the bridge.
 */

import * as vscode from 'vscode'
import { BridgeError, type ErrorCode } from '../protocol.ts'

const BY_LANGUAGE_MODEL_CODE: Record<string, ErrorCode> = {
  NoPermissions: 'no_permission',
  Blocked: 'blocked',
  NotFound: 'not_found',
}

const BY_NAME: Record<string, ErrorCode> = {
  Canceled: 'cancelled',
  ChatRateLimited: 'rate_limited',
  ChatQuotaExceeded: 'quota',
}

const BY_MESSAGE: [RegExp, ErrorCode][] = [
  [/exceeds (the )?(token|context)|too many tokens|context_length_exceeded|maximum context length/i, 'too_long'],
  [/rate limit/i, 'rate_limited'],
  [/quota|premium request/i, 'quota'],
  [/more than \d+ tools|Invalid request|Invalid tool|no messages/i, 'rejected'],
  [/^Filtered by|content filter|Responsible AI/i, 'blocked'],
  [/^Cancell?ed$/i, 'cancelled'],
]

/** How tools say that they need a turn of the chat: as an error, or as a text that they return. */
const NEEDS_TURN =
  /invocation context|toolInvocationToken is required|_inputContext is not set|no session resource|(invalid|no|no output|missing .* or) stream\b/i

export function needsTurn(message: string): boolean {
  return NEEDS_TURN.test(message)
}

/** Map an error of `sendRequest`, `countTokens` or the stream of an answer. */
export function mapModelError(error: unknown, hasPictures: boolean): BridgeError {
  if (error instanceof BridgeError) return error
  if (!(error instanceof Error))
    return hasPictures
      ? new BridgeError('rejected', 'The editor could not read a picture of the request.')
      : new BridgeError('failed', `The editor failed without a message: ${JSON.stringify(error)}`)
  const message = error.message || error.name
  const cause = error.cause instanceof Error ? error.cause : undefined
  const code =
    (error instanceof vscode.LanguageModelError ? BY_LANGUAGE_MODEL_CODE[error.code] : undefined) ??
    (error instanceof vscode.CancellationError ? 'cancelled' : undefined) ??
    BY_NAME[error.name] ??
    (cause === undefined ? undefined : BY_NAME[cause.name]) ??
    BY_MESSAGE.find(([pattern]) => pattern.test(message))?.[1] ??
    'failed'
  return new BridgeError(code, message, code === 'rate_limited' ? secondsIn(message) : undefined)
}

/** Map an error of `invokeTool`. */
export function mapToolError(error: unknown): BridgeError {
  if (error instanceof BridgeError) return error
  if (!(error instanceof Error)) return new BridgeError('failed', `The tool failed: ${JSON.stringify(error)}`)
  const message = error.message || error.name
  if (error instanceof vscode.CancellationError || error.name === 'Canceled' || /^Cancell?ed$/i.test(message))
    return new BridgeError('cancelled', 'The person cancelled the tool, or it was stopped.')
  if (needsTurn(message)) return new BridgeError('needs_turn', message)
  if (/was not contributed|not found|does not have an implementation/i.test(message)) return new BridgeError('not_found', message)
  return new BridgeError('failed', message)
}

function secondsIn(message: string): number | undefined {
  const found = /(\d+)\s*(s\b|second|minute)/i.exec(message)
  if (found === null) return undefined
  return Number(found[1]) * (found[2]?.startsWith('minute') ? 60 : 1)
}
