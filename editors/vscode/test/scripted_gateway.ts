/**
 * A gateway for tests: the other end of the bridge on a real socket, driven by hand.
 *
 * It accepts WebSockets with node alone, so that the extension's tests need neither packages nor the real gateway.
 */

import { createHash } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import { createServer, type IncomingMessage, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Duplex } from 'node:stream'
import { computeProof, makeNonce } from '../src/proof.ts'
import { PROTOCOL } from '../src/protocol.ts'

export const TOKEN = '0123456789abcdef'.repeat(4)

export type Frame = Record<string, unknown> & { type: string }

/** One connection of an editor. */
export class Peer {
  readonly frames: Frame[] = []
  readonly headers: IncomingMessage['headers']
  closeCode: number | undefined
  readonly #socket: Duplex
  readonly #events = new EventEmitter()
  #buffer = Buffer.alloc(0)

  constructor(socket: Duplex, headers: IncomingMessage['headers']) {
    this.#socket = socket
    this.headers = headers
    socket.on('data', (data: Buffer) => this.#read(data))
    socket.on('error', () => undefined)
    socket.on('close', () => this.#events.emit('change'))
  }

  send(frame: object): void {
    this.sendText(JSON.stringify(frame))
  }

  sendText(text: string): void {
    this.#write(1, Buffer.from(text))
  }

  close(code: number, reason = ''): void {
    this.#write(8, Buffer.concat([Buffer.from([code >> 8, code & 255]), Buffer.from(reason)]))
    this.#socket.end()
  }

  /** Cut the connection without a word. */
  destroy(): void {
    this.#socket.destroy()
  }

  get closed(): boolean {
    return this.closeCode !== undefined || this.#socket.destroyed
  }

  /** Return the first frame that fits, now or later. */
  async frame(type: string, fits: (frame: Frame) => boolean = () => true): Promise<Frame> {
    for (;;) {
      const found = this.frames.find((frame) => frame.type === type && fits(frame))
      if (found !== undefined) return found
      if (this.closed) throw new Error(`closed with ${this.closeCode ?? 'no code'} before a frame ${type}`)
      await once(this.#events, 'change')
    }
  }

  /** Return all frames of one exchange after it has ended. */
  async exchange(id: string): Promise<Frame[]> {
    const ended = (frame: Frame): boolean => frame['id'] === id
    await Promise.race([this.frame('done', ended), this.frame('error', ended)])
    return this.frames.filter(ended)
  }

  async untilClosed(): Promise<number | undefined> {
    while (!this.closed) await once(this.#events, 'change')
    return this.closeCode
  }

  #write(opcode: number, payload: Buffer): void {
    const size = payload.length
    const head =
      size < 126
        ? Buffer.from([0x80 | opcode, size])
        : size < 65536
          ? Buffer.from([0x80 | opcode, 126, size >> 8, size & 255])
          : Buffer.concat([Buffer.from([0x80 | opcode, 127]), bigEndian(size)])
    this.#socket.write(Buffer.concat([head, payload]))
  }

  #read(data: Buffer): void {
    this.#buffer = Buffer.concat([this.#buffer, data])
    for (;;) {
      const message = readMessage(this.#buffer)
      if (message === undefined) return
      this.#buffer = this.#buffer.subarray(message.size)
      if (message.opcode === 8) this.closeCode = message.payload.length >= 2 ? message.payload.readUInt16BE(0) : 1005
      if (message.opcode === 8) this.#socket.end()
      if (message.opcode === 1) this.frames.push(JSON.parse(message.payload.toString()) as Frame)
      this.#events.emit('change')
    }
  }
}

function bigEndian(size: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64BE(BigInt(size))
  return bytes
}

function readMessage(buffer: Buffer): { opcode: number; payload: Buffer; size: number } | undefined {
  if (buffer.length < 2) return undefined
  let size = buffer.readUInt8(1) & 127
  let offset = 2
  if (size === 126) [size, offset] = [buffer.length < 4 ? Infinity : buffer.readUInt16BE(2), 4]
  else if (size === 127) [size, offset] = [buffer.length < 10 ? Infinity : Number(buffer.readBigUInt64BE(2)), 10]
  if (buffer.length < offset + 4 + size) return undefined
  const mask = buffer.subarray(offset, offset + 4)
  const payload = Buffer.from(buffer.subarray(offset + 4, offset + 4 + size))
  for (let index = 0; index < payload.length; index += 1) payload[index]! ^= mask[index & 3]!
  return { opcode: buffer.readUInt8(0) & 15, payload, size: offset + 4 + size }
}

export interface GatewayOptions {
  token?: string
  auth?: 'token' | 'key'
  heartbeat?: number
  maxFrame?: number
  /** What to do with a new connection instead of the handshake. */
  greet?: (peer: Peer) => void
  /** Answers plain HTTP requests. */
  http?: Parameters<typeof createServer>[1]
}

export class ScriptedGateway {
  readonly peers: Peer[] = []
  readonly #events = new EventEmitter()
  readonly #options: GatewayOptions
  #server: Server | undefined
  #port = 0

  constructor(options: GatewayOptions = {}) {
    this.#options = options
  }

  get address(): string {
    return `127.0.0.1:${this.#port}`
  }

  get url(): string {
    return `http://${this.address}`
  }

  /** Listen, after a stop at the same port again. */
  async start(): Promise<this> {
    const server = createServer(this.#options.http ?? ((_request, response) => response.writeHead(426).end()))
    server.on('upgrade', (request: IncomingMessage, socket: Duplex) => this.#upgrade(request, socket))
    server.listen(this.#port, '127.0.0.1')
    await once(server, 'listening')
    this.#port = (server.address() as AddressInfo).port
    this.#server = server
    return this
  }

  async stop(): Promise<void> {
    for (const peer of this.peers.splice(0)) peer.destroy()
    this.#server?.closeAllConnections()
    await new Promise((resolve) => this.#server?.close(resolve))
  }

  /** Return the newest connection after its registration. */
  async registered(count = 1): Promise<Peer> {
    while (this.peers.length < count) await once(this.#events, 'peer')
    const peer = this.peers[count - 1]!
    await peer.frame('register')
    return peer
  }

  async connected(count = 1): Promise<Peer> {
    while (this.peers.length < count) await once(this.#events, 'peer')
    return this.peers[count - 1]!
  }

  #upgrade(request: IncomingMessage, socket: Duplex): void {
    const key = request.headers['sec-websocket-key'] ?? ''
    const accept = createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64')
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`,
    )
    const peer = new Peer(socket, request.headers)
    this.peers.push(peer)
    this.#events.emit('peer')
    if (this.#options.greet === undefined) void this.#handshake(peer)
    else this.#options.greet(peer)
  }

  async #handshake(peer: Peer): Promise<void> {
    const { token = TOKEN, auth = 'token', heartbeat = 5, maxFrame = 16 * 1024 * 1024 } = this.#options
    const gatewayNonce = makeNonce()
    peer.send({ type: 'challenge', protocols: [PROTOCOL], nonce: gatewayNonce, auth })
    let hello
    try {
      hello = await peer.frame('hello')
    } catch {
      return // the editor left
    }
    const parts = { token, gatewayNonce, editorNonce: String(hello['nonce']), address: String(hello['address']) }
    if (auth === 'token' && hello['proof'] !== computeProof({ ...parts, side: 'editor' })) return peer.close(4401)
    const proof = auth === 'token' ? { proof: computeProof({ ...parts, side: 'gateway' }) } : {}
    const gateway = { name: 'toolgate', version: '0.0.0-test' }
    peer.send({ type: 'welcome', protocol: PROTOCOL, ...proof, session: 's1', heartbeat, max_frame: maxFrame, gateway })
  }
}
