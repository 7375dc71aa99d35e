/**
 * The view of the gateway: the connection, what is lent, what it costs, what the editor gets in return.
 */

import * as vscode from 'vscode'
import type { Activity } from '../activity.ts'
import type { Bridge } from '../bridge.ts'
import type { GatewayMcpProvider } from '../mcp.ts'
import type { GatewayModelProvider } from '../provider.ts'
import type { LocalServer } from '../server.ts'
import type { Settings } from '../settings.ts'

export interface OverviewSources {
  bridge: Bridge
  activity: Activity
  models: GatewayModelProvider
  mcp: GatewayMcpProvider
  server: LocalServer
  settings: Settings
}

interface Row {
  label: string
  description?: string
  tooltip?: string
  icon: string
  color?: string
  context?: string
  command?: { command: string; title: string; arguments?: unknown[] }
  children?: () => Row[]
}

export class OverviewTree implements vscode.TreeDataProvider<Row> {
  readonly #sources: OverviewSources
  readonly #changed = new vscode.EventEmitter<undefined>()
  readonly onDidChangeTreeData = this.#changed.event

  constructor(sources: OverviewSources) {
    this.#sources = sources
  }

  refresh(): void {
    this.#changed.fire(undefined)
  }

  getChildren(row?: Row): Row[] {
    return row === undefined ? this.#rows() : (row.children?.() ?? [])
  }

  getTreeItem(row: Row): vscode.TreeItem {
    const collapsed = vscode.TreeItemCollapsibleState[row.children === undefined ? 'None' : 'Collapsed']
    const item = new vscode.TreeItem(row.label, collapsed)
    item.iconPath = new vscode.ThemeIcon(row.icon, row.color === undefined ? undefined : new vscode.ThemeColor(row.color))
    if (row.description !== undefined) item.description = row.description
    item.tooltip = row.tooltip ?? [row.label, row.description].filter(Boolean).join(' · ')
    if (row.context !== undefined) {
      item.contextValue = row.context
      item.id = row.context.replace(/-(on|off)$/, '') // so that a row stays open when it changes
    }
    if (row.command !== undefined) item.command = row.command
    return item
  }

  #rows(): Row[] {
    const connection = this.#connection()
    if (this.#sources.bridge.connection.connected)
      return [connection, this.#lentModels(), this.#lentTools(), this.#rounds(), this.#offered()]
    return [connection, ...this.#ways(), this.#lentModels(), this.#lentTools()]
  }

  #connection(): Row {
    const { bridge, server } = this.#sources
    const { state } = bridge.connection
    const here = server.running ? ', started here' : ''
    switch (state.kind) {
      case 'connected':
        return {
          label: `Connected to ${state.address}`,
          description: `Toolgate ${state.version}${here}`,
          icon: 'pass-filled',
          color: 'testing.iconPassed',
          context: 'connection-on',
        }
      case 'connecting':
        return { label: `Connecting to ${state.address}`, description: here, icon: 'sync~spin', context: 'connection-off' }
      case 'waiting':
        return {
          label: 'Not connected',
          description: state.problem,
          tooltip: `${state.problem}\nNext try in ${Math.ceil(state.seconds)} s.`,
          icon: 'warning',
          color: 'list.warningForeground',
          context: 'connection-off',
        }
      case 'replaced':
        return {
          label: 'Not connected',
          description: 'This window is connected a second time elsewhere.',
          icon: 'debug-disconnect',
          context: 'connection-off',
        }
      case 'off':
        return { label: 'Disconnected', icon: 'debug-disconnect', context: 'connection-off' }
    }
  }

  /** What the person can do while there is no gateway. */
  #ways(): Row[] {
    const { server } = this.#sources
    return [
      ...(server.running ? [] : [action('Start the server here', 'play', 'toolgate.startServer')]),
      action('Connect to a gateway…', 'plug', 'toolgate.connect'),
      action('Show the log', 'output', 'toolgate.showLog'),
      action('First five minutes', 'book', 'toolgate.openWalkthrough'),
    ]
  }

  #lentModels(): Row {
    const { models } = this.#sources.bridge
    return lendingRow('Models', models, this.#sources.bridge.connection.connected, (model) => ({
      label: model.name || model.id,
      description: `vscode/${model.vendor}/${model.family}${model.access === false ? ' · denied by you' : ''}`,
      tooltip: `${model.vendor}/${model.id}: up to ${model.max_input_tokens.toLocaleString('en')} tokens of input`,
      icon: model.access === false ? 'circle-slash' : 'hubot',
      ...(model.access === false ? { command: { command: 'toolgate.askAgain', title: 'Ask again' } } : {}),
    }))
  }

  #lentTools(): Row {
    const { tools } = this.#sources.bridge
    return lendingRow('Tools', tools, this.#sources.bridge.connection.connected, (tool) => ({
      label: tool.name,
      description: tool.tags.join(', '),
      tooltip: tool.description,
      icon: 'wrench',
    }))
  }

  #rounds(): Row {
    const { activity, settings } = this.#sources
    const { roundsPerHour } = settings.caps
    return {
      label: `${plural(activity.roundsThisHour, 'round')} this hour`,
      description: roundsPerHour === 0 ? 'no cap' : `of at most ${roundsPerHour}`,
      tooltip: `${activity.totalRounds} since the window was opened. Each round may count against the quota of the model's provider.`,
      icon: 'dashboard',
      command: { command: 'toolgate.openCaps', title: 'Cap the rounds' },
    }
  }

  #offered(): Row {
    const { models, mcp } = this.#sources
    return {
      label: `${plural(models.models.length, 'chat model')} from Toolgate`,
      description: models.problem ?? (mcp.available ? 'and its tools as MCP server' : ''),
      icon: models.problem === undefined ? 'comment-discussion' : 'warning',
      ...(models.problem === undefined ? {} : { command: { command: 'toolgate.setKey', title: 'Set the key' } }),
      context: 'offered',
      children: () => models.models.map((model) => ({ label: model.name, icon: 'hubot', tooltip: model.tooltip ?? model.name })),
    }
  }
}

interface Lender<Item> {
  readonly enabled: boolean
  readonly items: readonly Item[]
}

/** The row that says whether models or tools are lent, with one row below it for each. */
function lendingRow<Item>(what: 'Models' | 'Tools', lender: Lender<Item>, connected: boolean, rowOf: (item: Item) => Row): Row {
  const kind = what.toLowerCase()
  if (!lender.enabled)
    return {
      label: `${what} are not lent`,
      description: 'click to lend',
      tooltip: `Clients of the gateway cannot use the editor’s ${kind}.`,
      icon: 'circle-slash',
      context: `${kind}-off`,
      command: { command: `toolgate.lend${what}`, title: 'Lend' },
    }
  return {
    label: `Lending ${plural(lender.items.length, kind.slice(0, -1))}`,
    ...(connected ? {} : { description: 'once a gateway is connected' }),
    icon: what === 'Models' ? 'broadcast' : 'tools',
    color: 'charts.green',
    context: `${kind}-on`,
    children: () => lender.items.map(rowOf),
  }
}

function action(label: string, icon: string, command: string): Row {
  return { label, icon, command: { command, title: label } }
}

export function plural(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}
