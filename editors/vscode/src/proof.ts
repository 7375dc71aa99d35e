/**
 * Proofs that each side of the bridge knows the token, without sending it.
 *
 * Knows the token file of the gateway and how a proof is computed. It must not know sockets.
 */

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { readFile, stat } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { PROTOCOL } from './protocol.ts'

export interface ProofParts {
  token: string
  side: 'editor' | 'gateway'
  gatewayNonce: string
  editorNonce: string
  address: string
}

/** Return 32 random bytes as base64url. */
export function makeNonce(): string {
  return randomBytes(32).toString('base64url')
}

/** Return the proof of one side as lower-case hex. */
export function computeProof(parts: ProofParts): string {
  const message = [PROTOCOL, parts.side, parts.gatewayNonce, parts.editorNonce, parts.address].join('\n')
  return createHmac('sha256', Buffer.from(parts.token, 'ascii')).update(message, 'utf8').digest('hex')
}

/** Compare two proofs in constant time. */
export function sameProof(expected: string, received: string): boolean {
  const [left, right] = [Buffer.from(expected), Buffer.from(received)]
  return left.length === right.length && timingSafeEqual(left, right)
}

/** Return where the gateway of this user keeps its token. */
export function tokenFile(env: NodeJS.ProcessEnv = process.env, platform: NodeJS.Platform = process.platform): string {
  const named = env['TOOLGATE_BRIDGE_TOKEN_FILE']
  if (named) return named
  if (platform === 'win32')
    return join(env['LOCALAPPDATA'] ?? join(homedir(), 'AppData', 'Local'), 'toolgate', 'bridge.token')
  return join(env['XDG_STATE_HOME'] ?? join(homedir(), '.local', 'state'), 'toolgate', 'bridge.token')
}

/**
 * Read the token; undefined while the file does not exist, because the gateway was never started.
 *
 * A file that others may read, or that another user owns, is refused: whoever made it could pass for the gateway.
 */
export async function readToken(path: string): Promise<string | undefined> {
  let status
  try {
    status = await stat(path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw new Error(`The token file ${path} cannot be read: ${(error as Error).message}`)
  }
  if (process.platform !== 'win32') {
    if ((status.mode & 0o077) !== 0)
      throw new Error(`The token file ${path} can be read by other users. Run: chmod 600 ${path}`)
    if (status.uid !== process.getuid?.()) throw new Error(`The token file ${path} belongs to another user.`)
  }
  const token = (await readFile(path, 'utf8')).trim()
  if (!/^[0-9a-f]{64}$/.test(token))
    throw new Error(`The token file ${path} has no token in it. Delete it and restart the gateway.`)
  return token
}
