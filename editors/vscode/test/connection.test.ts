/** The handshake, the heartbeat and what happens when a connection is lost or the other side is a stranger. */

import assert from 'node:assert/strict'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { computeProof, makeNonce, readToken, sameProof, tokenFile } from '../src/proof.ts'
import { PROTOCOL } from '../src/protocol.ts'
import { resolveEndpoint } from '../src/endpoint.ts'
import { KeyStore } from '../src/keys.ts'
import { Settings } from '../src/settings.ts'
import { editor } from './fakes/vscode.ts'
import { type Frame, type Peer, ScriptedGateway, TOKEN } from './scripted_gateway.ts'
import { stage } from './stage.ts'

test('a proof is the HMAC that the protocol demands', () => {
  const parts = {
    token: '00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff',
    gatewayNonce: 'AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8',
    editorNonce: 'Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA',
    address: '127.0.0.1:8080',
  }
  const editorProof = 'fc6dc7b4d428182ea953d270202e32bd68c5f9c8d7830fc89c3e86ffde3d77a3'
  assert.equal(computeProof({ ...parts, side: 'editor' }), editorProof)
  assert.equal(computeProof({ ...parts, side: 'gateway' }), '373dd59ad74959f12786aa39087fb45c0a02f49d59b30b2dccb908cb74d08465')
  assert.ok(sameProof(editorProof, editorProof))
  assert.ok(!sameProof(editorProof, ''))
  assert.notEqual(makeNonce(), makeNonce())
})

test('the token file is found where the gateway writes it', () => {
  assert.equal(tokenFile({ TOOLGATE_BRIDGE_TOKEN_FILE: '/x/t' }), '/x/t')
  assert.equal(tokenFile({ XDG_STATE_HOME: '/state' }, 'linux'), '/state/toolgate/bridge.token')
  assert.match(tokenFile({}, 'darwin'), /\.local\/state\/toolgate\/bridge\.token$/)
  assert.match(tokenFile({ LOCALAPPDATA: 'C:\\local' }, 'win32'), /C:\\local.toolgate.bridge\.token$/)
})

test('a token file that others can read is refused, and an absent one is none', async (context) => {
  const folder = await mkdtemp(join(tmpdir(), 'toolgate-'))
  context.after(() => rm(folder, { recursive: true }))
  const path = join(folder, 'bridge.token')
  assert.equal(await readToken(path), undefined)
  await writeFile(path, `${TOKEN}\n`, { mode: 0o600 })
  assert.equal(await readToken(path), TOKEN)
  await chmod(path, 0o640)
  await assert.rejects(readToken(path), /other users/)
  await chmod(path, 0o600)
  await writeFile(path, 'nonsense')
  await assert.rejects(readToken(path), /no token in it/)
})

test('the window introduces itself after the gateway has proven itself, and not before', async (context) => {
  const made = await stage(context)
  const peer = await made.connect()
  assert.deepEqual(peer.frames.map(({ type }) => type).slice(0, 2), ['hello', 'register'])
  const [hello, register] = peer.frames as [Frame, Frame]
  assert.deepEqual(Object.keys(hello).sort(), ['address', 'nonce', 'proof', 'protocol', 'type'])
  assert.equal(hello['address'], made.gateway.address)
  assert.deepEqual(register['lends'], { models: true, tools: true, approvals: true })
  const described = register['window'] as Record<string, unknown>
  assert.deepEqual(described['folders'], ['project'])
  assert.equal(described['focused'], true)
  assert.match(String(described['id']), /^[0-9a-f-]{36}$/)
  assert.equal(peer.headers.origin, undefined)
  assert.equal(peer.headers.authorization, undefined)
})

test('an impostor gateway learns nothing but a proof that is good for one connection', async (context) => {
  const made = await stage(context, {
    gateway: {
      greet: (peer) => {
        peer.send({ type: 'challenge', protocols: [PROTOCOL], nonce: makeNonce(), auth: 'token' })
        void peer.frame('hello').then(() => {
          peer.send({ type: 'welcome', protocol: PROTOCOL, proof: 'f'.repeat(64), session: 's', heartbeat: 5, max_frame: 1000 })
        })
      },
    },
    timings: { maxDelay: 60_000 },
  })
  const waiting = made.until('waiting')
  made.bridge.connection.start()
  const peer = await made.gateway.connected()
  assert.equal(await peer.untilClosed(), 4401)
  assert.deepEqual(peer.frames.map(({ type }) => type), ['hello'])
  const state = await waiting
  assert.match(state.kind === 'waiting' ? state.problem : '', /is not your Toolgate/)
})

