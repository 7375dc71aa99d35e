// Usage: requests, tokens, cost, errors and latency over time, by model or key, as charts and as a table.
import { get } from "../api.js";
import { href, may, models } from "../state.js";
import { Empty, ErrorNote, PageHead, Spinner, compact, duration, html, money, number, useInterval, useLoad } from "../ui.js";
import { Chart } from "../chart.js";
import { changeQuery, Filter, KeyFilter } from "./parts.js";

const HOUR = 3600;
const DAY = 86_400;
const RANGES = { day: [DAY, HOUR], week: [7 * DAY, HOUR], month: [30 * DAY, DAY], quarter: [90 * DAY, DAY] };
const RANGE_CHOICES = [
  ["day", "Last 24 hours"],
  ["week", "Last 7 days"],
  ["month", "Last 30 days"],
  ["quarter", "Last 90 days"],
];
const MOST_SERIES = 6;
const SUMMED = ["requests", "errors", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost"];

/** The buckets of a range: the starts of its hours or days, in seconds since 1970. */
function bucketsOf(range) {
  const [length, size] = RANGES[range];
  const last = Math.floor(Date.now() / 1000 / size) * size;
  const count = length / size;
  return { size, starts: Array.from({ length: count }, (_, index) => last - (count - 1 - index) * size) };
}

const startOf = (row) => Date.parse(row.hour ? `${row.hour}:00:00Z` : `${row.day}T00:00:00Z`) / 1000;
const dayOf = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);

async function load(range, by, { key, model }, signal) {
  const { size, starts } = bucketsOf(range);
  const unit = size === HOUR ? "hour" : "day";
  const columns = [...new Set([by, unit, ...(model ? ["model"] : [])])].join(",");
  const [usage, hourly, each] = await Promise.all([
    get("/v1/usage", { by: columns, since: dayOf(starts[0]), key }, { signal }),
    get("/v1/latency", { by: "hour", since: starts[0], model, key }, { signal }),
    get("/v1/latency", { by, since: starts[0], model, key }, { signal }),
  ]);
  const rows = usage.data.filter((row) => startOf(row) >= starts[0] && (!model || row.model === model));
  return { by, size, starts, rows, hourly: hourly.data, each: each.data };
}

export function Usage({ query }) {
  const range = RANGES[query.range] ? query.range : "day";
  const by = query.by === "key" && may("admin") ? "key" : "model";
  const { data, error, loading, reload } = useLoad((signal) => load(range, by, query, signal), [range, by, query.key, query.model]);
  useInterval(reload, 30_000);
  return html`<${PageHead} title="Usage">What was asked of the models, what it cost and how long it took. Hours and days are those of UTC.<//>
    <div class="filters" role="search" aria-label="Filter usage">
      <${Filter} label="Time" value=${range} choices=${RANGE_CHOICES} all=${null} onChange=${(next) => changeQuery({ range: next })} />
      ${may("admin") ? html`<${Filter} label="By" value=${by} choices=${[["model", "Model"], ["key", "Key"]]} all=${null} onChange=${(next) => changeQuery({ by: next })} />` : null}
      <${Filter} label="Model" value=${query.model} choices=${models.value.map((one) => one.id)} onChange=${(next) => changeQuery({ model: next })} />
      ${may("admin") ? html`<${KeyFilter} value=${query.key} onChange=${(next) => changeQuery({ key: next })} />` : null}
    </div>
    <${ErrorNote} error=${error} onRetry=${reload} />
    ${loading && !data ? html`<${Spinner} label="Loading usage" />` : null}
    ${data ? html`<${Report} data=${data} />` : null}`;
}

function Report({ data }) {
  const { by, rows, starts, size, hourly, each } = data;
  const names = ranked(rows, by);
  const totals = sum(rows);
  if (!totals.requests && !totals.errors) return html`<${Empty} icon="usage" title="Nothing was asked in this time">Choose a longer time or other filters, or <a href=${href("start")}>connect a client</a>.<//>`;
  const stack = (value) => stacked(rows, by, names, starts, value);
  const hours = Array.from({ length: Math.ceil((Date.now() / 1000 - starts[0]) / HOUR) }, (_, index) => starts[0] + index * HOUR);
  const latency = new Map(hourly.map((row) => [startOf(row), row]));
  const percentiles = (prefix) => ["50", "90", "99"].map((share) => ({ name: `${share} %`, values: hours.map((start) => latency.get(start)?.[`${prefix}p${share}_ms`] ?? null) }));
  const tokens = [
    { name: "input", values: totalsAt(rows, starts, (row) => row.input_tokens) },
    { name: "output", values: totalsAt(rows, starts, (row) => row.output_tokens) },
  ];
  return html`<${Tiles} totals=${totals} by=${by} each=${each} />
    <div class="charts">
      <${Chart} title="Requests" starts=${starts} size=${size} series=${stack((row) => row.requests)} format=${number} short=${compact} whole />
      <${Chart} title="Tokens" starts=${starts} size=${size} series=${tokens} format=${number} short=${compact} whole />
      <${Chart} title="Cost" starts=${starts} size=${size} series=${stack((row) => row.cost)} format=${money} short=${(value) => `$${Number(value.toPrecision(3))}`} empty="No model with a price was used." />
      <${Chart} title="Errors" starts=${starts} size=${size} series=${stack((row) => row.errors ?? 0)} format=${number} short=${compact} whole empty="No errors." />
      <${Chart} title="Time to the whole answer" kind="lines" starts=${hours} size=${HOUR} format=${duration} series=${percentiles("")} />
      <${Chart} title="Time to the first token" kind="lines" starts=${hours} size=${HOUR} format=${duration} series=${percentiles("first_token_")} empty="No answer has been streamed." />
    </div>
    <h2>${by === "key" ? "By key" : "By model"}</h2>
    <${Totals} rows=${rows} by=${by} latency=${each} />`;
}

