/**
 * Lends the editor's tools: compares the list every few seconds, because the editor has no event for it.
 */

import * as vscode from 'vscode'
import type { ToolItem } from '../protocol.ts'

const POLL_MILLISECONDS = 3000
const MAX_TOOLS = 1024
const OWN_TOOLS = /^mcp_toolgate_/i // tools of the gateway itself, which lending would bring back to it

/**
 * Tools that work only within a turn of the editor's own chat, each tried without one in VS Code 1.139.
 *
 * Some of them ask the person first and fail afterwards, which is worse than not being there; some answer as if the person
 * had declined; some only make sense beside one of the others.
 */
export const NEED_A_TURN: ReadonlySet<string> = new Set([
  // the terminal and tasks
  'run_in_terminal',
  'get_terminal_output',
  'kill_terminal',
  'send_to_terminal',
  'run_task',
  'create_and_run_task',
  // edits, which stream into the chat
  'copilot_applyPatch',
  'copilot_createFile',
  'copilot_createNewJupyterNotebook',
  'copilot_createNewWorkspace',
  'copilot_editFiles',
  'copilot_editNotebook',
  'copilot_insertEdit',
  'copilot_multiReplaceString',
  'copilot_replaceString',
  'vscode_editFile_internal',
  // questions, plans and sub-agents of the chat itself
  'copilot_fetchWebPage',
  'copilot_memory',
  'copilot_resolveMemoryFileUri',
  'copilot_sessionStoreSql',
  'copilot_switchAgent',
  'execution_subagent',
  'explore_subagent',
  'inline_chat_exit',
  'manage_todo_list',
  'renderMermaidDiagram',
  'runSubagent',
  'search_subagent',
  'setup_tools_createNewWorkspace',
  'task_complete',
  'tool_search',
  'vscode_askQuestions',
  'vscode_get_confirmation',
  'vscode_get_confirmation_with_options',
  'vscode_get_modified_files_confirmation',
  'vscode_get_terminal_confirmation',
  'vscode_reviewPlan',
])

export class ToolLender implements vscode.Disposable {
  readonly #changed: (items: ToolItem[]) => void
  readonly #excluded: () => readonly string[]
  readonly #needTurn = new Set<string>()
  #enabled = false
  #items: ToolItem[] = []
  #fingerprint = '[]'
  #timer: NodeJS.Timeout | undefined

  constructor(excluded: () => readonly string[], changed: (items: ToolItem[]) => void) {
    this.#excluded = excluded
    this.#changed = changed
  }

  get items(): readonly ToolItem[] {
    return this.#items
  }

  get enabled(): boolean {
    return this.#enabled
  }

  set enabled(enabled: boolean) {
    this.#enabled = enabled
    clearInterval(this.#timer)
    if (enabled) this.#timer = setInterval(() => this.refresh(), POLL_MILLISECONDS)
    this.refresh()
  }

  has(name: string): boolean {
    return this.#items.some((item) => item.name === name)
  }

  /** Stop lending a tool that turned out to need a turn. */
  exclude(name: string): void {
    this.#needTurn.add(name)
    this.refresh()
  }

  refresh(): void {
    const items = this.#enabled ? this.#lent() : []
    const fingerprint = JSON.stringify(items)
    if (fingerprint === this.#fingerprint) return
    this.#fingerprint = fingerprint
    this.#items = items
    this.#changed(items)
  }

  dispose(): void {
    clearInterval(this.#timer)
  }

  #lent(): ToolItem[] {
    const excluded = this.#excluded().map(globPattern)
    return vscode.lm.tools
      .filter(({ name }) => !OWN_TOOLS.test(name) && !NEED_A_TURN.has(name) && !this.#needTurn.has(name))
      .filter(({ name }) => !excluded.some((pattern) => pattern.test(name)))
      .map((tool) => ({
        name: tool.name,
        description: tool.description,
        input_schema: tool.inputSchema ?? null,
        tags: [...tool.tags],
      }))
      .sort((left, right) => (left.name < right.name ? -1 : 1))
      .slice(0, MAX_TOOLS)
  }
}

function escape(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
}

/** Translate a name with `*` into a pattern. */
function globPattern(glob: string): RegExp {
  return new RegExp(`^${glob.split('*').map(escape).join('.*')}$`)
}
