/**
 * Decides where to dial and how the two sides recognise each other.
 */

import type { Endpoint } from './connection.ts'
import { bridgeAddress, isLoopback } from './gateway/address.ts'
import type { KeyStore } from './keys.ts'
import { readToken, tokenFile } from './proof.ts'
import type { Settings } from './settings.ts'

/**
 * Return the endpoint of the settings; rejects with a sentence for the person.
 *
 * On this machine the token is preferred to a key, because it also proves the gateway to the editor.
 */
export async function resolveEndpoint(settings: Settings, keys: KeyStore): Promise<Endpoint> {
  const { baseUrl } = settings
  const dialled = bridgeAddress(baseUrl)
  const mode = settings.get('authentication')
  const key = mode === 'token' ? undefined : await keys.get(baseUrl)
  const { protocol, hostname } = new URL(baseUrl)
  // A proof holds the address that the gateway itself listens on, which is never that of a proxy for TLS.
  if (mode === 'token' || (mode === 'auto' && protocol === 'http:' && isLoopback(hostname))) {
    const path = settings.get('tokenFile') || tokenFile()
    const token = await readToken(path)
    if (token !== undefined) return { ...dialled, token }
    if (key === undefined) throw new Error(`No gateway of yours has run on this machine yet: there is no ${path}.`)
  }
  if (key === undefined)
    throw new Error(`The gateway at ${dialled.address} needs a key with the scope "bridge". Run "Toolgate: Set API Key".`)
  return { ...dialled, key }
}