test('a welcome that was recorded from an earlier connection is refused', async (context) => {
  let recorded: Frame | undefined
  const gatewayNonce = makeNonce()
  const replay = (peer: Peer): void => {
    peer.send({ type: 'challenge', protocols: [PROTOCOL], nonce: gatewayNonce, auth: 'token' })
    void peer.frame('hello').then((hello) => {
      const parts = { token: TOKEN, gatewayNonce, editorNonce: String(hello['nonce']), address: String(hello['address']) }
      const proof = computeProof({ ...parts, side: 'gateway' })
      recorded ??= { type: 'welcome', protocol: PROTOCOL, proof, session: 's', heartbeat: 5, max_frame: 10_000 }
      peer.send(recorded)
    })
  }
  const made = await stage(context, { gateway: { greet: replay }, timings: { maxDelay: 60_000 } })
  const first = await made.connect()
  first.destroy()
  const second = await made.gateway.connected(2)
  assert.equal(await second.untilClosed(), 4401)
  assert.deepEqual(second.frames.map(({ type }) => type), ['hello'])
})

test('the editor does not give up the token for a gateway that asks for a key', async (context) => {
  const made = await stage(context, { gateway: { auth: 'key' }, timings: { maxDelay: 60_000 } })
  made.bridge.connection.start()
  const peer = await made.gateway.connected()
  assert.equal(await peer.untilClosed(), 4401)
  assert.deepEqual(peer.frames, [])
})

test('with a key the gateway gets it in the request, and no proof', async (context) => {
  const made = await stage(context, {
    gateway: { auth: 'key' },
    endpoint: async () => ({ url: `${made.gateway.url.replace('http', 'ws')}/bridge`, address: made.gateway.address, key: 'tg-1' }),
  })
  const peer = await made.connect()
  assert.equal(peer.headers.authorization, 'Bearer tg-1')
  assert.equal(peer.frames[0]?.['proof'], undefined)
})

test('a gateway of another protocol is told so', async (context) => {
  const greet = (peer: Peer): void => peer.send({ type: 'challenge', protocols: ['toolgate-bridge.v9'], nonce: makeNonce(), auth: 'token' })
  const made = await stage(context, { gateway: { greet }, timings: { maxDelay: 60_000 } })
  made.bridge.connection.start()
  const peer = await made.gateway.connected()
  assert.equal(await peer.untilClosed(), 4426)
})

for (const [name, text] of [
  ['bytes that are no JSON', 'nonsense'],
  ['a list', '[]'],
  ['an object without a type', '{"id": "a"}'],
  ['a known type with a wrong field', '{"type": "ask", "id": 5, "model": {}, "messages": []}'],
] as const)
  test(`${name} close the connection with 4400`, async (context) => {
    const made = await stage(context)
    const peer = await made.connect()
    peer.sendText(text)
    assert.equal(await peer.untilClosed(), 4400)
  })

test('frames of unknown types are ignored', async (context) => {
  const made = await stage(context)
  const peer = await made.connect()
  peer.send({ type: 'fireworks', id: 'x' })
  peer.send({ type: 'constructor' })
  peer.send({ type: 'ping', n: 7 })
  assert.equal((await peer.frame('pong'))['n'], 7)
})

test('frames before the welcome are refused', async (context) => {
  const greet = (peer: Peer): void => peer.send({ type: 'ping', n: 1 })
  const made = await stage(context, { gateway: { greet } })
  made.bridge.connection.start()
  const peer = await made.gateway.connected()
  assert.equal(await peer.untilClosed(), 4400)
  assert.deepEqual(peer.frames, [])
})

test('a ping makes a round trip through the window', async (context) => {
  const made = await stage(context)
  const peer = await made.connect()
  peer.send({ type: 'ping', n: 42 })
  await peer.frame('pong')
  assert.equal(editor.contexts.get('toolgate.heartbeat'), 42)
})

test('a window that no longer answers closes its connection', async (context) => {
  const made = await stage(context, { timings: { roundTrip: 20 } })
  const peer = await made.connect()
  editor.windowAnswers = false
  peer.send({ type: 'ping', n: 1 })
  assert.equal(await peer.untilClosed(), 4410)
})

test('a silent gateway is left and dialled again', async (context) => {
  const made = await stage(context, { timings: { silence: 50 } })
  const peer = await made.connect()
  assert.equal(await peer.untilClosed(), 4408)
  await made.gateway.registered(2)
})

