/**
 * What to enter in other programs so that they use the gateway.
 */

const UNUSED = 'unused' // for clients that insist on a key, at a gateway without keys
const KEY_VARIABLE = 'TOOLGATE_KEY'

export interface ClientSetup {
  /** The program's name, as its makers write it. */
  name: string
  /** Where the text goes. */
  place: string
  text: string
  language: string
  /** The environment and the command line of a terminal that runs the program. */
  terminal?: { env: Record<string, string>; command: string }
}

/**
 * Claude Code speaks the Messages API.
 *
 * A token is sent without the question that it asks about an API key; its small model and its sub-agents would otherwise ask
 * for models that the gateway need not have.
 */
export function claudeCode(baseUrl: string, model: string, key: string | undefined): ClientSetup {
  const env = {
    ANTHROPIC_BASE_URL: baseUrl,
    ANTHROPIC_AUTH_TOKEN: key ?? UNUSED,
    ANTHROPIC_MODEL: model,
    ANTHROPIC_DEFAULT_OPUS_MODEL: model,
    ANTHROPIC_DEFAULT_SONNET_MODEL: model,
    ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
  }
  return {
    name: 'Claude Code',
    place: '~/.claude/settings.json',
    language: 'json',
    text: `${JSON.stringify({ env: { ...env, ANTHROPIC_AUTH_TOKEN: shownKey(key) } }, undefined, 2)}\n`,
    terminal: { env, command: 'claude' },
  }
}

/** Codex speaks the Responses API; without `env_key` it sends no key. */
export function codex(baseUrl: string, model: string, key: string | undefined): ClientSetup {
  const provider = {
    name: 'Toolgate',
    base_url: `${baseUrl}/v1`,
    wire_api: 'responses',
    ...(key === undefined ? {} : { env_key: KEY_VARIABLE }),
  }
  const fields = Object.entries(provider)
  const options = [
    ['model', model],
    ['model_provider', 'toolgate'],
    ...fields.map(([name, value]) => [`model_providers.toolgate.${name}`, value]),
  ]
  const hint = key === undefined ? '' : `# The key is read from the environment variable ${KEY_VARIABLE}.\n`
  return {
    name: 'Codex',
    place: '~/.codex/config.toml',
    language: 'toml',
    text: [
      `${hint}model = ${JSON.stringify(model)}`,
      'model_provider = "toolgate"\n',
      '[model_providers.toolgate]',
      ...fields.map(([name, value]) => `${name} = ${JSON.stringify(value)}`),
      '',
    ].join('\n'),
    terminal: {
      env: key === undefined ? {} : { [KEY_VARIABLE]: key },
      command: `codex ${options.map(([name, value]) => `-c ${quote(`${name ?? ''}=${JSON.stringify(value)}`)}`).join(' ')}`,
    },
  }
}

/** Continue speaks Chat Completions. */
export function continueDev(baseUrl: string, model: string, key: string | undefined): ClientSetup {
  return {
    name: 'Continue',
    place: '~/.continue/config.yaml',
    language: 'yaml',
    text: `name: Toolgate
version: 1.0.0
schema: v1
models:
  - name: ${JSON.stringify(model)}
    provider: openai
    model: ${JSON.stringify(model)}
    apiBase: ${baseUrl}/v1
    apiKey: ${shownKey(key)}
    roles: [chat, edit, apply]
    capabilities: [tool_use]
`,
  }
}

/** A request of a lent model by curl, for a terminal whose environment has the key. */
export function curl(baseUrl: string, model: string, key: string | undefined): ClientSetup {
  const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] })
  const headers = ['content-type: application/json', ...(key === undefined ? [] : [`authorization: Bearer $${KEY_VARIABLE}`])]
  const text = `curl ${baseUrl}/v1/chat/completions ${headers.map((header) => `-H "${header}"`).join(' ')} -d ${quote(body)}`
  return {
    name: 'Toolgate',
    place: 'a terminal',
    language: 'shellscript',
    text: `${text}\n`,
    terminal: { env: key === undefined ? {} : { [KEY_VARIABLE]: key }, command: text },
  }
}

/** A stored key is not written into a text that is copied around. */
function shownKey(key: string | undefined): string {
  return key === undefined ? UNUSED : 'YOUR_KEY'
}

/** Quote for a POSIX shell, if it must be. */
function quote(text: string): string {
  return /^[\w./:@=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
}
