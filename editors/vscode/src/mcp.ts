/**
 * Offers the gateway's tools to the editor's chat as an MCP server, only while the gateway answers.
 */

import * as vscode from 'vscode'

/** The name under which the editor shows the server, and with which it prefixes the tools: `mcp_toolgate_`. */
const LABEL = 'Toolgate'

export interface McpSource {
  baseUrl(): string
  headers(): Promise<Record<string, string>>
  version(): string
}

export class GatewayMcpProvider implements vscode.McpServerDefinitionProvider<vscode.McpHttpServerDefinition>, vscode.Disposable {
  readonly #source: McpSource
  readonly #changed = new vscode.EventEmitter<void>()
  readonly onDidChangeMcpServerDefinitions = this.#changed.event
  #available = false

  constructor(source: McpSource) {
    this.#source = source
  }

  get available(): boolean {
    return this.#available
  }

  set available(available: boolean) {
    if (available === this.#available) return
    this.#available = available
    this.#changed.fire()
  }

  async provideMcpServerDefinitions(): Promise<vscode.McpHttpServerDefinition[]> {
    if (!this.#available) return []
    const uri = vscode.Uri.parse(`${this.#source.baseUrl()}/mcp`)
    return [new vscode.McpHttpServerDefinition(LABEL, uri, {}, this.#source.version())]
  }

  /** Add the key only when the server is started, so that it is not kept with the definition. */
  async resolveMcpServerDefinition(server: vscode.McpHttpServerDefinition): Promise<vscode.McpHttpServerDefinition> {
    server.headers = await this.#source.headers()
    return server
  }

  dispose(): void {
    this.#changed.dispose()
  }
}
