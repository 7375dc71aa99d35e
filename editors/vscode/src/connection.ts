/**
 * The connection to the gateway: dials, proves both sides, keeps alive, and dials again after a loss.
 *
 * Nothing about the person or the window is sent before the gateway has proven that it knows the token.
 * Knows sockets and clocks. It must not know models, tools or the editor's API.
 */

import { computeProof, makeNonce, sameProof } from './proof.ts'
import { BridgeError, CloseCode, decodeFrame, MAX_FRAME, PROTOCOL } from './protocol.ts'
import type { Challenge, EditorFrame, GatewayFrame, Welcome } from './protocol.ts'

export interface Endpoint {
  /** The WebSocket's URL. */
  url: string
  /** What is dialled, as `host:port`; part of the proof. */
  address: string
  token?: string
  key?: string
}

export type ConnectionState =
  | { kind: 'off' }
  | { kind: 'connecting'; address: string }
  | { kind: 'connected'; address: string; session: string; version: string }
  | { kind: 'waiting'; problem: string; seconds: number }
  | { kind: 'replaced' }

export interface ConnectionHost {
  /** Where to dial and with what; rejects with a sentence for the person. */
  endpoint(): Promise<Endpoint>
  /** What this window says about itself once the gateway is proven. */
  register(): Extract<EditorFrame, { type: 'register' }>
  /** A round trip through the window, so that a dead window is noticed. */
  roundTrip(n: number): PromiseLike<unknown>
  stateChanged(state: ConnectionState): void
  received(frame: GatewayFrame): void
}

export interface Timings {
  firstDelay: number
  maxDelay: number
  /** A connection that lasted this long resets the delay. */
  stable: number
  /** For the challenge and the welcome. */
  handshake: number
  silence: number
  roundTrip: number
}

export const TIMINGS: Timings = {
  firstDelay: 500,
  maxDelay: 30_000,
  stable: 10_000,
  handshake: 10_000,
  silence: 20_000,
  roundTrip: 3_000,
}

const PAUSE_ABOVE = 1024 * 1024

export class BridgeConnection {
  readonly #host: ConnectionHost
  readonly #timings: Timings
  #state: ConnectionState = { kind: 'off' }
  #session: Session | undefined
  #timer: NodeJS.Timeout | undefined
  #delay: number
  #generation = 0

  constructor(host: ConnectionHost, timings: Timings = TIMINGS) {
    this.#host = host
    this.#timings = timings
    this.#delay = timings.firstDelay
  }

  get state(): ConnectionState {
    return this.#state
  }

  get connected(): boolean {
    return this.#state.kind === 'connected'
  }

  /** Dial now, and again after every loss until `stop`. */
  start(): void {
    this.stop()
    this.#delay = this.#timings.firstDelay
    void this.#dial()
  }

