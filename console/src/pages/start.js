// How a program connects to this server, and how far the local model is.
import { get, root } from "../api.js";
import { usesTools } from "../chat/composer.js";
import { Code } from "../code.js";
import { href, may, models, status } from "../state.js";
import { Badge, Button, Copy, html, Icon, Logo, PageHead, Tabs, useInterval } from "../ui.js";

const LOOK_EVERY = 2000;

export function Start() {
  const { keys_required: keyed } = status.value;
  return html`<div class="start"><${PageHead} title="Start">One server for every client: point a program at it by its base URL, and choose a model by its name.<//>
    <${LocalModel} />
    <section><h2>Base URLs</h2><${BaseUrls} />
      <p class="hint">${keyed ? "Send your key as a bearer token or in x-api-key." : "This server asks for no key. A client that wants one gets any text."}</p></section>
    <section><h2>Call it from</h2><${Tabs} label="Clients" tabs=${snippets().map(([name, text, language, hint]) => [name, html`<${Code} text=${text} language=${language} />${hint ? html`<p class="hint">${hint}</p>` : null}`])} /></section>
    <section><h2>Models</h2><p class="row">${models.value.map((one) => html`<span class="badge" key=${one.id}>${one.id}</span>`)}</p></section>
  </div>`;
}

/** What an empty conversation shows. */
export function Welcome({ model, onSuggest }) {
  const asks = model === "echo" ? ['call calculator {"expression": "1299.90 * 3 / 1.19"}', 'call clock {"timezone": "Asia/Tokyo"}', "Write this back in **bold**"] : ["What is 1299.90 × 3 ÷ 1.19? Use the calculator.", "What time is it in Tokyo?", "Explain what a tool call is, with an example."];
  const shown = usesTools() ? asks : asks.slice(-1);
  return html`<div class="welcome">
    <div class="head"><${Logo} /><h2>What can I do for you?</h2>${model === "echo" ? html`<p class="soft">echo repeats what you say and calls the tools that you name, so that everything can be tried without a model.</p>` : null}</div>
    <${LocalModel} />
    <div class="suggestions">${shown.map((text) => html`<${Button} key=${text} onClick=${() => onSuggest(text)}>${text}<//>`)}</div>
    <div><${BaseUrls} /><p class="hint">Programs connect to these addresses. <a href=${href("start")}>Examples for each client</a></p></div>
  </div>`;
}

function BaseUrls() {
  const bases = status.value.base_urls ?? { openai: `${root}/v1`, anthropic: root, ollama: root };
  const rows = [["OpenAI", bases.openai], ["Anthropic", bases.anthropic], ["Ollama", bases.ollama], ...(may("tools") ? [["MCP", `${root}/mcp`]] : [])];
  return html`<dl class="bases">${rows.map(([name, url]) => html`<div key=${name}><dt>${name}</dt><dd><span class="mono">${url}</span><${Copy} text=${url} label=${`Copy the ${name} base URL`} /></dd></div>`)}</dl>`;
}

const WAITING = new Set(["downloading", "loading"]);

/** How far the local model is, as long as it is not ready. */
function LocalModel() {
  const local = status.value.local_model;
  useInterval(async () => {
    if (WAITING.has(status.value.local_model?.state)) status.value = await get("/v1/status").catch(() => status.value);
  }, LOOK_EVERY);
  if (!WAITING.has(local?.state)) return null;
  return html`<div class="card local" role="status"><div class="row"><${Icon} name="down" /><b class="grow">The local model is being made ready</b><${Badge} kind="info">${local.percent ? `${Math.round(local.percent)} %` : local.state}<//></div>
    <progress max="100" value=${local.percent ?? undefined} aria-label="Local model"></progress><p class="hint">${local.message || "It answers as soon as it is here; the other models can be used meanwhile."}</p></div>`;
}

/** Examples that work when they are pasted: [name, text, language, hint]. */
function snippets() {
  const bases = status.value.base_urls ?? { openai: `${root}/v1`, anthropic: root, ollama: root };
  const keyed = status.value.keys_required;
  const model = status.value.default_model ?? models.value[0]?.id ?? "echo";
  const key = keyed ? 'os.environ["TOOLGATE_KEY"]' : '"unused"';
  const header = keyed ? ' \\\n  -H "authorization: Bearer $TOOLGATE_KEY"' : "";
  const imports = keyed ? "import os\n\n" : "";
  return [
    ["curl", `curl ${bases.openai}/chat/completions${header} \\\n  -H 'content-type: application/json' \\\n  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello"}]}'`, "sh"],
    ["OpenAI", `${imports}from openai import OpenAI\n\nclient = OpenAI(base_url="${bases.openai}", api_key=${key})\nanswer = client.responses.create(\n    model="${model}",\n    input="What is 6 * 7?",\n    extra_body={"tool_execution": "auto", "use_server_tools": True},\n)\nprint(answer.output_text)`, "python", "The last two fields let the server run its own tools. Chat Completions works in the same way."],
    ["Anthropic", `${imports}from anthropic import Anthropic\n\nclient = Anthropic(base_url="${bases.anthropic}", api_key=${key})\nanswer = client.messages.create(\n    model="${model}",\n    max_tokens=1024,\n    messages=[{"role": "user", "content": "Hello"}],\n)\nprint(answer.content[0].text)`, "python"],
    ["Ollama", `OLLAMA_HOST=${bases.ollama} ollama run ${model}`, "sh", "Any client of Ollama's API works with this address."],
    ["JavaScript", `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${bases.openai}", apiKey: ${keyed ? "process.env.TOOLGATE_KEY" : '"unused"'} });\nconst stream = await client.chat.completions.create({\n  model: "${model}",\n  messages: [{ role: "user", content: "Hello" }],\n  stream: true,\n});\nfor await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");`, "js"],
    ["Claude Code", `ANTHROPIC_BASE_URL=${bases.anthropic} ANTHROPIC_AUTH_TOKEN=${keyed ? "$TOOLGATE_KEY" : "unused"} claude --model ${model}`, "sh"],
    ["MCP", JSON.stringify({ mcpServers: { toolgate: { type: "http", url: `${root}/mcp`, ...(keyed ? { headers: { Authorization: "Bearer ${TOOLGATE_KEY}" } } : {}) } } }, null, 2), "json", "Gives a client of the Model Context Protocol the tools of this server."],
  ];
}
