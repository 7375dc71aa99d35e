/**
 * Keys of gateways, in the editor's secret storage: one for each address.
 */

import type * as vscode from 'vscode'

type Secrets = Pick<vscode.SecretStorage, 'get' | 'store' | 'delete'>

export class KeyStore {
  readonly #secrets: Secrets

  constructor(secrets: Secrets) {
    this.#secrets = secrets
  }

  async get(baseUrl: string): Promise<string | undefined> {
    return (await this.#secrets.get(secretName(baseUrl))) || undefined
  }

  async set(baseUrl: string, key: string): Promise<void> {
    await this.#secrets.store(secretName(baseUrl), key)
  }

  async forget(baseUrl: string): Promise<void> {
    await this.#secrets.delete(secretName(baseUrl))
  }
}

function secretName(baseUrl: string): string {
  return `key:${new URL(baseUrl).origin}`
}
