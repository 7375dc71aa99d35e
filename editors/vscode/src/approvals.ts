/**
 * Approvals that wait for a person: the gateway sends them, the person answers by a toast or in the view.
 *
 * Arguments arrive with deceiving characters escaped by the gateway, and are shown as plain text.
 */

import type { EditorFrame, GatewayFrame, WireApproval } from './protocol.ts'

export type Level = 'once' | 'session' | 'workspace' | 'always'

export interface Answer {
  decision: 'approve' | 'deny'
  level?: Level
  arguments?: object
  reason?: string
}

export interface PendingApproval {
  readonly id: string
  readonly approval: WireApproval
}

export interface ApprovalEvents {
  changed(): void
  /** A new approval arrived. */
  arrived(pending: PendingApproval): void
  /** The gateway did not take an answer. */
  refused(message: string): void
}

const MAX_PENDING = 200
/** The codes of answers that came too late; after any other the question is still open. */
const IS_OVER = /^(already_\w+|approval_(expired|not_found)|out_of_scope)$/

export class ApprovalInbox {
  readonly #send: (frame: EditorFrame) => void
  readonly #events: ApprovalEvents
  readonly #pending = new Map<string, PendingApproval>()

  constructor(send: (frame: EditorFrame) => void, events: ApprovalEvents) {
    this.#send = send
    this.#events = events
  }

  get pending(): PendingApproval[] {
    return [...this.#pending.values()]
  }

  has(id: string): boolean {
    return this.#pending.has(id)
  }

  get(id: string): PendingApproval | undefined {
    return this.#pending.get(id)
  }

  received(frame: GatewayFrame): void {
    if (frame.type === 'approval') return this.#arrived({ id: frame.id, approval: frame.approval })
    if (frame.type === 'approval_closed' || frame.type === 'answered') return this.#closed(frame.id)
    if (frame.type === 'error') {
      this.#events.refused(frame.message)
      if (IS_OVER.test(frame.code)) this.#closed(frame.id)
    }
  }

  answer(id: string, answer: Answer): void {
    if (!this.#pending.has(id)) return this.#events.refused('This question is no longer open.')
    this.#send({ type: 'answer', id, ...answer })
  }

  /** Forget all; the gateway sends what is still open when it is there again. */
  reset(): void {
    if (this.#pending.size === 0) return
    this.#pending.clear()
    this.#events.changed()
  }

  #arrived(pending: PendingApproval): void {
    if (this.#pending.has(pending.id) || this.#pending.size >= MAX_PENDING) return
    this.#pending.set(pending.id, pending)
    this.#events.changed()
    this.#events.arrived(pending)
  }

  #closed(id: string): void {
    if (this.#pending.delete(id)) this.#events.changed()
  }
}
