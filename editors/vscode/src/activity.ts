/**
 * What the gateway's clients use right now, what they used last, and how many rounds that cost.
 *
 * A round is one request to one of the editor's models; each may count against the person's quota.
 * Knows numbers and names only: no content of any request is kept.
 */

import { BridgeError } from './protocol.ts'

export interface Use {
  readonly kind: 'model' | 'tool'
  readonly name: string
  readonly caller: string
  readonly since: number
  state: 'running' | 'consent'
  readonly cancel: () => void
}

/** One request of a client: its rounds and its tool calls, under one id. */
export interface RequestRecord {
  readonly id: string
  readonly caller: string
  readonly model: string | undefined
  readonly started: number
  readonly ended: number | undefined
  readonly rounds: number
  readonly calls: number
  readonly inputTokens: number
  readonly outputTokens: number
  readonly problem: string | undefined
}

export interface Caps {
  /** Most rounds of one request of a client; 0 is no cap. */
  roundsPerRequest: number
  /** Most rounds of all requests within an hour; 0 is no cap. */
  roundsPerHour: number
}

export interface UseStart {
  kind: 'model' | 'tool'
  name: string
  caller: string
  request: string
  /** Which round of its request this is, as the gateway counts them. */
  round?: number
  cancel: () => void
}

export interface UseEnd {
  inputTokens?: number
  outputTokens?: number
  problem?: string
}

const KEPT = 50
const HOUR = 3_600_000

export class Activity {
  readonly #caps: () => Caps
  readonly #changed: () => void
  readonly #uses = new Map<string, Use>()
  readonly #requests = new Map<string, RequestRecord>()
  readonly #openUses = new Map<string, number>()
  #rounds: number[] = []
  #total = 0

  constructor(caps: () => Caps, changed: () => void) {
    this.#caps = caps
    this.#changed = changed
  }

  get uses(): Use[] {
    return [...this.#uses.values()]
  }

  /** The last requests, newest first. */
  get requests(): RequestRecord[] {
    return [...this.#requests.values()].reverse()
  }

  get totalRounds(): number {
    return this.#total
  }

  get roundsThisHour(): number {
    const from = Date.now() - HOUR
    this.#rounds = this.#rounds.filter((at) => at > from)
    return this.#rounds.length
  }

  /** Record that a use begins, or refuse it when a cap of the person is reached. */
  begin(id: string, start: UseStart): void {
    const record = this.#requests.get(start.request)
    const earlier = Math.max(record?.rounds ?? 0, (start.round ?? 1) - 1)
    if (start.kind === 'model') this.#checkCaps(earlier)
    this.#uses.set(id, { ...start, since: Date.now(), state: 'running' })
    const model = start.kind === 'model' ? start.name : record?.model
    this.#put(start.request, {
      ...(record ?? emptyRecord(start)),
      model,
      ended: undefined,
      rounds: start.kind === 'model' ? earlier + 1 : (record?.rounds ?? 0),
      calls: (record?.calls ?? 0) + (start.kind === 'tool' ? 1 : 0),
    })
    this.#openUses.set(start.request, (this.#openUses.get(start.request) ?? 0) + 1)
    if (start.kind === 'model') {
      this.#rounds.push(Date.now())
      this.#total += 1
    }
    this.#changed()
  }

  /** Record that the person is being asked for consent, or no longer is. */
  waiting(id: string, consent: boolean): void {
    const use = this.#uses.get(id)
    if (use === undefined) return
    use.state = consent ? 'consent' : 'running'
    this.#changed()
  }

  end(id: string, request: string, end: UseEnd): void {
    if (!this.#uses.delete(id)) return
    const open = (this.#openUses.get(request) ?? 1) - 1
    if (open > 0) this.#openUses.set(request, open)
    else this.#openUses.delete(request)
    const record = this.#requests.get(request)
    if (record !== undefined)
      this.#put(request, {
        ...record,
        inputTokens: record.inputTokens + (end.inputTokens ?? 0),
        outputTokens: record.outputTokens + (end.outputTokens ?? 0),
        problem: end.problem,
        ended: open > 0 ? undefined : Date.now(),
      })
    this.#changed()
  }

  /** Cancel everything that runs. */
  cancelAll(): void {
    for (const use of this.uses) use.cancel()
  }

  /** Forget the requests that have ended; the count of rounds stays. */
  clear(): void {
    for (const id of this.#requests.keys()) if (!this.#openUses.has(id)) this.#requests.delete(id)
    this.#changed()
  }

  #checkCaps(rounds: number): void {
    const caps = this.#caps()
    if (caps.roundsPerRequest > 0 && rounds >= caps.roundsPerRequest)
      throw new BridgeError(
        'quota',
        `The person's cap of ${caps.roundsPerRequest} rounds for one request is reached (setting toolgate.lending.maxRoundsPerRequest in VS Code).`,
      )
    if (caps.roundsPerHour > 0 && this.roundsThisHour >= caps.roundsPerHour) {
      const oldest = this.#rounds[0] ?? Date.now()
      throw new BridgeError(
        'quota',
        `The person's cap of ${caps.roundsPerHour} rounds an hour is reached (setting toolgate.lending.maxRoundsPerHour in VS Code).`,
        Math.ceil((oldest + HOUR - Date.now()) / 1000),
      )
    }
  }

  #put(id: string, record: RequestRecord): void {
    this.#requests.set(id, record)
    if (this.#requests.size <= KEPT) return
    for (const old of this.#requests.keys())
      if (!this.#openUses.has(old)) {
        this.#requests.delete(old)
        return
      }
  }
}

function emptyRecord(start: UseStart): RequestRecord {
  return {
    id: start.request,
    caller: start.caller,
    model: undefined,
    started: Date.now(),
    ended: undefined,
    rounds: 0,
    calls: 0,
    inputTokens: 0,
    outputTokens: 0,
    problem: undefined,
  }
}
