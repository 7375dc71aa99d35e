// A chart over time: stacked bars or lines in SVG, a legend with totals, and the values under the pointer.
// The drawing is one picture to assistive technology; its numbers are in the legend and in the tables of the page.
// It is drawn here because a chart library (uPlot: 24 KB) would take a third of what the whole console may weigh.
import { useState } from "preact/hooks";
import { html } from "./ui.js";

const HEIGHT = 100;
const LINES = 4;
const DAY = 86_400;
const STEPS = [1, 2, 2.5, 5, 10];

/** `series` are `{name, values}` with a value for each of `starts`; a missing one is null. */
export function Chart({ title, kind = "bars", starts, size, series, format, short = format, whole = false, empty = "Nothing to show." }) {
  const [at, setAt] = useState(null);
  const total = (one) => one.values.reduce((sum, value) => sum + (value ?? 0), 0);
  const lines = kind === "lines";
  const shown = series.filter(total);
  if (!shown.length) return html`<figure class="chart card"><figcaption><h2>${title}</h2></figcaption><p class="soft nothing">${empty}</p></figure>`;
  const sums = starts.map((_, index) => shown.reduce((sum, one) => sum + (one.values[index] ?? 0), 0));
  const marks = scale(Math.max(...(lines ? shown.flatMap((one) => one.values) : sums)), whole);
  const top = marks.at(-1);
  const point = (event) => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    setAt(Math.max(0, Math.min(starts.length - 1, Math.floor(((event.clientX - left) / width) * starts.length))));
  };
  const colour = (one) => `series-${series.indexOf(one) + 1}`;
  const value = (one) => (at !== null ? format(one.values[at] ?? (lines ? null : 0)) : lines ? "" : format(total(one)));
  return html`<figure class="chart card"><figcaption><h2>${title}</h2><span class="soft">${at === null ? "" : timeName(starts[at], size)}</span></figcaption>
    <div class="plot" role="img" aria-label=${`${title}: ${shown.map((one) => `${one.name}${lines ? "" : ` ${format(total(one))}`}`).join(", ")}`}>
      <div class="scale" aria-hidden="true">${marks.map((mark) => html`<span key=${mark} style=${{ bottom: `${(mark / top) * 100}%` }}>${short(mark)}</span>`)}</div>
      <svg viewBox=${`0 0 ${starts.length} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true" onPointerMove=${point} onPointerLeave=${() => setAt(null)}>
        ${marks.map((mark) => html`<line key=${mark} class="grid" x1="0" x2=${starts.length} y1=${y(mark, top)} y2=${y(mark, top)} />`)}
        ${at === null ? null : html`<rect class="pointed" x=${at} y="0" width="1" height=${HEIGHT} />`}
        ${lines ? shown.map((one) => html`<path key=${one.name} class=${`line ${colour(one)}`} d=${linePath(one.values, top)} />`) : stackPaths(shown, top).map((path, index) => html`<path key=${index} class=${`fill ${colour(shown[index])}`} d=${path} />`)}
      </svg>
      <div class="times" aria-hidden="true">${timeMarks(starts, size).map(({ index, text }) => html`<span key=${index} class=${index === starts.length - 1 ? "end" : ""} style=${{ left: `${((index + 0.5) / starts.length) * 100}%` }}>${text}</span>`)}</div>
    </div>
    <ul class="legend">${shown.map((one) => html`<li key=${one.name}><span class=${`swatch ${colour(one)}`} aria-hidden="true"></span><span class="clip">${one.name}</span><b>${value(one)}</b></li>`)}</ul>
  </figure>`;
}

const y = (value, top) => HEIGHT - (value / top) * HEIGHT;

/** Round marks from zero to the most or just above it; `whole` ones have no fractions. */
function scale(most, whole) {
  const rough = Math.max(most / LINES, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = STEPS.find((one) => one * power >= rough * 0.999 && !(whole && (one * power) % 1)) * power;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}

/** A path of rectangles for each series, each on top of those before it. */
function stackPaths(series, top) {
  const heights = series[0].values.map(() => 0);
  return series.map(({ values }) =>
    values
      .map((value, index) => {
        if (!value) return "";
        const from = y(heights[index], top);
        heights[index] += value;
        return `M${index + 0.14} ${from.toFixed(2)}V${y(heights[index], top).toFixed(2)}h.72V${from.toFixed(2)}Z`;
      })
      .join(""),
  );
}

/** A line through the values that are there; a value that stands alone is a short dash. */
function linePath(values, top) {
  let path = "";
  let open = false;
  values.forEach((value, index) => {
    if (value === null) return;
    const height = y(value, top).toFixed(2);
    path += open ? `L${index + 0.5} ${height}` : `M${index + 0.3} ${height}H${index + 0.5}`;
    open = true;
  });
  return open ? `${path}h.2` : "";
}

function timeName(start, size) {
  const date = new Date(start * 1000);
  const day = date.toLocaleDateString("en", { day: "numeric", month: "short", timeZone: "UTC" });
  return size >= DAY ? day : `${day}, ${date.toISOString().slice(11, 16)}`;
}

/** About six marks: hours of one day, otherwise days. */
function timeMarks(starts, size) {
  const hours = size < DAY && starts.length <= 24;
  const every = hours ? 4 : Math.max(1, Math.ceil((starts.length * size) / DAY / 7));
  return starts.flatMap((start, index) => {
    const date = new Date(start * 1000);
    if (hours) return date.getUTCHours() % every ? [] : [{ index, text: date.toISOString().slice(11, 16) }];
    const fits = (Math.floor(starts.at(-1) / DAY) - Math.floor(start / DAY)) % every === 0;
    return date.getUTCHours() === 0 && fits ? [{ index, text: date.toLocaleDateString("en", { day: "numeric", month: "short", timeZone: "UTC" }) }] : [];
  });
}
