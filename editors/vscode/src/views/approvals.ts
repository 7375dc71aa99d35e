/**
 * The view of approvals, and the questions that ask for them.
 *
 * Names and arguments come from models and other programs: they are shown as plain text, never as markup.
 */

import * as vscode from 'vscode'
import type { ApprovalInbox, Level, PendingApproval } from '../approvals.ts'

const SHOWN = 200

export class ApprovalTree implements vscode.TreeDataProvider<PendingApproval> {
  readonly #inbox: ApprovalInbox
  readonly #changed = new vscode.EventEmitter<undefined>()
  readonly onDidChangeTreeData = this.#changed.event

  constructor(inbox: ApprovalInbox) {
    this.#inbox = inbox
  }

  refresh(): void {
    this.#changed.fire(undefined)
  }

  getChildren(row?: PendingApproval): PendingApproval[] {
    return row === undefined ? this.#inbox.pending : []
  }

  getTreeItem(pending: PendingApproval): vscode.TreeItem {
    const item = new vscode.TreeItem(pending.approval.tool ?? pending.id)
    item.id = pending.id
    item.description = shortArguments(pending)
    item.tooltip = `${questionText(pending)}\n\n${argumentsText(pending)}`
    item.iconPath = new vscode.ThemeIcon('shield', new vscode.ThemeColor('list.warningForeground'))
    item.contextValue = 'approval'
    item.command = { command: 'toolgate.reviewApproval', title: 'Review', arguments: [pending] }
    return item
  }
}

/**
 * Ask by a notification; closing it leaves the question in the view.
 *
 * What is too long for a notification cannot be approved there, unless the person has it before them.
 */
export async function notifyApproval(inbox: ApprovalInbox, pending: PendingApproval, isSeen = false): Promise<void> {
  const isWhole = argumentsText(pending).length <= SHOWN
  const buttons = [...(isWhole || isSeen ? ['Approve'] : []), 'Deny', 'Review…']
  const text = withoutLinks(`${questionText(pending)} ${shortArguments(pending)}`)
  const choice = await vscode.window.showInformationMessage(text, {}, ...buttons)
  if (choice === 'Approve') inbox.answer(pending.id, { decision: 'approve', level: 'once' })
  if (choice === 'Deny') inbox.answer(pending.id, { decision: 'deny' })
  if (choice === 'Review…') await reviewApproval(inbox, pending)
}

interface Choice extends vscode.QuickPickItem {
  level?: Level
  deny?: boolean
  edit?: boolean
  document?: boolean
}

/** Let the person see the whole call, edit its arguments, and choose how far an approval reaches. */
export async function reviewApproval(inbox: ApprovalInbox, pending: PendingApproval): Promise<void> {
  const choices: Choice[] = [
    { label: '$(check) Approve once', level: 'once' },
    { label: '$(edit) Approve once with other arguments…', edit: true },
    { label: '$(check-all) Approve for this session', description: 'every call of this tool, for a day at most', level: 'session' },
    { label: '$(check-all) Approve in this workspace', level: 'workspace' },
    { label: '$(check-all) Approve always', description: 'every call of this tool', level: 'always' },
    { label: '$(close) Deny', deny: true },
    { label: '$(file-code) Show the arguments in an editor', document: true },
  ]
  const choice = await vscode.window.showQuickPick(choices, {
    title: questionText(pending),
    placeHolder: shortArguments(pending),
    ignoreFocusOut: true,
  })
  if (choice === undefined) return
  if (choice.document) return await showArguments(inbox, pending)
  if (choice.edit) return await approveEdited(inbox, pending)
  if (choice.deny) return await denyWithReason(inbox, pending)
  inbox.answer(pending.id, { decision: 'approve', ...(choice.level === undefined ? {} : { level: choice.level }) })
}

async function showArguments(inbox: ApprovalInbox, pending: PendingApproval): Promise<void> {
  const content = prettyArguments(pending)
  const document = await vscode.workspace.openTextDocument({ language: 'json', content })
  await vscode.window.showTextDocument(document, { preview: true })
  void notifyApproval(inbox, pending, true)
}

async function approveEdited(inbox: ApprovalInbox, pending: PendingApproval): Promise<void> {
  const edited = await vscode.window.showInputBox({
    title: `Arguments of ${pending.approval.tool ?? pending.id}`,
    value: argumentsText(pending),
    ignoreFocusOut: true,
    validateInput: (text) => (parseObject(text) === undefined ? 'The arguments must be a JSON object.' : undefined),
  })
  const input = edited === undefined ? undefined : parseObject(edited)
  if (input !== undefined) inbox.answer(pending.id, { decision: 'approve', level: 'once', arguments: input })
}

async function denyWithReason(inbox: ApprovalInbox, pending: PendingApproval): Promise<void> {
  const reason = await vscode.window.showInputBox({
    title: `Deny ${pending.approval.tool ?? pending.id}`,
    prompt: 'A reason for the model (optional)',
    ignoreFocusOut: true,
  })
  if (reason !== undefined) inbox.answer(pending.id, { decision: 'deny', ...(reason === '' ? {} : { reason }) })
}

/** Break the links that notifications would make of `[text](address)`, which names and arguments of strangers may hold. */
export function withoutLinks(text: string): string {
  return text.replaceAll('](', '] (')
}

/** What is asked, in one line. */
export function questionText({ approval, id }: PendingApproval): string {
  const question = approval.question || approval.message || approval.title
  const caller = approval.caller ? ` for ${approval.caller}` : ''
  return question ? `${question} (${approval.tool ?? id}${caller})` : `Run ${approval.tool ?? id}${caller}?`
}

function argumentsText({ approval }: PendingApproval): string {
  const { arguments: given } = approval
  return typeof given === 'string' ? given : JSON.stringify(given ?? {})
}

function shortArguments(pending: PendingApproval): string {
  const text = argumentsText(pending)
  return text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text
}

function prettyArguments(pending: PendingApproval): string {
  const text = argumentsText(pending)
  const parsed = parseObject(text)
  return parsed === undefined ? text : JSON.stringify(parsed, undefined, 2)
}

function parseObject(text: string): object | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : undefined
  } catch {
    return undefined
  }
}
