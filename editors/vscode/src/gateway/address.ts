/** Where the gateway is: its URLs, derived from the base URL of the settings. */

/** Whether a host name means this machine. */
export function isLoopback(hostname: string): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d{1,3}){3}$/.test(hostname)
}

/** Return the URL of the bridge and what is dialled there, as `host:port`. */
export function bridgeAddress(baseUrl: string): { url: string; address: string } {
  const url = new URL(baseUrl)
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  return { url: `${baseUrl.replace(/^http/, 'ws')}/bridge`, address: `${url.hostname}:${port}` }
}
