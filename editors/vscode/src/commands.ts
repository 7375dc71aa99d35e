/**
 * The commands: what a person can do from the palette, the views and the status bar.
 */

import * as vscode from 'vscode'
import type { Activity, Use } from './activity.ts'
import type { ApprovalInbox, PendingApproval } from './approvals.ts'
import type { Bridge } from './bridge.ts'
import { claudeCode, type ClientSetup, codex, continueDev, curl } from './clients.ts'
import type { GatewayClient } from './gateway/client.ts'
import { delay } from './connection.ts'
import { isLoopback, parseBaseUrl } from './gateway/address.ts'
import type { KeyStore } from './keys.ts'
import type { Denials } from './lending/models.ts'
import { findProgram, type LocalServer, UVX_COMMAND } from './server.ts'
import type { Settings } from './settings.ts'
import { reviewApproval, withoutLinks } from './views/approvals.ts'

export interface CommandParts {
  settings: Settings
  keys: KeyStore
  bridge: Bridge
  client: GatewayClient
  activity: Activity
  approvals: ApprovalInbox
  denials: Denials
  server: LocalServer
  log: vscode.LogOutputChannel
  extensionId: string
}

const READY_POLL = 300

type Handlers = Record<string, (argument?: unknown) => unknown>

/** Register all commands; a failure is shown as its message. */
export function registerCommands(parts: CommandParts): vscode.Disposable {
  const handlers: Handlers = {
    ...connectionCommands(parts),
    ...lendingCommands(parts),
    ...clientCommands(parts),
    ...viewCommands(parts),
  }
  const registered = Object.entries(handlers).map(([name, run]) =>
    vscode.commands.registerCommand(`toolgate.${name}`, async (argument?: unknown) => {
      try {
        await run(argument)
      } catch (error) {
        parts.log.error(`${name}: ${(error as Error).message}`)
        void vscode.window.showErrorMessage(withoutLinks(`Toolgate: ${(error as Error).message}`))
      }
    }),
  )
  return vscode.Disposable.from(...registered)
}

function connectionCommands({ settings, keys, bridge, server, log }: CommandParts): Handlers {
  return {
    connect: async () => {
      const url = await vscode.window.showInputBox({
        title: 'Connect to a Toolgate gateway',
        prompt: 'Base URL. Another machine needs https:// and a key.',
        value: settings.get('url'),
        ignoreFocusOut: true,
        validateInput: problemOfUrl,
      })
      if (url === undefined) return
      await settings.set('url', url.trim())
      if (!isLoopback(new URL(settings.baseUrl).hostname) && (await keys.get(settings.baseUrl)) === undefined)
        await vscode.commands.executeCommand('toolgate.setKey')
      await settings.set('connect', true)
      bridge.connection.start()
    },
    disconnect: async () => {
      await settings.set('connect', false)
      bridge.connection.stop()
    },
    startServer: async () => {
      const command = await serverCommand(settings)
      if (command === undefined) return
      await startServer({ settings, server, bridge }, command)
      log.show(true)
    },
    stopServer: async () => await server.stop(),
    showLog: () => log.show(),
    setKey: async () => {
      const key = await vscode.window.showInputBox({
        title: `Key for ${settings.baseUrl}`,
        prompt: 'Kept in the editor’s secret storage. Connecting needs the scope bridge; chat models need chat, tools need tools.',
        password: true,
        ignoreFocusOut: true,
      })
      if (key === undefined || key.trim() === '') return
      await keys.set(settings.baseUrl, key.trim())
      bridge.connection.start()
    },
    forgetKey: async () => {
      await keys.forget(settings.baseUrl)
      bridge.connection.start()
    },
  }
}

function lendingCommands({ settings, activity, denials, bridge, approvals }: CommandParts): Handlers {
  return {
    lendModels: async () => {
      const yes = 'Lend Models'
      const detail =
        'Programs on this machine that call the gateway can then use the models of this editor. Each round may count against the quota of the models’ provider, and the provider’s terms of use apply. The status bar shows who is using what, and one click there stops it.'
      const choice = await vscode.window.showInformationMessage('Lend the editor’s models to Toolgate?', { modal: true, detail }, yes)
      if (choice === yes) await settings.set('lending.models', true)
    },
    lendTools: async () => {
      const yes = 'Lend Tools'
      const detail =
        'Models behind the gateway can then read your workspace with the editor’s tools. Tools that change something still ask, here or at the gateway. One click on the status bar stops it.'
      const choice = await vscode.window.showInformationMessage('Lend the editor’s tools to Toolgate?', { modal: true, detail }, yes)
      if (choice === yes) await settings.set('lending.tools', true)
    },
    stopLendingModels: async () => await settings.set('lending.models', false),
    stopLendingTools: async () => await settings.set('lending.tools', false),
    stopLending: async () => {
      activity.cancelAll()
      await settings.set('lending.models', false)
      await settings.set('lending.tools', false)
    },
    askAgain: async () => {
      denials.clear()
      await bridge.models.refresh()
      void vscode.window.showInformationMessage('Toolgate: the next request to a model asks for your consent again.')
    },
    cancelUse: (row) => (row as { use?: Use } | undefined)?.use?.cancel(),
    clearRequests: () => activity.clear(),
    approve: (row) => approvals.answer((row as PendingApproval).id, { decision: 'approve', level: 'once' }),
    deny: (row) => approvals.answer((row as PendingApproval).id, { decision: 'deny' }),
    reviewApproval: async (row) => {
      const pending = (row as PendingApproval | undefined) ?? approvals.pending[0]
      if (pending !== undefined) await reviewApproval(approvals, pending)
    },
  }
}