function sum(rows) {
  const totals = Object.fromEntries(SUMMED.map((name) => [name, 0]));
  for (const row of rows) for (const name of SUMMED) totals[name] += row[name] ?? 0;
  return totals;
}

/** The names with the most requests; all others are one. */
function ranked(rows, by) {
  const counts = new Map();
  for (const row of rows) counts.set(row[by], (counts.get(row[by]) ?? 0) + row.requests);
  return [...counts].sort((one, other) => other[1] - one[1]).map(([name]) => name);
}

function totalsAt(rows, starts, value) {
  const at = new Map(starts.map((start, index) => [start, index]));
  const values = starts.map(() => 0);
  for (const row of rows) if (at.has(startOf(row))) values[at.get(startOf(row))] += value(row);
  return values;
}

function stacked(rows, by, names, starts, value) {
  const own = names.length > MOST_SERIES ? names.slice(0, MOST_SERIES - 1) : names;
  const series = own.map((name) => ({ name: name || "–", values: totalsAt(rows.filter((row) => row[by] === name), starts, value) }));
  if (names.length > own.length) series.push({ name: `${names.length - own.length} others`, values: totalsAt(rows.filter((row) => !own.includes(row[by])), starts, value) });
  return series;
}

function Tiles({ totals, by, each }) {
  const busiest = each.reduce((most, row) => (row.requests > (most?.requests ?? 0) ? row : most), null);
  const tiles = [
    ["Requests", number(totals.requests), `${totals.errors ? number(totals.errors) : "no"} error${totals.errors === 1 ? "" : "s"}`],
    ["Tokens", compact(totals.input_tokens + totals.output_tokens), `${compact(totals.input_tokens)} in, ${compact(totals.output_tokens)} out`],
    ["Cost", money(totals.cost), totals.requests && totals.cost ? `${money(totals.cost / totals.requests)} a request` : ""],
    ["Half of the answers within", busiest ? duration(busiest.p50_ms) : "–", busiest ? (by === "key" ? `for ${busiest.key}` : `of ${busiest.model}`) : ""],
  ];
  return html`<dl class="tiles">${tiles.map(([name, value, note]) => html`<div key=${name} class="card"><dt>${name}</dt><dd><b>${value}</b><span class="soft">${note}</span></dd></div>`)}</dl>`;
}

function Totals({ rows, by, latency }) {
  const names = ranked(rows, by);
  const speeds = new Map(latency.map((row) => [row[by], row]));
  return html`<div class="table-scroll" role="region" aria-label="Totals" tabindex="0"><table>
    <thead><tr><th scope="col">${by === "key" ? "Key" : "Model"}</th>${["Requests", "Errors", "Input", "Cached", "Output", "Cost"].map((title) => html`<th scope="col" class="numeric">${title}</th>`)}
      ${["50 %", "90 %", "99 %"].map((title) => html`<th scope="col" class="numeric" title="of the answers came within this time">${title}</th>`)}</tr></thead>
    <tbody>${names.map((name) => {
      const total = sum(rows.filter((row) => row[by] === name));
      const speed = speeds.get(name);
      return html`<tr key=${name}><th scope="row" class="mono">${name || "–"}</th><td class="numeric">${number(total.requests)}</td><td class="numeric">${number(total.errors)}</td>
        <td class="numeric">${number(total.input_tokens)}</td><td class="numeric">${number(total.cached_tokens)}</td><td class="numeric">${number(total.output_tokens)}</td><td class="numeric">${money(total.cost)}</td>
        ${[speed?.p50_ms, speed?.p90_ms, speed?.p99_ms].map((milliseconds) => html`<td class="numeric">${duration(milliseconds)}</td>`)}</tr>`;
    })}</tbody>
  </table></div>`;
}
