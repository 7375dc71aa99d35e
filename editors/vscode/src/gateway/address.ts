/** Where the gateway is: its URLs, derived from the base URL of the settings. */

/** Whether a host name means this machine. */
export function isLoopback(hostname: string): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d{1,3}){3}$/.test(hostname)
}

/**
 * Read a base URL as a person writes it, with or without a slash or `/v1` at its end; throws a sentence for the person.
 *
 * `localhost` becomes 127.0.0.1: it may also mean [::1], where the program of another user can listen.
 */
export function parseBaseUrl(text: string): string {
  const trimmed = text.trim()
  if (!URL.canParse(trimmed)) throw new Error(`${trimmed || 'Nothing'} is no URL. An example: http://127.0.0.1:8080`)
  const url = new URL(trimmed)
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new Error(`It must begin with http:// or https://, not ${url.protocol}//`)
  if (url.protocol === 'http:' && !isLoopback(url.hostname))
    throw new Error(`${url.hostname} is another machine: use https://`)
  if (url.protocol === 'http:' && url.hostname === 'localhost') url.hostname = '127.0.0.1'
  return url.origin + url.pathname.replace(/\/(v1\/?)?$/, '')
}

/** Return the URL of the bridge and what is dialled there, as `host:port`. */
export function bridgeAddress(baseUrl: string): { url: string; address: string } {
  const url = new URL(baseUrl)
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  return { url: `${baseUrl.replace(/^http/, 'ws')}/bridge`, address: `${url.hostname}:${port}` }
}
