// Shows JSON Schemas to people: a table of what a tool takes, and a form that makes the arguments of a call.
// What a form cannot express is edited as JSON. It must not know where a schema comes from.
import { html, Field } from "./ui.js";

const DEEPEST = 4;
const LONG = /^(text|content|body|code|prompt|message|query|script|html|markdown|sql|description)$/i;

/** Follow a local `$ref`, and take the one alternative that is not null. */
function resolve(schema, root) {
  for (let turns = 0; turns < 20 && schema && typeof schema === "object"; turns++) {
    if (typeof schema.$ref === "string" && schema.$ref.startsWith("#")) {
      const { $ref, ...rest } = schema;
      const steps = $ref.slice(1).split("/").filter(Boolean).map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
      const found = steps.reduce((at, step) => (at && Object.hasOwn(at, step) ? at[step] : undefined), root);
      if (!found || found === schema) return rest;
      schema = { ...found, ...rest };
      continue;
    }
    const variants = schema.anyOf ?? schema.oneOf;
    const solid = Array.isArray(variants) ? variants.filter((one) => one?.type !== "null") : [];
    if (solid.length !== 1) break;
    const { anyOf: _any, oneOf: _one, ...rest } = schema;
    schema = { ...solid[0], ...rest };
  }
  return schema && typeof schema === "object" ? schema : {};
}

/** The type of a schema in a few words. */
export function typeName(schema, root = schema, depth = 0) {
  const variants = schema?.anyOf ?? schema?.oneOf;
  if (Array.isArray(variants) && depth < DEEPEST) {
    return [...new Set(variants.map((one) => typeName(one, root, depth + 1)))].join(" or ");
  }
  const { type, items, enum: choices, const: constant, format } = resolve(schema, root);
  if (constant !== undefined) return JSON.stringify(constant);
  if (choices) return choices.length > 6 ? `one of ${choices.length}` : choices.map((one) => JSON.stringify(one)).join(" | ");
  const names = (Array.isArray(type) ? type : [type ?? "any"]).map((name) =>
    name === "array" && items && depth < DEEPEST ? `array of ${typeName(items, root, depth + 1)}` : name,
  );
  return names.join(" or ") + (format ? ` (${format})` : "");
}

const BOUNDS = [
  ["minimum", "≥"],
  ["exclusiveMinimum", ">"],
  ["maximum", "≤"],
  ["exclusiveMaximum", "<"],
  ["multipleOf", "multiple of"],
  ["minLength", "at least", "characters"],
  ["maxLength", "at most", "characters"],
  ["minItems", "at least", "items"],
  ["maxItems", "at most", "items"],
  ["pattern", "matches"],
];

function bounds(schema) {
  return BOUNDS.filter(([name]) => schema[name] !== undefined).map(([name, before, after = ""]) => `${before} ${schema[name]} ${after}`.trim());
}

/** All properties, nested ones below their parents, as `{name, depth, type, required, description, notes}`. */
export function propertyRows(schema, root = schema, depth = 0) {
  const { properties = {}, required = [] } = resolve(schema, root);
  return Object.entries(properties).flatMap(([name, raw]) => {
    const own = resolve(raw, root);
    const notes = bounds(own);
    if (own.default !== undefined) notes.push(`default ${JSON.stringify(own.default)}`);
    const row = { name, depth, type: typeName(raw, root), required: required.includes(name), description: own.description ?? "", notes };
    const inner = own.properties ? own : resolve(own.items, root);
    return [row, ...(depth < DEEPEST && inner.properties ? propertyRows(inner, root, depth + 1) : [])];
  });
}

/** What a tool takes, as a table. */
export function SchemaTable({ schema, label = "Parameters" }) {
  const rows = propertyRows(schema);
  if (!rows.length) return html`<p class="soft">It takes no arguments.</p>`;
  return html`<div class="table-scroll" role="region" aria-label=${label} tabindex="0"><table class="schema">
    <thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">Meaning</th></tr></thead>
    <tbody>${rows.map(
      (row, index) => html`<tr key=${index}>
        <td class=${`depth-${row.depth}`}><code>${row.name}</code>${row.required ? html` <span class="required" title="must be given">required</span>` : null}</td>
        <td><code class="type">${row.type}</code></td>
        <td>${row.description}${row.notes.length ? html` <span class="soft">${row.description ? " · " : ""}${row.notes.join(", ")}</span>` : null}</td>
      </tr>`,
    )}</tbody>
  </table></div>`;
}

// ---- the form: what a person has typed is kept as text by path, and decoded when it is needed

const SCALARS = ["string", "number", "integer", "boolean"];

/** How a schema is edited: choice, flag, number, text, lines, group or json. */
function editorOf(schema, depth) {
  const type = Array.isArray(schema.type) ? schema.type.find((one) => one !== "null") : schema.type;
  if (Array.isArray(schema.enum)) return "choice";
  if (type === "boolean") return "flag";
  if (type === "number" || type === "integer") return "number";
  if (type === "string") return "text";
  if (type === "object" && schema.properties && Object.keys(schema.properties).length && depth < DEEPEST) return "group";
  const { type: inner, enum: choices } = schema.items ?? {};
  if (type === "array" && SCALARS.includes(inner) && inner !== "boolean" && !choices) return "lines";
  return "json";
}

