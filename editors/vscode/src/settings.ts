/**
 * The person's settings.
 *
 * All of them have the scope `application`, and only the values of the person's own settings are read:
 * a folder that is opened can neither switch lending on nor name another gateway or program.
 */

import * as vscode from 'vscode'
import type { Caps } from './activity.ts'
import { parseBaseUrl } from './gateway/address.ts'

export const SECTION = 'toolgate'

const DEFAULTS = {
  url: 'http://127.0.0.1:8080',
  connect: true,
  authentication: 'auto' as 'auto' | 'token' | 'key',
  tokenFile: '',
  'lending.models': false,
  'lending.tools': false,
  'lending.excludedTools': [] as string[],
  'lending.maxRoundsPerRequest': 25,
  'lending.maxRoundsPerHour': 200,
  'chatModels.enabled': true,
  'mcp.enabled': true,
  'approvals.enabled': true,
  'approvals.notify': true,
  'server.command': [] as string[],
  'server.config': '',
  'server.startAutomatically': false,
}

export type SettingName = keyof typeof DEFAULTS
export type SettingValue<Name extends SettingName> = (typeof DEFAULTS)[Name]
export const SETTING_DEFAULTS: Readonly<typeof DEFAULTS> = DEFAULTS

export class Settings {
  /** Read one setting of the person, never of the folder. */
  get<Name extends SettingName>(name: Name): SettingValue<Name> {
    const value = vscode.workspace.getConfiguration(SECTION).inspect<SettingValue<Name>>(name)?.globalValue
    return hasSameType(value, DEFAULTS[name]) ? value : DEFAULTS[name]
  }

  async set<Name extends SettingName>(name: Name, value: SettingValue<Name>): Promise<void> {
    await vscode.workspace.getConfiguration(SECTION).update(name, value, vscode.ConfigurationTarget.Global)
  }

  /** The gateway's base URL without a slash at its end; throws a sentence for the person if no gateway can be there. */
  get baseUrl(): string {
    try {
      return parseBaseUrl(this.get('url'))
    } catch (error) {
      throw new Error(`The setting toolgate.url cannot be used. ${(error as Error).message}`, { cause: error })
    }
  }

  get caps(): Caps {
    return {
      roundsPerRequest: this.get('lending.maxRoundsPerRequest'),
      roundsPerHour: this.get('lending.maxRoundsPerHour'),
    }
  }
}

function hasSameType<Value>(value: unknown, like: Value): value is Value {
  if (Array.isArray(like)) return Array.isArray(value) && value.every((item) => typeof item === 'string')
  return typeof value === typeof like
}
