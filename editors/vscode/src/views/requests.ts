/**
 * The view of requests: what runs now, and the last requests with their cost in rounds.
 */

import * as vscode from 'vscode'
import type { Activity, RequestRecord, Use } from '../activity.ts'
import { plural } from './overview.ts'

type Row = { use: Use } | { record: RequestRecord }

export class RequestTree implements vscode.TreeDataProvider<Row> {
  readonly #activity: Activity
  readonly #changed = new vscode.EventEmitter<undefined>()
  readonly onDidChangeTreeData = this.#changed.event

  constructor(activity: Activity) {
    this.#activity = activity
  }

  refresh(): void {
    this.#changed.fire(undefined)
  }

  getChildren(row?: Row): Row[] {
    if (row !== undefined) return []
    const ended = this.#activity.requests.filter((record) => record.ended !== undefined)
    return [...this.#activity.uses.map((use) => ({ use })), ...ended.map((record) => ({ record }))]
  }

  getTreeItem(row: Row): vscode.TreeItem {
    return 'use' in row ? useItem(row.use) : recordItem(row.record)
  }
}

function useItem(use: Use): vscode.TreeItem {
  const item = new vscode.TreeItem(`${use.caller} → ${shortName(use.name)}`)
  item.description = use.state === 'consent' ? 'waits for your consent' : 'running'
  item.iconPath = new vscode.ThemeIcon(use.state === 'consent' ? 'question' : 'sync~spin')
  item.contextValue = 'use'
  item.tooltip = `${use.kind === 'model' ? 'Model' : 'Tool'} ${use.name}, used by ${use.caller} since ${clock(use.since)}`
  return item
}

function recordItem(record: RequestRecord): vscode.TreeItem {
  const item = new vscode.TreeItem(`${record.caller} → ${shortName(record.model ?? 'tools')}`)
  const seconds = ((record.ended ?? record.started) - record.started) / 1000
  const cost = [
    record.rounds > 0 ? plural(record.rounds, 'round') : '',
    record.calls > 0 ? plural(record.calls, 'tool call') : '',
    record.inputTokens + record.outputTokens > 0 ? `${record.inputTokens}+${record.outputTokens} tokens` : '',
    `${seconds.toFixed(1)} s`,
    clock(record.started),
  ].filter(Boolean)
  item.description = cost.join(' · ')
  item.iconPath =
    record.problem === undefined
      ? new vscode.ThemeIcon('check', new vscode.ThemeColor('testing.iconPassed'))
      : new vscode.ThemeIcon('error', new vscode.ThemeColor('testing.iconFailed'))
  item.tooltip = [`Request ${record.id} of ${record.caller}`, record.model, item.description, record.problem].filter(Boolean).join('\n')
  return item
}

/** The name without its provider, which the tooltip has. */
export function shortName(name: string): string {
  return name.split('/').at(-1) ?? name
}

function clock(time: number): string {
  return new Date(time).toLocaleTimeString()
}
