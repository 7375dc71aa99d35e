// The composer: message, images, model, and which tools the server may run.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { get } from "../api.js";
import { may, models, status, store, stored } from "../state.js";
import { Button, Dialog, ErrorNote, Field, html, Icon, notify, Spinner, Switch, useLoad } from "../ui.js";

const MOST_IMAGES = 8;
/** The longer side of an image in pixels; larger ones are made smaller before they are sent. */
const LARGEST_SIDE = 1568;
const OPTIONS = "toolgate.options";

/** How messages are sent, the same in all conversations of this browser. */
export const options = signal({ tools: true, chosen: null, durable: true, instructions: "", ...read() });

function read() {
  try {
    return JSON.parse(stored("localStorage", OPTIONS) ?? "{}");
  } catch {
    return {};
  }
}

function change(fields) {
  options.value = { ...options.value, ...fields };
  store("localStorage", OPTIONS, JSON.stringify(options.value));
}

/** Whether the server keeps the run: it must be able to show its approvals to this key, or nobody would see them. */
const isDurable = ({ durable }) => durable && (!usesTools() || may("tools"));

export const usesTools = () => options.value.tools && status.value.tools;

/** The fields of a request by the options. */
export function requestOf(model) {
  const { chosen, instructions } = options.value;
  const request = { model };
  if (isDurable(options.value)) request.background = true;
  if (usesTools()) Object.assign(request, { tool_execution: "auto", use_server_tools: chosen ?? true, tool_status: "events" });
  if (instructions.trim()) request.instructions = instructions;
  return request;
}

const drafts = new Map();
/** The model of the conversation that is shown. */
export const chosenModel = signal(null);

export function Composer({ conversation, onSend }) {
  const id = conversation.meta.id;
  const [text, setText] = useState(drafts.get(id)?.text ?? "");
  const [images, setImages] = useState(drafts.get(id)?.images ?? []);
  const model = chosenModel.value;
  const [shown, setShown] = useState(false);
  const field = useRef(null);
  const running = conversation.running;
  drafts.set(id, { text, images });
  useLayoutEffect(() => {
    chosenModel.value = firstModel(conversation);
    if (matchMedia("(pointer: fine)").matches) field.current.focus();
  }, [id]);
  useLayoutEffect(() => {
    const { style } = field.current;
    style.height = "auto";
    style.height = `${Math.min(field.current.scrollHeight, 240)}px`;
  }, [text]);

  const send = (event) => {
    event?.preventDefault();
    if (running || (!text.trim() && !images.length)) return;
    store("localStorage", "toolgate.model", model);
    setText("");
    setImages([]);
    onSend(text, images, requestOf(model));
  };
  const attach = async (files) => {
    const pictures = [...files].filter((file) => file.type.startsWith("image/"));
    if (!pictures.length) return;
    const read = await Promise.all(pictures.slice(0, MOST_IMAGES).map((file) => shrink(file).catch(() => null)));
    if (read.includes(null)) notify("An image could not be read.", "danger");
    setImages((before) => [...before, ...read.filter(Boolean)].slice(0, MOST_IMAGES));
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    if (event.key === "Escape" && running) conversation.stop();
  };
  const onPaste = (event) => {
    const files = [...event.clipboardData.files];
    if (files.some((file) => file.type.startsWith("image/"))) (event.preventDefault(), attach(files));
  };
  return html`${shown ? html`<${Options} onClose=${() => setShown(false)} />` : null}<form class="composer" onSubmit=${send} onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => (event.preventDefault(), attach(event.dataTransfer.files))}>
    <div class="composer-box">
      ${images.length ? html`<div class="images">${images.map((url, at) => html`<span class="attached"><img src=${url} alt=${`Attached image ${at + 1}`} /><${Button} icon="cross" label=${`Remove image ${at + 1}`} onClick=${() => setImages(images.filter((_, one) => one !== at))} /></span>`)}</div>` : null}
      <textarea ref=${field} aria-label="Message" placeholder="Ask anything" rows="1" value=${text} onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${onKeyDown} onPaste=${onPaste}></textarea>
      <div class="composer-foot">
        <${Attach} onFiles=${attach} />
        <select class="model" aria-label="Model" value=${model} onChange=${(event) => (chosenModel.value = event.currentTarget.value)}>${models.value.map((one) => html`<option key=${one.id} value=${one.id}>${one.id}</option>`)}</select>
        <${Switch} label="Server tools" disabled=${!status.value.tools} checked=${usesTools()} onChange=${(tools) => change({ tools })} title="Let the server run its tools for this answer" />
        <${Button} kind="ghost" icon="tune" label="Options" onClick=${() => setShown(true)}>${usesTools() && options.value.chosen ? `${options.value.chosen.length}` : null}<//>
        <span class="grow"></span>
        ${running ? html`<${Button} icon="stop" class="stop" onClick=${() => conversation.stop().catch((error) => notify(error.message, "danger"))}>Stop<//>` : html`<button class="button primary send" disabled=${!text.trim() && !images.length}><${Icon} name="send" /><span>Send</span></button>`}
      </div>
    </div>
  </form>`;
}

function firstModel(conversation) {
  const known = new Set(models.value.map((one) => one.id));
  return [conversation.meta.model, stored("localStorage", "toolgate.model"), status.value.default_model].find((name) => known.has(name)) ?? models.value[0]?.id;
}

function Attach({ onFiles }) {
  const input = useRef(null);
  return html`<input ref=${input} type="file" accept="image/*" multiple hidden aria-label="Image files" onChange=${(event) => (onFiles(event.currentTarget.files), (event.currentTarget.value = ""))} />
    <${Button} kind="ghost" icon="image" label="Attach image" onClick=${() => input.current.click()} />`;
}

/** The image as a data URL, made smaller if it is larger than models look at. */
async function shrink(file) {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, LARGEST_SIDE / Math.max(picture.width, picture.height));
  if (scale === 1 && file.size < 1_000_000 && /png|jpeg|gif|webp/.test(file.type)) return dataUrl(file);
  const canvas = new OffscreenCanvas(Math.round(picture.width * scale), Math.round(picture.height * scale));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return dataUrl(await canvas.convertToBlob({ type: file.type === "image/png" ? "image/png" : "image/jpeg", quality: 0.9 }));
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** Instructions, which tools, and whether the server goes on when the page is closed. */
function Options({ onClose }) {
  const { chosen, durable, instructions } = options.value;
  return html`<${Dialog} title="Options" onClose=${onClose} actions=${html`<${Button} kind="primary" onClick=${onClose}>Done<//>`}>
    <${Field} label="Instructions" hint="Sent with every message, before the conversation.">
      <textarea rows="3" value=${instructions} onInput=${(event) => change({ instructions: event.currentTarget.value })} placeholder="You are a helpful assistant."></textarea><//>
    <div><${Switch} label="Keep running when I leave" checked=${durable} onChange=${(value) => change({ durable: value })} />
      <p class="hint">The server finishes the answer even if this page is closed or the server restarts, and the page goes on from there. Such answers are listed in Runs.${durable && !isDurable(options.value) ? " This key may not see approvals, so answers with tools run only while the page is open." : ""}</p></div>
    ${usesTools() && may("tools") ? html`<${ToolPicker} chosen=${chosen} />` : null}
  <//>`;
}