test('the window connects again after the gateway was killed and restarted', async (context) => {
  const made = await stage(context)
  await made.connect()
  const away = made.until('waiting')
  await made.gateway.stop()
  await away
  await made.gateway.start()
  const peer = await made.gateway.registered()
  assert.equal((peer.frames[1]?.['window'] as Record<string, unknown>)['id'], made.bridge.window.id)
})

test('an editor that was started before the gateway connects when it comes', async (context) => {
  const known: { token?: string } = {}
  const made = await stage(context, {
    endpoint: async () => {
      if (known.token === undefined) throw new Error('No gateway of yours has run on this machine yet.')
      return { url: `${made.gateway.url.replace('http', 'ws')}/bridge`, address: made.gateway.address, token: known.token }
    },
  })
  const waiting = made.until('waiting')
  made.bridge.connection.start()
  const state = await waiting
  assert.match(state.kind === 'waiting' ? state.problem : '', /No gateway of yours/)
  known.token = TOKEN
  await made.gateway.registered()
})

test('delays between tries grow to their limit', async (context) => {
  const made = await stage(context, { timings: { firstDelay: 8, maxDelay: 64 } })
  await made.gateway.stop()
  made.bridge.connection.start()
  while (made.states.filter(({ kind }) => kind === 'waiting').length < 6) await made.until('waiting')
  const delays = made.states.flatMap((state) => (state.kind === 'waiting' ? [state.seconds * 1000] : []))
  for (const [index, base] of [8, 16, 32, 64, 64, 64].entries()) {
    assert.ok(delays[index]! >= base * 0.75 && delays[index]! <= base * 1.25, `delay ${index} is ${delays[index]!}`)
  }
})

test('a window that is connected a second time elsewhere stays away', async (context) => {
  const made = await stage(context)
  const peer = await made.connect()
  const replaced = made.until('replaced')
  peer.close(4409)
  await replaced
  assert.equal(made.bridge.connection.state.kind, 'replaced')
})

test('a server without a bridge is named as such', async (context) => {
  const made = await stage(context)
  await made.gateway.stop()
  const other = await new ScriptedGateway({ http: (_request, response) => response.writeHead(404).end() }).start()
  context.after(() => other.stop())
  const { describeRefusal } = await import('../src/connection.ts')
  const text = await describeRefusal({ url: `${other.url.replace('http', 'ws')}/bridge`, address: other.address })
  assert.match(text, /has no bridge/)
})

test('the token is preferred on this machine, and a key is needed for others', async (context) => {
  const folder = await mkdtemp(join(tmpdir(), 'toolgate-'))
  context.after(() => rm(folder, { recursive: true }))
  const path = join(folder, 'bridge.token')
  const stored = new Map<string, string>()
  const keys = new KeyStore({
    get: async (name: string) => stored.get(name),
    store: async (name: string, value: string) => void stored.set(name, value),
    delete: async (name: string) => void stored.delete(name),
  })
  editor.reset()
  const settings = new Settings()
  editor.userSettings = { 'toolgate.tokenFile': path, 'toolgate.url': 'http://localhost:8080/v1/' }
  await assert.rejects(resolveEndpoint(settings, keys), /has run on this machine yet/)
  await writeFile(path, TOKEN, { mode: 0o600 })
  await keys.set('http://127.0.0.1:8080', 'tg-local')
  const local = { url: 'ws://127.0.0.1:8080/bridge', address: '127.0.0.1:8080' } // localhost may also be [::1], of another user
  assert.deepEqual(await resolveEndpoint(settings, keys), { ...local, token: TOKEN })
  editor.userSettings['toolgate.authentication'] = 'key'
  assert.deepEqual(await resolveEndpoint(settings, keys), { ...local, key: 'tg-local' })
  editor.userSettings = { 'toolgate.url': 'https://gate.example.org', 'toolgate.tokenFile': path }
  await assert.rejects(resolveEndpoint(settings, keys), /needs a key/)
  await keys.set('https://gate.example.org/v1', 'tg-remote')
  assert.deepEqual(await resolveEndpoint(settings, keys), {
    url: 'wss://gate.example.org/bridge',
    address: 'gate.example.org:443',
    key: 'tg-remote',
  })
  editor.userSettings = { 'toolgate.url': 'https://localhost:8443', 'toolgate.tokenFile': path }
  await assert.rejects(resolveEndpoint(settings, keys), /needs a key/, 'a proxy for TLS cannot be proven by the token')
  editor.userSettings = { 'toolgate.url': 'http://gate.example.org' }
  await assert.rejects(resolveEndpoint(settings, keys), /use https/)
})