function clientCommands({ settings, keys, client, bridge }: CommandParts): Handlers {
  const useIn = async (setup: (baseUrl: string, model: string, key: string | undefined) => ClientSetup): Promise<void> => {
    const model = await pickModel(client, bridge.connection.connected)
    if (model === undefined) return
    await offerSetup(setup(settings.baseUrl, model, await keys.get(settings.baseUrl)))
  }
  return {
    copyBaseUrl: async () => {
      const base = settings.baseUrl
      const choices = [
        { label: `${base}/v1`, description: 'OpenAI clients' },
        { label: base, description: 'Anthropic and Ollama clients' },
      ]
      const choice = await vscode.window.showQuickPick(choices, { title: 'Copy the base URL for' })
      if (choice === undefined) return
      await vscode.env.clipboard.writeText(choice.label)
      void vscode.window.setStatusBarMessage(`Copied ${choice.label}`, 3000)
    },
    askInTerminal: async () => {
      if (!bridge.connection.connected) throw new Error('Connect to a gateway first.')
      const lent = bridge.models.items.find(({ access }) => access !== false)
      if (lent === undefined) throw new Error('No model is lent yet. Run "Toolgate: Lend the Editor\'s Models".')
      openTerminal(curl(settings.baseUrl, `vscode/${lent.vendor}/${lent.id}`, await keys.get(settings.baseUrl)))
    },
    useInClaudeCode: async () => await useIn(claudeCode),
    useInCodex: async () => await useIn(codex),
    useInContinue: async () => await useIn(continueDev),
    openConsole: async () => await vscode.env.openExternal(vscode.Uri.parse(`${settings.baseUrl}/console/`)),
  }
}

function viewCommands({ bridge, extensionId }: CommandParts): Handlers {
  return {
    openSettings: async () => await vscode.commands.executeCommand('workbench.action.openSettings', `@ext:${extensionId}`),
    openCaps: async () => await vscode.commands.executeCommand('workbench.action.openSettings', 'toolgate.lending.maxRounds'),
    openWalkthrough: async () => {
      void vscode.commands.executeCommand('workbench.action.openWalkthrough', `${extensionId}#start`, false)
      // Steps are ticked when their contexts become true while the walkthrough is known, which may be from now on only.
      await delay(1000)
      const done = { connected: bridge.connection.connected, lendsModels: bridge.models.enabled, lendsTools: bridge.tools.enabled }
      for (const [name, value] of Object.entries(done))
        await vscode.commands.executeCommand('setContext', `toolgate.walkthrough.${name}`, value)
    },
    menu: async () => {
      const choice = await vscode.window.showQuickPick(menuItems(bridge), { title: 'Toolgate' })
      if (choice !== undefined) await vscode.commands.executeCommand(choice.command)
    },
  }
}

function menuItems(bridge: Bridge): (vscode.QuickPickItem & { command: string })[] {
  const { connected } = bridge.connection
  const lending = bridge.models.enabled || bridge.tools.enabled
  return [
    ...(lending ? [{ label: '$(debug-stop) Stop lending', command: 'toolgate.stopLending' }] : []),
    ...(bridge.models.enabled ? [] : [{ label: '$(broadcast) Lend the editor’s models', command: 'toolgate.lendModels' }]),
    ...(bridge.tools.enabled ? [] : [{ label: '$(tools) Lend the editor’s tools', command: 'toolgate.lendTools' }]),
    ...(connected
      ? [
          { label: '$(link-external) Open the console', command: 'toolgate.openConsole' },
          { label: '$(terminal) Ask a lent model in a terminal', command: 'toolgate.askInTerminal' },
          { label: '$(copy) Copy the base URL', command: 'toolgate.copyBaseUrl' },
          { label: '$(terminal) Use in Claude Code…', command: 'toolgate.useInClaudeCode' },
          { label: '$(terminal) Use in Codex…', command: 'toolgate.useInCodex' },
          { label: '$(file-code) Use in Continue…', command: 'toolgate.useInContinue' },
          { label: '$(debug-disconnect) Disconnect', command: 'toolgate.disconnect' },
        ]
      : [
          { label: '$(plug) Connect to a gateway…', command: 'toolgate.connect' },
          { label: '$(play) Start the server here', command: 'toolgate.startServer' },
        ]),
    { label: '$(list-tree) Show the Toolgate view', command: 'toolgate.overview.focus' },
    { label: '$(settings-gear) Settings', command: 'toolgate.openSettings' },
    { label: '$(output) Log', command: 'toolgate.showLog' },
  ]
}

