/**
 * The composition root: makes the parts and joins them. `activate` awaits nothing, so that chat never waits for a gateway.
 */

import * as vscode from 'vscode'
import { Activity } from './activity.ts'
import { ApprovalInbox } from './approvals.ts'
import { Bridge } from './bridge.ts'
import { registerCommands, startServerSilently } from './commands.ts'
import { type ConnectionState, delay } from './connection.ts'
import { resolveEndpoint } from './endpoint.ts'
import { GatewayClient } from './gateway/client.ts'
import { KeyStore } from './keys.ts'
import { type Denials, OWN_VENDOR } from './lending/models.ts'
import { GatewayMcpProvider } from './mcp.ts'
import { GatewayModelProvider } from './provider.ts'
import { LocalServer } from './server.ts'
import { SECTION, Settings } from './settings.ts'
import { ApprovalTree, notifyApproval, withoutLinks } from './views/approvals.ts'
import { OverviewTree } from './views/overview.ts'
import { RequestTree } from './views/requests.ts'
import { StatusBar } from './views/statusBar.ts'

const REFRESH_EVERY = 100
const SETTLE = 2000
const RECONNECT_ON = ['url', 'authentication', 'tokenFile', 'approvals.enabled'].map((name) => `${SECTION}.${name}`)

let deactivation: (() => Promise<void>) | undefined

export function activate(context: vscode.ExtensionContext): void {
  const { version } = context.extension.packageJSON as { version: string }
  const log = vscode.window.createOutputChannel('Toolgate', { log: true })
  const settings = new Settings()
  const keys = new KeyStore(context.secrets)
  const denials = storedDenials(context.globalState)
  const later = new Refresher(() => refresh())
  const activity = new Activity(
    () => settings.caps,
    () => later.request(),
  )
  const approvals = new ApprovalInbox((frame) => bridge.connection.send(frame), {
    changed: () => later.request(),
    arrived: (pending) => {
      if (settings.get('approvals.notify')) void notifyApproval(approvals, pending)
    },
    refused: (message) => void vscode.window.showWarningMessage(withoutLinks(`Toolgate: ${message}`)),
  })
  const bridge = new Bridge(
    {
      settings,
      denials,
      activity,
      approvals,
      version,
      access: context.languageModelAccessInformation,
      endpoint: () => resolveEndpoint(settings, keys),
    },
    {
      connectionChanged: (state) => connectionChanged(state),
      lendingChanged: () => later.request(),
      denied: (vendor) => void offerToAskAgain(vendor),
      capped: (message) => void offerCaps(message),
    },
  )
  const client = new GatewayClient(
    {
      baseUrl: () => settings.baseUrl,
      key: () => keys.get(settings.baseUrl),
      proven: () => bridge.connection.connected,
      windowId: () => bridge.window.id,
    },
    version,
  )
  const models = new GatewayModelProvider(client)
  const mcp = new GatewayMcpProvider({
    baseUrl: () => settings.baseUrl,
    headers: () => client.headers(),
    version: () => (bridge.connection.state.kind === 'connected' ? bridge.connection.state.version : ''),
  })
  const server = new LocalServer(context.globalStorageUri.fsPath, {
    output: (text) => log.info(text.trimEnd()),
    changed: (problem) => {
      if (problem !== undefined) void reportServerEnd(problem)
      later.request()
    },
  })
  const overview = new OverviewTree({ bridge, activity, models, mcp, server, settings })
  const approvalTree = new ApprovalTree(approvals)
  const requests = new RequestTree(activity)
  const statusBar = new StatusBar(bridge, activity)
  const approvalView = vscode.window.createTreeView('toolgate.approvals', { treeDataProvider: approvalTree })

  function connectionChanged(state: ConnectionState): void {
    const connected = state.kind === 'connected'
    log.info(describeState(state))
    models.available = connected && settings.get('chatModels.enabled')
    mcp.available = connected && settings.get('mcp.enabled')
    refresh()
  }

  /** Tell that the server has ended by itself, unless another one is there, such as that of a window that was faster. */
  async function reportServerEnd(problem: string): Promise<void> {
    log.error(problem)
    await delay(SETTLE)
    if (!bridge.connection.connected) await offerLog(problem)
  }

  function refresh(): void {
    overview.refresh()
    approvalTree.refresh()
    requests.refresh()
    statusBar.refresh()
    const waiting = approvals.pending.length
    approvalView.badge = waiting === 0 ? undefined : { value: waiting, tooltip: `${waiting} waiting for approval` }
    setContexts({
      connected: bridge.connection.connected,
      active: bridge.connection.state.kind !== 'off',
      lendsModels: bridge.models.enabled,
      lendsTools: bridge.tools.enabled,
      lending: bridge.models.enabled || bridge.tools.enabled,
      serverRunning: server.running,
      hasApprovals: waiting > 0,
      hasRequests: activity.totalRounds > 0,
    })
  }

  function settingsChanged(event: vscode.ConfigurationChangeEvent): void {
    bridge.applyLending()
    if (RECONNECT_ON.some((name) => event.affectsConfiguration(name)) && bridge.connection.state.kind !== 'off')
      bridge.connection.start()
    else connectionChanged(bridge.connection.state)
  }

  context.subscriptions.push(
    log,
    bridge,
    models,
    mcp,
    statusBar,
    approvalView,
    later,
    vscode.window.registerTreeDataProvider('toolgate.overview', overview),
    vscode.window.registerTreeDataProvider('toolgate.requests', requests),
    vscode.lm.registerLanguageModelChatProvider(OWN_VENDOR, models),
    vscode.lm.registerMcpServerDefinitionProvider('toolgate', mcp),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration(SECTION)) settingsChanged(event)
    }),
    models.onDidChangeLanguageModelChatInformation(() => later.request()),
    registerCommands({
      settings,
      keys,
      bridge,
      client,
      activity,
      approvals,
      denials,
      server,
      log,
      extensionId: context.extension.id,
    }),
  )
  deactivation = async () => {
    bridge.dispose()
    await server.stop()
  }
  bridge.applyLending()
  refresh()
  if (settings.get('connect')) bridge.connection.start()
  if (settings.get('server.startAutomatically'))
    startServerSilently({ settings, server, bridge }).catch((error: unknown) => log.error(String(error)))
}

