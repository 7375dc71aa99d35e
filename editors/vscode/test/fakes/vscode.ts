/**
 * A fake of the editor's module: the classes and functions that the extension uses, driven by `editor`.
 *
 * It behaves as the real editor was seen to behave; what only the real one can show is tried by `make test-editor`.
 */

import { EventEmitter as NodeEmitter } from 'node:events'

export class Disposable {
  readonly #dispose: () => void
  constructor(dispose: () => void) {
    this.#dispose = dispose
  }
  dispose(): void {
    this.#dispose()
  }
}

export class EventEmitter<T> {
  readonly #emitter = new NodeEmitter()
  readonly event = (listener: (value: T) => void): Disposable => {
    this.#emitter.on('event', listener)
    return new Disposable(() => this.#emitter.off('event', listener))
  }
  fire(value?: T): void {
    this.#emitter.emit('event', value)
  }
  dispose(): void {
    this.#emitter.removeAllListeners()
  }
}

export class CancellationError extends Error {
  constructor() {
    super('Canceled')
    this.name = 'Canceled'
  }
}

export class CancellationTokenSource {
  readonly #emitter = new EventEmitter<undefined>()
  readonly token = { isCancellationRequested: false, onCancellationRequested: this.#emitter.event }
  cancel(): void {
    if (this.token.isCancellationRequested) return
    this.token.isCancellationRequested = true
    this.#emitter.fire(undefined)
  }
  dispose(): void {
    this.#emitter.dispose()
  }
}

export class LanguageModelError extends Error {
  readonly code: string
  constructor(message: string, code: string) {
    super(message)
    this.code = code
  }
  static NoPermissions = (message = ''): LanguageModelError => new LanguageModelError(message, 'NoPermissions')
  static Blocked = (message = ''): LanguageModelError => new LanguageModelError(message, 'Blocked')
  static NotFound = (message = ''): LanguageModelError => new LanguageModelError(message, 'NotFound')
}

export class LanguageModelTextPart {
  value: string
  constructor(value: string) {
    this.value = value
  }
}

export class LanguageModelThinkingPart {
  value: string | string[]
  id: string | undefined
  constructor(value: string | string[], id?: string) {
    this.value = value
    this.id = id
  }
}

export class LanguageModelToolCallPart {
  callId: string
  name: string
  input: object
  constructor(callId: string, name: string, input: object) {
    this.callId = callId
    this.name = name
    this.input = input
  }
}

export class LanguageModelToolResultPart {
  callId: string
  content: unknown[]
  constructor(callId: string, content: unknown[]) {
    this.callId = callId
    this.content = content
  }
}

export class LanguageModelToolResult {
  content: unknown[]
  constructor(content: unknown[]) {
    this.content = content
  }
}

export class LanguageModelPromptTsxPart {
  value: unknown
  constructor(value: unknown) {
    this.value = value
  }
}

export class LanguageModelDataPart {
  data: Uint8Array
  mimeType: string
  constructor(data: Uint8Array, mimeType: string) {
    this.data = data
    this.mimeType = mimeType
  }
  static image = (data: Uint8Array, mime: string): LanguageModelDataPart => new LanguageModelDataPart(data, mime)
  static json = (value: unknown, mime = 'application/json'): LanguageModelDataPart =>
    new LanguageModelDataPart(Buffer.from(JSON.stringify(value)), mime)
}

export const LanguageModelChatMessageRole = { User: 1, Assistant: 2 } as const
export const LanguageModelChatToolMode = { Auto: 1, Required: 2 } as const
export const ConfigurationTarget = { Global: 1, Workspace: 2, WorkspaceFolder: 3 } as const
export const UIKind = { Desktop: 1, Web: 2 } as const
export const StatusBarAlignment = { Left: 1, Right: 2 } as const
export const TreeItemCollapsibleState = { None: 0, Collapsed: 1, Expanded: 2 } as const
export const ProgressLocation = { Notification: 15 } as const

export class LanguageModelChatMessage {
  role: number
  content: unknown[]
  name: string | undefined
  constructor(role: number, content: unknown[], name?: string) {
    this.role = role
    this.content = content
    this.name = name
  }
  static User = (content: unknown[], name?: string): LanguageModelChatMessage =>
    new LanguageModelChatMessage(LanguageModelChatMessageRole.User, content, name)
  static Assistant = (content: unknown[], name?: string): LanguageModelChatMessage =>
    new LanguageModelChatMessage(LanguageModelChatMessageRole.Assistant, content, name)
}

export class McpHttpServerDefinition {
  label: string
  uri: Uri
  headers: Record<string, string>
  version: string | undefined
  constructor(label: string, uri: Uri, headers: Record<string, string> = {}, version?: string) {
    this.label = label
    this.uri = uri
    this.headers = headers
    this.version = version
  }
}

export class Uri {
  readonly #text: string
  constructor(text: string) {
    this.#text = text
  }
  static parse = (text: string): Uri => new Uri(text)
  static file = (path: string): Uri => new Uri(`file://${path}`)
  get fsPath(): string {
    return new URL(this.#text).pathname
  }
  toString(): string {
    return this.#text
  }
}

export class ThemeIcon {
  readonly id: string
  readonly color: unknown
  constructor(id: string, color?: unknown) {
    this.id = id
    this.color = color
  }
}

export class ThemeColor {
  readonly id: string
  constructor(id: string) {
    this.id = id
  }
}

export class MarkdownString {
  value = ''
  isTrusted: unknown
  supportThemeIcons = false
  constructor(value = '') {
    this.value = value
  }
  appendMarkdown(text: string): this {
    this.value += text
    return this
  }
  appendText(text: string): this {
    this.value += text
    return this
  }
}

export class TreeItem {
  label: string
  collapsibleState: number
  constructor(label: string, collapsibleState = 0) {
    this.label = label
    this.collapsibleState = collapsibleState
  }
}

export type FakePart = LanguageModelTextPart | LanguageModelThinkingPart | LanguageModelToolCallPart | LanguageModelDataPart

export interface FakeRequest {
  messages: LanguageModelChatMessage[]
  options: { tools?: { name: string }[]; toolMode?: number; modelOptions?: Record<string, unknown>; justification?: string }
  token: CancellationTokenSource['token']
}

export interface FakeModel {
  vendor: string
  id: string
  family: string
  version: string
  name: string
  maxInputTokens: number
  sendRequest: (
    messages: LanguageModelChatMessage[],
    options: FakeRequest['options'],
    token: FakeRequest['token'],
  ) => Promise<{ stream: AsyncIterable<unknown> }>
  countTokens: (text: string) => Promise<number>
}

export interface FakeTool {
  name: string
  description: string
  inputSchema?: object
  tags: string[]
  invoke: (input: Record<string, unknown>, token: FakeRequest['token']) => Promise<unknown[]>
}

interface Toast {
  message: string
  options: unknown
  items: string[]
  choose: (item: string | undefined) => void
}

/** What tests set and look at. */
class Editor {
  models: FakeModel[] = []
  tools: FakeTool[] = []
  access = new Map<string, boolean>()
  userSettings: Record<string, unknown> = {}
  folderSettings: Record<string, unknown> = {}
  contexts = new Map<string, unknown>()
  toasts: Toast[] = []
  clipboard = ''
  windowAnswers = true
  readonly modelsChanged = new EventEmitter<undefined>()
  readonly accessChanged = new EventEmitter<undefined>()
  readonly settingsChanged = new EventEmitter<{ affectsConfiguration: (section: string) => boolean }>()
  readonly toasted = new EventEmitter<Toast>()
  readonly windowState = { focused: true, active: true }