function problemOfUrl(text: string): string | undefined {
  try {
    parseBaseUrl(text)
    return undefined
  } catch (error) {
    return (error as Error).message
  }
}

/** Return the command that starts the gateway; asks before it would download one. */
async function serverCommand(settings: Settings): Promise<readonly string[] | undefined> {
  const configured = settings.get('server.command')
  if (configured.length > 0) return configured
  const program = await findProgram('toolgate')
  if (program !== undefined) return [program]
  const [, ...rest] = UVX_COMMAND
  const uvx = await findProgram('uvx')
  if (uvx === undefined)
    throw new Error('Neither toolgate nor uvx is installed here. Install one, or name a program in the setting toolgate.server.command.')
  const yes = 'Download and Start'
  const choice = await vscode.window.showInformationMessage(
    'Toolgate is not installed on this machine. Start it with uvx?',
    { modal: true, detail: `This downloads the package toolgate-server from the Python Package Index and runs:\n${UVX_COMMAND.join(' ')} serve` },
    yes,
  )
  return choice === yes ? [uvx, ...rest] : undefined
}

type ServerParts = Pick<CommandParts, 'settings' | 'server' | 'bridge'>

/** Start the gateway at the address of the settings, and dial it. */
export async function startServer(parts: ServerParts, command: readonly string[]): Promise<void> {
  const { settings, server } = parts
  const url = new URL(settings.baseUrl)
  if (!isLoopback(url.hostname)) throw new Error(`The setting toolgate.url names ${url.hostname}, which is not this machine.`)
  await server.start(command, url.port || '80', settings.get('server.config'))
  dialWhenReady(parts).catch(() => undefined) // an address that was made unusable meanwhile is shown by the connection
}

/**
 * Dial a gateway that is being started as soon as it answers.
 *
 * A download by uvx takes minutes, after which the connection itself would try only every half minute.
 */
export async function dialWhenReady({ settings, server, bridge }: ServerParts): Promise<void> {
  bridge.connection.start()
  while (server.running && !(await answers(settings.baseUrl))) await delay(READY_POLL)
  if (!bridge.connection.connected) bridge.connection.start()
}

/** Start the gateway without asking anything, if it is installed and none answers yet, such as that of another window. */
export async function startServerSilently(parts: ServerParts): Promise<void> {
  if (await answers(parts.settings.baseUrl)) return
  const configured = parts.settings.get('server.command')
  const program = configured.length > 0 ? undefined : await findProgram('toolgate')
  const command = program === undefined ? configured : [program]
  if (command.length > 0) await startServer(parts, command)
}

/** Whether a program answers at the address; which one is proven by the bridge. */
async function answers(baseUrl: string): Promise<boolean> {
  try {
    await fetch(`${baseUrl}/healthz`, { signal: AbortSignal.timeout(2000), redirect: 'manual' })
    return true
  } catch {
    return false
  }
}

async function pickModel(client: GatewayClient, connected: boolean): Promise<string | undefined> {
  if (!connected) throw new Error('Connect to a gateway first, so that its models are known.')
  const models = await client.models()
  if (models.length === 0) throw new Error('The gateway has no models yet.')
  const items = models.map((model) => ({ label: model.id, description: model.owner }))
  return (await vscode.window.showQuickPick(items, { title: 'Which model?' }))?.label
}

/** Open a terminal with the command of a client; the person presses Enter. */
function openTerminal({ name, terminal }: ClientSetup): void {
  if (terminal === undefined) return
  const opened = vscode.window.createTerminal({ name, env: terminal.env })
  opened.show()
  opened.sendText(terminal.command, false)
}

async function offerSetup(setup: ClientSetup): Promise<void> {
  const run = `Open a terminal with ${setup.name}`
  const copy = 'Copy the settings'
  const show = 'Show the settings'
  const choice = await vscode.window.showQuickPick([...(setup.terminal === undefined ? [] : [run]), copy, show], {
    title: `${setup.name}: the settings go to ${setup.place}`,
  })
  if (choice === run) openTerminal(setup)
  if (choice === copy) await vscode.env.clipboard.writeText(setup.text)
  if (choice === show)
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument({ language: setup.language, content: setup.text }))
}
