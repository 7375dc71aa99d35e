// Plays models and tools inside the editor, and runs what a test sends: a model's script, or a piece of code.
// Listens on a port of its own and writes it into the folder that PROBE_FOLDER names, one file for each window.
const { createServer } = require('node:http')
const { mkdirSync, writeFileSync, rmSync } = require('node:fs')
const { join } = require('node:path')
const vscode = require('vscode')

const PICTURE = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
)
const AsyncFunction = Object.getPrototypeOf(async () => undefined).constructor

// `script` holds the answers of the models, one for each request; `requests` and `calls` what reached models and tools.
const state = { script: [], requests: [], calls: [], events: [], counted: 0, models: undefined, changed: new vscode.EventEmitter() }

function provider(vendor) {
  return {
    onDidChangeLanguageModelChatInformation: state.changed.event,
    provideLanguageModelChatInformation: async () => (state.models ?? defaultModels)(vendor),
    provideTokenCount: async (_model, text) => {
      state.counted += 1
      return typeof text === 'string' ? text.length : 1
    },
    provideLanguageModelChatResponse: (model, messages, options, progress, token) =>
      answer(`${vendor}/${model.id}`, messages, options, progress, token),
  }
}

function defaultModels(vendor) {
  const base = { family: 'mini', version: '1', maxInputTokens: 100_000, maxOutputTokens: 4096, isUserSelectable: true }
  const capabilities = { toolCalling: true, imageInput: true }
  if (vendor === 'guarded') return [{ ...base, id: 'locked', name: 'Locked', family: 'locked', capabilities, requiresAuthorization: true }]
  return [
    { ...base, id: 'mini-1', name: 'Mini', capabilities },
    { ...base, id: 'empty', name: 'Empty', family: 'empty', maxInputTokens: 0, capabilities },
  ]
}

async function answer(model, messages, options, progress, token) {
  const request = { model, messages: messages.map(describeMessage), tools: (options.tools ?? []).map(({ name }) => name) }
  Object.assign(request, { toolMode: options.toolMode, modelOptions: options.modelOptions, cancelled: 0, ended: false })
  state.requests.push(request)
  token.onCancellationRequested(() => (request.cancelled = Date.now()))
  const script = state.script.length > 1 ? state.script.shift() : (state.script[0] ?? [{ text: 'Hello from the editor.' }])
  for (const step of script) {
    if (token.isCancellationRequested) return
    if (step.text !== undefined) progress.report(new vscode.LanguageModelTextPart(step.text))
    if (step.thinking !== undefined) progress.report(new vscode.LanguageModelThinkingPart(step.thinking, step.id))
    if (step.call !== undefined) progress.report(new vscode.LanguageModelToolCallPart(step.id, step.call, step.input ?? {}))
    if (step.forced !== undefined) progress.report(new vscode.LanguageModelToolCallPart(step.id, options.tools[0].name, step.forced))
    if (step.usage !== undefined) progress.report(vscode.LanguageModelDataPart.json(step.usage, 'usage'))
    if (step.echo) progress.report(new vscode.LanguageModelTextPart(JSON.stringify(request.messages.at(-1))))
    if (step.wait !== undefined) await new Promise((resolve) => setTimeout(resolve, step.wait))
    if (step.error !== undefined) throw Object.assign(new Error(step.error), { name: step.name ?? 'Error' })
    if (step.blocked !== undefined) throw vscode.LanguageModelError.Blocked(step.blocked)
    if (step.hang) await new Promise((resolve) => token.onCancellationRequested(resolve))
  }
  request.ended = true
}

function describeMessage({ role, content }) {
  return { role, parts: content.map(describePart) }
}

function describePart(part) {
  if (part instanceof vscode.LanguageModelTextPart) return { text: part.value }
  if (part instanceof vscode.LanguageModelToolCallPart) return { call: part.name, id: part.callId, input: part.input }
  if (part instanceof vscode.LanguageModelToolResultPart) return { result: part.callId, parts: part.content.map(describePart) }
  if (part instanceof vscode.LanguageModelDataPart) return { mime: part.mimeType, bytes: part.data.length }
  if (part instanceof vscode.LanguageModelThinkingPart) return { thinking: part.value }
  return { other: String(part) }
}

const tools = {
  probe_echo: ({ input }) => [new vscode.LanguageModelTextPart(`echo: ${input.text}`)],
  probe_confirm: ({ input }) => [new vscode.LanguageModelTextPart(`confirmed: ${input.text}`)],
  probe_fail: () => {
    throw new Error('the probe fails')
  },
  probe_picture: () => [vscode.LanguageModelDataPart.image(PICTURE, 'image/png')],
}

function registerTool(name, run) {
  return vscode.lm.registerTool(name, {
    prepareInvocation: ({ input }) =>
      name === 'probe_confirm'
        ? { confirmationMessages: { title: 'Confirm the probe', message: `May the probe say ${input.text}?` } }
        : undefined,
    invoke: (options) => {
      state.calls.push({ name, input: options.input })
      return new vscode.LanguageModelToolResult(run(options))
    },
  })
}

async function serve(request, response) {
  const chunks = []
  for await (const chunk of request) chunks.push(chunk)
  let status = 200
  let body
  try {
    const { code, argument } = JSON.parse(Buffer.concat(chunks).toString())
    body = { value: await new AsyncFunction('vscode', 'state', 'argument', code)(vscode, state, argument) }
  } catch (error) {
    status = 500
    body = { error: String(error?.stack ?? error) }
  }
  response.writeHead(status, { 'content-type': 'application/json' })
  response.end(JSON.stringify(body))
}

exports.activate = (context) => {
  for (const vendor of ['scripted', 'guarded'])
    context.subscriptions.push(vscode.lm.registerLanguageModelChatProvider(vendor, provider(vendor)))
  for (const [name, run] of Object.entries(tools)) context.subscriptions.push(registerTool(name, run))
  const server = createServer((request, response) => void serve(request, response))
  server.listen(0, '127.0.0.1', () => {
    const folder = process.env.PROBE_FOLDER
    const file = join(folder, `${process.pid}.json`)
    mkdirSync(folder, { recursive: true })
    writeFileSync(file, JSON.stringify({ port: server.address().port, pid: process.pid, folders: (vscode.workspace.workspaceFolders ?? []).map(({ name }) => name) }))
    context.subscriptions.push({ dispose: () => rmSync(file, { force: true }) })
  })
  context.subscriptions.push({ dispose: () => server.close() })
}