  reset(): void {
    this.models = []
    this.tools = []
    this.access.clear()
    this.userSettings = {}
    this.folderSettings = {}
    this.contexts.clear()
    this.toasts = []
    this.windowAnswers = true
  }

  setModels(...models: FakeModel[]): void {
    this.models = models
    this.modelsChanged.fire(undefined)
  }
}

export const editor = new Editor()

const never = new EventEmitter<never>()

export const version = '1.139.1'

export const lm = {
  get tools(): FakeTool[] {
    return editor.tools
  },
  onDidChangeChatModels: editor.modelsChanged.event,
  selectChatModels: async (): Promise<FakeModel[]> => editor.models,
  invokeTool: async (
    name: string,
    options: { input: Record<string, unknown> },
    token: FakeRequest['token'],
  ): Promise<LanguageModelToolResult> => {
    const tool = editor.tools.find((each) => each.name === name)
    if (tool === undefined) throw new Error(`Tool ${name} was not contributed`)
    return new LanguageModelToolResult(await tool.invoke(options.input, token))
  },
}

export const env = { appName: 'Visual Studio Code', remoteName: undefined, uiKind: UIKind.Desktop, sessionId: 'constant' }

export const window = {
  state: editor.windowState,
  activeTextEditor: undefined,
  visibleTextEditors: [],
  onDidChangeWindowState: never.event,
  onDidChangeActiveTextEditor: never.event,
  showInformationMessage: (message: string, options: unknown, ...items: string[]): Promise<string | undefined> =>
    new Promise((choose) => {
      const toast = { message, options, items, choose }
      editor.toasts.push(toast)
      editor.toasted.fire(toast)
    }),
}

export const workspace = {
  workspaceFolders: [{ name: 'project' }],
  isTrusted: true,
  onDidChangeWorkspaceFolders: never.event,
  onDidGrantWorkspaceTrust: never.event,
  onDidChangeConfiguration: editor.settingsChanged.event,
  getConfiguration: (section: string) => ({
    inspect: (name: string) => ({
      globalValue: editor.userSettings[`${section}.${name}`],
      workspaceValue: editor.folderSettings[`${section}.${name}`],
    }),
    get: (name: string) => editor.folderSettings[`${section}.${name}`] ?? editor.userSettings[`${section}.${name}`],
    update: async (name: string, value: unknown) => {
      editor.userSettings[`${section}.${name}`] = value
      editor.settingsChanged.fire({ affectsConfiguration: () => true })
    },
  }),
}

export const commands = {
  executeCommand: (name: string, ...values: unknown[]): Promise<unknown> => {
    if (name !== 'setContext') return Promise.resolve(undefined)
    if (!editor.windowAnswers) return new Promise(() => undefined)
    editor.contexts.set(String(values[0]), values[1])
    return Promise.resolve(undefined)
  },
}
