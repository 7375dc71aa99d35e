/**
 * Lends the editor's chat models: keeps the list of them and reports every change.
 */

import * as vscode from 'vscode'
import type { ModelItem, ModelKey } from '../protocol.ts'

/** Our own vendor: these models come from the gateway, and lending them back would be a ring. */
export const OWN_VENDOR = 'toolgate'
const MAX_MODELS = 256

interface ModelWithCapabilities extends vscode.LanguageModelChat {
  capabilities?: { supportsToolCalling?: boolean; supportsImageToText?: boolean }
}

/** The providers whose models the person refused to lend; kept over restarts. */
export interface Denials {
  has(vendor: string): boolean
  add(vendor: string): void
  clear(): void
}

export class ModelLender implements vscode.Disposable {
  readonly #access: vscode.LanguageModelAccessInformation
  readonly #denials: Denials
  readonly #changed: (items: ModelItem[]) => void
  readonly #subscriptions: vscode.Disposable[]
  #enabled = false
  #models = new Map<string, vscode.LanguageModelChat>()
  #items: ModelItem[] = []
  #refreshing: Promise<void> | undefined
  #again = false

  constructor(
    access: vscode.LanguageModelAccessInformation,
    denials: Denials,
    changed: (items: ModelItem[]) => void,
  ) {
    this.#access = access
    this.#denials = denials
    this.#changed = changed
    this.#subscriptions = [
      vscode.lm.onDidChangeChatModels(() => void this.refresh()),
      access.onDidChange(() => void this.refresh()),
    ]
  }

  get items(): readonly ModelItem[] {
    return this.#items
  }

  set enabled(enabled: boolean) {
    this.#enabled = enabled
    void this.refresh()
  }

  get enabled(): boolean {
    return this.#enabled
  }

  find(key: ModelKey): vscode.LanguageModelChat | undefined {
    return this.#models.get(keyOf(key))
  }

  /** Read the models again; requests that come meanwhile cause one more reading. */
  async refresh(): Promise<void> {
    this.#again = true
    this.#refreshing ??= this.#refresh().finally(() => (this.#refreshing = undefined))
    await this.#refreshing
  }

  dispose(): void {
    for (const subscription of this.#subscriptions) subscription.dispose()
  }

  async #refresh(): Promise<void> {
    while (this.#again) {
      this.#again = false
      const models = this.#enabled ? await lentModels() : []
      this.#models = new Map(models.map((model) => [keyOf(model), model]))
      const items = models.map((model) => this.#describe(model))
      if (JSON.stringify(items) === JSON.stringify(this.#items)) continue
      this.#items = items
      this.#changed(items)
    }
  }

  #describe(model: vscode.LanguageModelChat): ModelItem {
    const capabilities = (model as ModelWithCapabilities).capabilities
    return {
      vendor: model.vendor,
      id: model.id,
      family: model.family,
      version: model.version,
      name: model.name,
      max_input_tokens: model.maxInputTokens,
      access: this.#denials.has(model.vendor) ? false : (this.#access.canSendRequest(model) ?? null),
      tools: capabilities?.supportsToolCalling ?? null,
      images: capabilities?.supportsImageToText ?? null,
    }
  }
}

async function lentModels(): Promise<vscode.LanguageModelChat[]> {
  const models = await vscode.lm.selectChatModels()
  // A model without room for input answers nothing, such as `copilotcli/auto`.
  return models.filter((model) => model.vendor !== OWN_VENDOR && model.maxInputTokens > 0).slice(0, MAX_MODELS)
}

function keyOf({ vendor, id }: ModelKey): string {
  return `${vendor}\n${id}`
}
