/**
 * What this window says about itself: its folders by name, its focus, and the context keys that it can know.
 */

import { randomUUID } from 'node:crypto'
import { extname } from 'node:path'
import * as vscode from 'vscode'
import type { WindowState } from './protocol.ts'

const MAX_TEXT = 256
const SEND_EVERY = 500

export class WindowReporter implements vscode.Disposable {
  /** Random, because `env.sessionId` is the same for all windows of some editors. */
  readonly id = randomUUID()
  readonly #changed: () => void
  readonly #subscriptions: vscode.Disposable[]
  #timer: NodeJS.Timeout | undefined

  constructor(changed: () => void) {
    this.#changed = changed
    const later = (): void => this.#later()
    this.#subscriptions = [
      vscode.window.onDidChangeWindowState(later),
      vscode.window.onDidChangeActiveTextEditor(later),
      vscode.workspace.onDidChangeWorkspaceFolders(later),
      vscode.workspace.onDidGrantWorkspaceTrust(later),
    ]
  }

  get state(): WindowState {
    return {
      id: this.id,
      folders: (vscode.workspace.workspaceFolders ?? []).map((folder) => folder.name.slice(0, MAX_TEXT)).slice(0, 32),
      remote: vscode.env.remoteName ?? null,
      focused: vscode.window.state.focused,
      context: contextKeys(),
    }
  }

  dispose(): void {
    clearTimeout(this.#timer)
    for (const subscription of this.#subscriptions) subscription.dispose()
  }

  #later(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined
      this.#changed()
    }, SEND_EVERY)
  }
}

/** The editor's context keys as far as an extension can know them, by the editor's own names. */
function contextKeys(): WindowState['context'] {
  const document = vscode.window.activeTextEditor?.document
  const keys: WindowState['context'] = {
    workspaceFolderCount: vscode.workspace.workspaceFolders?.length ?? 0,
    isWorkspaceTrusted: vscode.workspace.isTrusted,
    remoteName: vscode.env.remoteName ?? '',
    isLinux: process.platform === 'linux',
    isMac: process.platform === 'darwin',
    isWindows: process.platform === 'win32',
    isWeb: vscode.env.uiKind === vscode.UIKind.Web,
    editorIsOpen: vscode.window.visibleTextEditors.length > 0,
  }
  if (document === undefined) return keys
  const filename = document.uri.path.split('/').at(-1) ?? ''
  return {
    ...keys,
    editorLangId: document.languageId,
    resourceLangId: document.languageId,
    resourceScheme: document.uri.scheme,
    resourceFilename: filename.slice(0, MAX_TEXT),
    resourceExtname: extname(filename).slice(0, MAX_TEXT),
  }
}
