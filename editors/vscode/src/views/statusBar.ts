/**
 * The status bar: whether the gateway is there, who is using what, and one click that stops it.
 */

import * as vscode from 'vscode'
import type { Activity, Use } from '../activity.ts'
import type { Bridge } from '../bridge.ts'
import { plural } from './overview.ts'
import { shortName } from './requests.ts'

export class StatusBar implements vscode.Disposable {
  readonly #bridge: Bridge
  readonly #activity: Activity
  readonly #main = vscode.window.createStatusBarItem('toolgate.status', vscode.StatusBarAlignment.Right, 90)
  readonly #stop = vscode.window.createStatusBarItem('toolgate.stop', vscode.StatusBarAlignment.Right, 89)

  constructor(bridge: Bridge, activity: Activity) {
    this.#bridge = bridge
    this.#activity = activity
    this.#main.name = 'Toolgate'
    this.#main.command = 'toolgate.menu'
    this.#stop.name = 'Toolgate: Stop Lending'
    this.#stop.command = 'toolgate.stopLending'
    this.#stop.text = '$(debug-stop)'
    this.#stop.tooltip = 'Toolgate: stop lending models and tools, and cancel what runs'
    this.#main.show()
  }

  refresh(): void {
    const { uses } = this.#activity
    const lending = this.#bridge.models.enabled || this.#bridge.tools.enabled
    this.#main.text = this.#text(uses, lending)
    this.#main.tooltip = this.#tooltip(uses)
    this.#main.backgroundColor = uses.some((use) => use.state === 'consent')
      ? new vscode.ThemeColor('statusBarItem.warningBackground')
      : undefined
    if (lending) this.#stop.show()
    else this.#stop.hide()
  }

  dispose(): void {
    this.#main.dispose()
    this.#stop.dispose()
  }

  #text(uses: Use[], lending: boolean): string {
    const { connected } = this.#bridge.connection
    if (!connected) return '$(debug-disconnect) Toolgate'
    const [first] = uses
    if (first === undefined) return lending ? '$(broadcast) Toolgate' : '$(plug) Toolgate'
    const more = uses.length > 1 ? ` +${uses.length - 1}` : ''
    return `$(sync~spin) ${shorten(first.caller)} → ${shorten(shortName(first.name))}${more}`
  }

  #tooltip(uses: Use[]): string {
    const { state } = this.#bridge.connection
    const { models, tools } = this.#bridge
    const lines =
      state.kind === 'connected'
        ? [`Toolgate: connected to ${state.address}`]
        : ['Toolgate: not connected', ...(state.kind === 'waiting' ? [state.problem] : [])]
    lines.push(models.enabled ? `Lends ${plural(models.items.length, 'model')}` : 'Lends no models')
    lines.push(tools.enabled ? `Lends ${plural(tools.items.length, 'tool')}` : 'Lends no tools')
    lines.push(...uses.map((use) => `${use.caller} uses ${use.name}${use.state === 'consent' ? ' (waits for your consent)' : ''}`))
    lines.push(`${plural(this.#activity.roundsThisHour, 'round')} this hour`)
    return lines.join('\n')
  }
}

/** Shorten a name of a stranger for the status bar, where `$(…)` would become an icon. */
function shorten(name: string): string {
  const plain = name.replaceAll('$(', '$ (')
  return plain.length > 24 ? `${plain.slice(0, 23)}…` : plain
}
