/**
 * What to enter in other programs so that they use the gateway.
 */

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

/** Claude Code speaks the Messages API. */
export function claudeCode(baseUrl: string, model: string, key: string | undefined): ClientSetup {
  const env = { ANTHROPIC_BASE_URL: baseUrl, ANTHROPIC_API_KEY: key ?? 'unused', ANTHROPIC_MODEL: model }
  return {
    name: 'Claude Code',
    place: 'a terminal',
    language: 'shellscript',
    text: `${exports({ ...env, ...shownKey('ANTHROPIC_API_KEY', key) })}claude --model ${quote(model)}\n`,
    terminal: { env, command: `claude --model ${quote(model)}` },
  }
}

/** Codex speaks the Responses API. */
export function codex(baseUrl: string, model: string, key: string | undefined): ClientSetup {
  const text = `model = ${JSON.stringify(model)}
model_provider = "toolgate"

[model_providers.toolgate]
name = "Toolgate"
base_url = "${baseUrl}/v1"
wire_api = "responses"
env_key = "TOOLGATE_KEY"
`
  const options = [
    `-c model=${quote(model)}`,
    '-c model_provider=toolgate',
    '-c model_providers.toolgate.name=Toolgate',
    `-c model_providers.toolgate.base_url=${quote(`${baseUrl}/v1`)}`,
    '-c model_providers.toolgate.wire_api=responses',
    '-c model_providers.toolgate.env_key=TOOLGATE_KEY',
  ]
  return {
    name: 'Codex',
    place: '~/.codex/config.toml',
    language: 'toml',
    text,
    terminal: { env: { TOOLGATE_KEY: key ?? 'unused' }, command: `codex ${options.join(' ')}` },
  }
}

/** Continue speaks Chat Completions. */
export function continueDev(baseUrl: string, model: string): ClientSetup {
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
    apiKey: unused
    roles: [chat, edit, apply]
    capabilities: [tool_use]
`,
  }
}

function exports(env: Record<string, string>): string {
  return Object.entries(env)
    .map(([name, value]) => `export ${name}=${quote(value)}\n`)
    .join('')
}

/** A stored key is not written into a text that is copied around. */
function shownKey(name: string, key: string | undefined): Record<string, string> {
  return key === undefined ? {} : { [name]: 'YOUR_KEY' }
}

/** Quote for a POSIX shell, if it must be. */
function quote(text: string): string {
  return /^[\w./:@-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
}