function ToolPicker({ chosen }) {
  const { data, error } = useLoad((signal) => get("/v1/tools", {}, { signal }));
  const [search, setSearch] = useState("");
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Spinner} />`;
  const all = data.data.map((tool) => tool.name);
  const found = data.data.filter((tool) => `${tool.name} ${tool.description} ${tool.tags.join(" ")}`.toLowerCase().includes(search.toLowerCase()));
  const picked = new Set(chosen ?? all);
  const toggle = (name) => {
    const next = all.filter((one) => (one === name ? !picked.has(one) : picked.has(one)));
    change({ chosen: next.length === all.length ? null : next });
  };
  return html`<fieldset class="picker"><legend class="hint">${chosen ? `${picked.size} of ${all.length} tools` : `All ${all.length} tools, and those that are added later`}</legend>
    <div class="row"><input type="search" class="grow" aria-label="Search tools" placeholder="Search tools" value=${search} onInput=${(event) => setSearch(event.currentTarget.value)} />
      <${Button} onClick=${() => change({ chosen: null })}>All<//><${Button} onClick=${() => change({ chosen: [] })}>None<//></div>
    <ul>${found.slice(0, 200).map((tool) => html`<li key=${tool.name}><label class="check"><input type="checkbox" checked=${picked.has(tool.name)} onChange=${() => toggle(tool.name)} /><span class="grow"><b>${tool.displayName ?? tool.name}</b> <span class="hint">${(tool.userDescription ?? tool.description).slice(0, 140)}</span></span></label></li>`)}</ul>
    ${found.length > 200 ? html`<p class="hint">${found.length - 200} more: search for them.</p>` : null}
  </fieldset>`;
}