export async function deactivate(): Promise<void> {
  await deactivation?.()
  deactivation = undefined
}

/** Asks for one refresh of the views for many changes that come together. */
class Refresher implements vscode.Disposable {
  readonly #refresh: () => void
  #timer: NodeJS.Timeout | undefined

  constructor(refresh: () => void) {
    this.#refresh = refresh
  }

  request(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined
      this.#refresh()
    }, REFRESH_EVERY)
  }

  dispose(): void {
    clearTimeout(this.#timer)
  }
}

const DENIALS = 'deniedVendors'

/** The refusals of the person, which a new window must know as well. */
function storedDenials(state: vscode.Memento): Denials {
  const read = (): string[] => state.get<string[]>(DENIALS, [])
  return {
    has: (vendor) => read().includes(vendor),
    add: (vendor) => void state.update(DENIALS, [...new Set([...read(), vendor])]),
    clear: () => void state.update(DENIALS, []),
  }
}

function setContexts(contexts: Record<string, boolean>): void {
  for (const [name, value] of Object.entries(contexts))
    void vscode.commands.executeCommand('setContext', `toolgate.${name}`, value)
}

async function offerToAskAgain(vendor: string): Promise<void> {
  const again = 'Ask Me Again'
  const text = `You denied Toolgate the models of ${vendor}. Its clients get an error, and you are not asked again.`
  if ((await vscode.window.showInformationMessage(text, again)) === again)
    await vscode.commands.executeCommand('toolgate.askAgain')
}

async function offerCaps(message: string): Promise<void> {
  const raise = 'Change the Cap'
  if ((await vscode.window.showWarningMessage(`Toolgate: ${message}`, raise)) === raise)
    await vscode.commands.executeCommand('toolgate.openCaps')
}

async function offerLog(problem: string): Promise<void> {
  const show = 'Show the Log'
  if ((await vscode.window.showErrorMessage(withoutLinks(`Toolgate: ${problem}`), show)) === show)
    await vscode.commands.executeCommand('toolgate.showLog')
}

function describeState(state: ConnectionState): string {
  switch (state.kind) {
    case 'connected':
      return `connected to ${state.address}, Toolgate ${state.version}`
    case 'connecting':
      return `connecting to ${state.address}`
    case 'waiting':
      return `${state.problem} Next try in ${state.seconds.toFixed(1)} s.`
    case 'replaced':
      return 'the same window is connected a second time; this connection stays closed'
    case 'off':
      return 'disconnected'
  }
}
