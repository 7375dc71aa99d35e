/**
 * Translates the parts of messages and tool results between the bridge and the editor's API.
 */

import * as vscode from 'vscode'
import type { Usage, WireMessage, WirePart } from '../protocol.ts'
import { isObject } from '../protocol.ts'

type InputPart = vscode.LanguageModelInputPart

const PRIVATE_MIME = /^[^/]*$/ // such as `stateful_marker`, which only the model's own provider understands

/** Encode a message for the editor; system text arrives as a message of the user already. */
export function encodeMessage(message: WireMessage): vscode.LanguageModelChatMessage {
  const parts = message.parts.map(encodePart).filter((part) => part !== undefined)
  const name = message.name ?? undefined
  return message.role === 'assistant'
    ? vscode.LanguageModelChatMessage.Assistant(parts as Parameters<typeof vscode.LanguageModelChatMessage.Assistant>[0], name)
    : vscode.LanguageModelChatMessage.User(parts as Parameters<typeof vscode.LanguageModelChatMessage.User>[0], name)
}

function encodePart(part: WirePart): InputPart | undefined {
  switch (part.type) {
    case 'text':
      return new vscode.LanguageModelTextPart(part.text)
    case 'data':
      return new vscode.LanguageModelDataPart(Buffer.from(part.data, 'base64'), part.mime)
    case 'tool_call':
      return new vscode.LanguageModelToolCallPart(part.call_id, part.name, part.input)
    case 'tool_result':
      return new vscode.LanguageModelToolResultPart(part.call_id, encodeToolResult(part.parts, part.is_error === true))
    case 'thinking': {
      const Thinking = thinkingPart()
      return Thinking === undefined ? undefined : (new Thinking(part.text, part.id ?? undefined) as InputPart)
    }
  }
}

/** Encode a tool's result; the editor's API has no mark for errors, so that the text says it. */
function encodeToolResult(parts: WirePart[], isError: boolean): InputPart[] {
  const content = parts.map(encodePart).filter((part) => part !== undefined)
  const first = content[0]
  const saysSo = first instanceof vscode.LanguageModelTextPart && /^\W*error/i.test(first.value)
  return isError && !saysSo ? [new vscode.LanguageModelTextPart('ERROR: '), ...content] : content
}

interface ThinkingPart {
  value: string | string[]
  id?: string
}

/** The class of thinking parts, which stable editors have but do not declare. */
export function thinkingPart(): (new (value: string, id?: string) => ThinkingPart) | undefined {
  try {
    return (vscode as unknown as Record<string, unknown>)['LanguageModelThinkingPart'] as ReturnType<typeof thinkingPart>
  } catch {
    return undefined // refused as a proposed API
  }
}

/** Decode a part of a model's answer; usage and the provider's private parts have no place among them. */
export function decodePart(part: unknown): WirePart | undefined {
  if (part instanceof vscode.LanguageModelTextPart) return { type: 'text', text: part.value }
  if (part instanceof vscode.LanguageModelToolCallPart)
    return { type: 'tool_call', call_id: part.callId, name: part.name, input: isObject(part.input) ? part.input : {} }
  if (part instanceof vscode.LanguageModelDataPart)
    return PRIVATE_MIME.test(part.mimeType)
      ? undefined
      : { type: 'data', mime: part.mimeType, data: Buffer.from(part.data).toString('base64') }
  const Thinking = thinkingPart()
  if (Thinking !== undefined && part instanceof Thinking) {
    const text = Array.isArray(part.value) ? part.value.join('') : part.value
    return text === '' ? undefined : { type: 'thinking', text, ...(part.id === undefined ? {} : { id: part.id }) }
  }
  return undefined
}

/** Decode the usage that some providers send as a part of the answer. */
export function decodeUsage(part: unknown): Usage | undefined {
  if (!(part instanceof vscode.LanguageModelDataPart) || part.mimeType !== 'usage') return undefined
  let usage: unknown
  try {
    usage = JSON.parse(Buffer.from(part.data).toString('utf8'))
  } catch {
    return undefined
  }
  if (!isObject(usage)) return undefined
  const [input, output] = [usage['prompt_tokens'], usage['completion_tokens']]
  if (typeof input !== 'number' || typeof output !== 'number') return undefined
  const details = usage['prompt_tokens_details']
  const cached = isObject(details) ? details['cached_tokens'] : undefined
  return { input, output, ...(typeof cached === 'number' ? { cached } : {}) }
}

/** Decode a tool's result: text stays text, rendered prompts become text, everything else travels as data. */
export function decodeToolResult(content: readonly unknown[]): WirePart[] {
  return content.map((part) => {
    if (part instanceof vscode.LanguageModelTextPart) return { type: 'text', text: part.value }
    if (part instanceof vscode.LanguageModelPromptTsxPart) return { type: 'text', text: textOfTsx(part.value) }
    if (part instanceof vscode.LanguageModelDataPart) return decodeData(part)
    return { type: 'text', text: typeof part === 'string' ? part : JSON.stringify(part) }
  })
}

function decodeData(part: vscode.LanguageModelDataPart): WirePart {
  const isText = part.mimeType.startsWith('text/') || part.mimeType === 'application/json'
  return isText
    ? { type: 'text', text: Buffer.from(part.data).toString('utf8') }
    : { type: 'data', mime: part.mimeType, data: Buffer.from(part.data).toString('base64') }
}

interface TsxNode {
  type?: number
  text?: string
  lineBreakBefore?: boolean | number
  children?: unknown
  node?: unknown
}

const TSX_TEXT = 2

/** Collect the text of a rendered prompt: a tree in which nodes of type 2 are text. */
export function textOfTsx(value: unknown): string {
  const pieces: string[] = []
  const waiting: unknown[] = [value]
  while (waiting.length > 0) {
    const current = waiting.pop()
    if (!isObject(current)) continue
    const node = current as TsxNode
    if (node.type === TSX_TEXT && typeof node.text === 'string') {
      if (node.lineBreakBefore && pieces.length > 0) pieces.push('\n')
      pieces.push(node.text)
      continue
    }
    if (node.node !== undefined) waiting.push(node.node)
    if (Array.isArray(node.children)) for (const child of (node.children as unknown[]).toReversed()) waiting.push(child)
  }
  return pieces.join('')
}