/** Decode what was typed; `errors` gets a sentence by path for what cannot be decoded. */
export function decodeForm(schema, typed, errors, root = schema, path = "", required = true, depth = 0) {
  const own = resolve(schema, root);
  const editor = path ? editorOf(own, depth) : "group";
  if (editor === "group") {
    const made = {};
    const inner = {};
    for (const [name, child] of Object.entries(own.properties ?? {})) {
      const value = decodeForm(child, typed, inner, root, `${path}/${name}`, (own.required ?? []).includes(name), depth + 1);
      if (value !== undefined) made[name] = value;
    }
    if (!required && !Object.keys(made).length) return undefined;
    Object.assign(errors, inner);
    return made;
  }
  const text = typed[path] ?? "";
  if (text === "") {
    if (required) errors[path] = "This must be given.";
    return undefined;
  }
  if (editor === "text") return text;
  if (editor === "flag") return text === "true";
  if (editor === "number") {
    const value = Number(text);
    if (!Number.isFinite(value)) errors[path] = "This must be a number.";
    return value;
  }
  if (editor === "lines") {
    const lines = text.split("\n").filter((line) => line !== "");
    return own.items.type === "string" ? lines : lines.map(Number);
  }
  try {
    return JSON.parse(text);
  } catch {
    errors[path] = "This must be JSON.";
    return undefined;
  }
}

const HINTS = { lines: "One item a line.", json: "JSON." };

/** The fields of an object's properties; `onType(path, text)` is called as a person types. */
export function SchemaFields({ schema, root = schema, path = "", typed, errors, onType, depth = 0 }) {
  const own = resolve(schema, root);
  return Object.entries(own.properties ?? {}).map(([name, child]) => {
    const at = `${path}/${name}`;
    const field = resolve(child, root);
    const needed = (own.required ?? []).includes(name);
    const editor = editorOf(field, depth + 1);
    if (editor === "group") {
      return html`<fieldset key=${at}><legend>${name}${needed ? "" : " (optional)"}</legend>
        ${field.description ? html`<p class="hint">${field.description}</p>` : null}
        <${SchemaFields} schema=${field} root=${root} path=${at} typed=${typed} errors=${errors} onType=${onType} depth=${depth + 1} />
      </fieldset>`;
    }
    const hint = [field.description, HINTS[editor]].filter(Boolean).join(" ");
    const label = needed ? name : `${name} (optional)`;
    return html`<${Field} key=${at} label=${label} hint=${hint} error=${errors[at]}>
      <${Editor} editor=${editor} field=${field} name=${name} needed=${needed} value=${typed[at] ?? ""} onInput=${(text) => onType(at, text)} />
    <//>`;
  });
}

function Editor({ editor, field, name, needed, value, onInput }) {
  const type = (event) => onInput(event.currentTarget.value);
  const preset = field.default === undefined ? "" : `default: ${JSON.stringify(field.default)}`;
  if (editor === "choice" || editor === "flag") {
    const choices = editor === "flag" ? [true, false] : field.enum;
    return html`<select value=${value} onChange=${type} required=${needed}>
      <option value="">${needed ? "Choose…" : preset || "not given"}</option>
      ${choices.map((one) => html`<option value=${JSON.stringify(one)}>${typeof one === "string" ? one : JSON.stringify(one)}</option>`)}
    </select>`;
  }
  if (editor === "number") {
    const step = field.type === "integer" ? "1" : "any";
    return html`<input type="number" step=${step} min=${field.minimum} max=${field.maximum} value=${value} placeholder=${preset} onInput=${type} />`;
  }
  const long = editor !== "text" || LONG.test(name) || field.maxLength > 200;
  if (long) return html`<textarea rows=${editor === "text" ? 3 : 2} class=${editor === "json" ? "mono" : ""} spellcheck=${editor === "text"} value=${value} placeholder=${preset} onInput=${type}></textarea>`;
  return html`<input type="text" value=${value} placeholder=${preset} maxlength=${field.maxLength} onInput=${type} />`;
}

/** Arguments as the text of the form's fields, so that a form can be filled with them. */
export function encodeForm(schema, value, root = schema, path = "", depth = 0) {
  const own = resolve(schema, root);
  const typed = {};
  for (const [name, child] of Object.entries(own.properties ?? {})) {
    const given = value?.[name];
    if (given === undefined) continue;
    const field = resolve(child, root);
    const editor = editorOf(field, depth + 1);
    const at = `${path}/${name}`;
    if (editor === "group") Object.assign(typed, encodeForm(field, given, root, at, depth + 1));
    else if (editor === "text") typed[at] = String(given);
    else if (editor === "lines" && Array.isArray(given)) typed[at] = given.join("\n");
    else typed[at] = JSON.stringify(given);
  }
  return typed;
}