  /** Close the connection and stay away. */
  stop(): void {
    this.#generation += 1
    clearTimeout(this.#timer)
    this.#session?.close(CloseCode.normal, 'stopped')
    this.#session = undefined
    this.#become({ kind: 'off' })
  }

  /** Send a frame, or drop it when there is no connection: the gateway has then failed its id already. */
  send(frame: EditorFrame): void {
    if (this.connected) this.#session?.send(frame)
  }

  /** Resolve when less than 1 MiB waits to be sent. */
  async drained(): Promise<void> {
    while (this.#session !== undefined && this.#session.buffered > PAUSE_ABOVE) await delay(5)
  }

  async #dial(): Promise<void> {
    const generation = this.#generation
    let endpoint: Endpoint
    try {
      endpoint = await this.#host.endpoint()
    } catch (error) {
      if (generation === this.#generation) this.#retry((error as Error).message)
      return
    }
    if (generation !== this.#generation) return
    this.#become({ kind: 'connecting', address: endpoint.address })
    this.#session = new Session(endpoint, this.#host, this.#timings, {
      welcomed: (welcome) => {
        if (generation !== this.#generation) return
        const version = welcome.gateway?.version ?? ''
        this.#become({ kind: 'connected', address: endpoint.address, session: welcome.session, version })
      },
      closed: (end) => {
        if (generation === this.#generation) this.#closed(end)
      },
    })
  }

  #closed(end: SessionEnd): void {
    this.#session = undefined
    if (end.code === CloseCode.sameWindow) return this.#become({ kind: 'replaced' })
    if (end.welcomedFor >= this.#timings.stable) this.#delay = this.#timings.firstDelay
    if (end.code === CloseCode.proof || end.code === CloseCode.protocol) this.#delay = this.#timings.maxDelay
    this.#retry(end.problem)
  }

  #retry(problem: string): void {
    const wait = this.#delay * (0.75 + Math.random() / 2)
    this.#delay = Math.min(this.#delay * 2, this.#timings.maxDelay)
    this.#timer = setTimeout(() => void this.#dial(), wait)
    this.#become({ kind: 'waiting', problem, seconds: wait / 1000 })
  }

  #become(state: ConnectionState): void {
    if (state.kind === 'off' && this.#state.kind === 'off') return
    this.#state = state
    this.#host.stateChanged(state)
  }
}

interface SessionEnd {
  code: number
  problem: string
  welcomedFor: number
}

interface SessionOwner {
  welcomed(welcome: Welcome): void
  closed(end: SessionEnd): void
}

/** One socket from its opening to its close. */
class Session {
  readonly #endpoint: Endpoint
  readonly #host: ConnectionHost
  readonly #timings: Timings
  readonly #owner: SessionOwner
  readonly #socket: WebSocket
  readonly #nonce = makeNonce()
  #gatewayNonce: string | undefined
  #welcomedAt: number | undefined
  #maxFrame = MAX_FRAME
  #opened = false
  #ended = false
  #problem: string | undefined
  #watchdog: NodeJS.Timeout | undefined

  constructor(endpoint: Endpoint, host: ConnectionHost, timings: Timings, owner: SessionOwner) {
    this.#endpoint = endpoint
    this.#host = host
    this.#timings = timings
    this.#owner = owner
    const headers = endpoint.key === undefined ? {} : { authorization: `Bearer ${endpoint.key}` }
    // Node's WebSocket takes headers, which the type of browsers does not have.
    this.#socket = new WebSocket(endpoint.url, { headers })
    this.#socket.addEventListener('open', () => (this.#opened = true))
    this.#socket.addEventListener('message', (event) => this.#message(event.data))
    this.#socket.addEventListener('error', () => undefined) // a close event follows
    this.#socket.addEventListener('close', (event) => void this.#closed(event.code, event.reason))
    this.#watch(timings.handshake)
  }

  get buffered(): number {
    return this.#ended ? 0 : this.#socket.bufferedAmount
  }

  send(frame: EditorFrame): void {
    if (this.#ended || this.#socket.readyState !== WebSocket.OPEN) return
    const text = JSON.stringify(frame)
    if (text.length * 3 > this.#maxFrame && Buffer.byteLength(text) > this.#maxFrame)
      throw new BridgeError('too_large', `A frame of ${text.length} characters is larger than the gateway accepts.`)
    this.#socket.send(text)
  }

  /** Close, and report the end at once: a dead peer never answers the close frame. */
  close(code: number, problem: string): void {
    if (this.#ended) return
    this.#problem = problem
    this.#socket.close(code, problem.slice(0, 100))
    void this.#closed(code, '')
  }

  #message(data: unknown): void {
    if (this.#ended) return
    this.#watch(this.#welcomedAt === undefined ? this.#timings.handshake : this.#timings.silence)
    let frame
    try {
      frame = decodeFrame(typeof data === 'string' ? data : '')
    } catch (error) {
      return this.close(CloseCode.notAFrame, `The gateway sent what is no frame: ${(error as Error).message}.`)
    }
    if (frame === undefined) return
    if (frame.type === 'challenge') return this.#challenged(frame)
    if (frame.type === 'welcome') return this.#welcomed(frame)
    if (this.#welcomedAt === undefined)
      return this.close(CloseCode.notAFrame, 'The gateway sent frames before its welcome.')
    if (frame.type === 'ping') return this.#pinged(frame.n)
    if (frame.type !== 'pong') this.#host.received(frame)
  }

  #challenged(challenge: Challenge): void {
    const { address, key, token } = this.#endpoint
    if (this.#gatewayNonce !== undefined) return this.close(CloseCode.notAFrame, 'The gateway sent a second challenge.')
    if (!challenge.protocols.includes(PROTOCOL))
      return this.close(CloseCode.protocol, `The gateway at ${address} speaks another version of the bridge. Update both.`)
    if (challenge.auth === 'key' ? key === undefined : token === undefined)
      return this.close(CloseCode.proof, this.#impostor())
    this.#gatewayNonce = challenge.nonce
    const hello = { type: 'hello', protocol: PROTOCOL, nonce: this.#nonce, address } as const
    this.send(challenge.auth === 'key' ? hello : { ...hello, proof: this.#proof('editor') })
  }

  #welcomed(welcome: Welcome): void {
    if (this.#gatewayNonce === undefined || this.#welcomedAt !== undefined)
      return this.close(CloseCode.notAFrame, 'The gateway sent an unexpected welcome.')
    if (this.#endpoint.key === undefined && !sameProof(this.#proof('gateway'), welcome.proof ?? ''))
      return this.close(CloseCode.proof, this.#impostor())
    this.#welcomedAt = Date.now()
    this.#maxFrame = Math.min(MAX_FRAME, welcome.max_frame)
    this.#watch(this.#timings.silence)
    this.send(this.#host.register())
    this.#owner.welcomed(welcome)
  }

  #pinged(n: number): void {
    this.send({ type: 'pong', n })
    const gone = setTimeout(
      () => this.close(CloseCode.windowGone, 'The window does not answer.'),
      this.#timings.roundTrip,
    )
    void Promise.resolve(this.#host.roundTrip(n)).then(
      () => clearTimeout(gone),
      () => undefined, // a window that fails the round trip is as good as gone
    )
  }

  #proof(side: 'editor' | 'gateway'): string {
    return computeProof({
      side,
      token: this.#endpoint.token ?? '',
      gatewayNonce: this.#gatewayNonce ?? '',
      editorNonce: this.#nonce,
      address: this.#endpoint.address,
    })
  }

  #impostor(): string {
    return `The program at ${this.#endpoint.address} is not your Toolgate: it could not prove that it knows the token.`
  }

  #watch(timeout: number): void {
    clearTimeout(this.#watchdog)
    this.#watchdog = setTimeout(
      () => this.close(CloseCode.silence, `The gateway at ${this.#endpoint.address} has been silent for too long.`),
      timeout,
    )
  }

  async #closed(code: number, reason: string): Promise<void> {
    if (this.#ended) return
    this.#ended = true
    clearTimeout(this.#watchdog)
    const welcomedFor = this.#welcomedAt === undefined ? 0 : Date.now() - this.#welcomedAt
    const problem = this.#problem ?? (await this.#describe(code, reason))
    this.#owner.closed({ code, problem, welcomedFor })
  }

  /** Say why the gateway closed, or never opened, the socket. */
  async #describe(code: number, reason: string): Promise<string> {
    const { address, key } = this.#endpoint
    if (code === CloseCode.proof)
      return key === undefined
        ? `The gateway at ${address} refused the proof. It runs as another user, or with another token file.`
        : `The gateway at ${address} refused the key. It needs the scope "bridge".`
    if (code === CloseCode.protocol) return `The gateway at ${address} speaks another version of the bridge. Update both.`
    if (this.#opened) return reason === '' ? `The gateway at ${address} went away.` : `The gateway closed: ${reason}`
    return await describeRefusal(this.#endpoint)
  }
}

/** Ask over HTTP why a WebSocket was refused, which a WebSocket itself does not tell. Nothing secret is sent. */
export async function describeRefusal({ url, address, key }: Endpoint): Promise<string> {
  const absent = `No gateway answers at ${address}.`
  try {
    const probe = url.replace(/^ws/, 'http')
    const { status } = await fetch(probe, { signal: AbortSignal.timeout(2000), redirect: 'manual' })
    if (status === 404) return `The server at ${address} has no bridge. Update Toolgate, or switch its bridge on.`
    if (status === 503) return `The gateway at ${address} is busy or shutting down.`
    if (key !== undefined) return `The gateway at ${address} refused the key. It needs the scope "bridge".`
    if (status === 401 || status === 403)
      return `The gateway at ${address} asks for a key with the scope "bridge". Run "Toolgate: Set API Key".`
    return `The server at ${address} refused the connection.`
  } catch {
    return absent
  }
}

export function delay(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds))
}
