// A chart over time: stacked bars or lines in SVG, a legend with totals that hides and shows series, the values under the
// pointer, and a part of the time that is dragged out or zoomed with + and -. By keyboard it is a slider over the time, which
// reads out the values; the same numbers are in the tables of the page.
// It is drawn here: uPlot draws on a canvas, which no screen reader and no style sheet reaches, and takes 24 KB.
import { useState } from "preact/hooks";
import { Button, html } from "./ui.js";

const HEIGHT = 100;
const LINES = 4;
const DAY = 86_400;
const STEPS = [1, 2, 2.5, 5, 10];
/** Bars or points that a zoomed chart has at least. */
const FEWEST = 4;

/** `series` are `{name, values}` with a value for each of `starts`; a missing one is null. */
export function Chart({ title, kind = "bars", starts: all, size, series: given, format, short = format, whole = false, empty = "Nothing to show." }) {
  const [at, setAt] = useState(null);
  const [hidden, setHidden] = useState([]);
  const [part, setPart] = useState(null);
  const [dragged, setDragged] = useState(null);
  const total = (one) => one.values.reduce((sum, value) => sum + (value ?? 0), 0);
  const lines = kind === "lines";
  if (!given.some(total)) return html`<figure class="chart card"><figcaption><h2>${title}</h2></figcaption><p class="soft nothing">${empty}</p></figure>`;
  const from = part && part[1] <= all.length ? part[0] : 0;
  const to = part && part[1] <= all.length ? part[1] : all.length;
  const starts = all.slice(from, to);
  const series = given.filter(total).map((one) => ({ ...one, values: one.values.slice(from, to), class: `series-${given.indexOf(one) + 1}` }));
  const shown = series.filter((one) => !hidden.includes(one.name));
  const sums = starts.map((_, index) => shown.reduce((sum, one) => sum + (one.values[index] ?? 0), 0));
  const marks = scale(Math.max(0, ...(lines ? shown.flatMap((one) => one.values) : sums)), whole);
  const top = marks.at(-1);
  const last = starts.length - 1;
  const pointed = at === null ? null : Math.min(at, last);

  const zoom = (first, end) => {
    setPart(first <= 0 && end >= all.length ? null : [Math.max(0, first), Math.min(all.length, end)]);
    setAt(null);
  };
  const indexOf = (event) => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    return Math.max(0, Math.min(last, Math.floor(((event.clientX - left) / width) * starts.length)));
  };
  const onPointerMove = (event) => {
    setAt(indexOf(event));
    if (dragged) setDragged([dragged[0], indexOf(event)]);
  };
  const onPointerUp = () => {
    const [first, end] = dragged ? [Math.min(...dragged), Math.max(...dragged) + 1] : [0, 0];
    setDragged(null);
    if (end - first >= FEWEST) zoom(from + first, from + end);
  };
  const onKeyDown = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    const around = from + (pointed ?? last);
    const half = Math.max(FEWEST / 2, Math.round((to - from) / 4));
    if (move !== undefined) setAt(Math.max(0, Math.min(last, (pointed ?? last) + move)));
    else if (event.key === "+" && to - from > FEWEST) zoom(Math.min(around - half, all.length - 2 * half), Math.max(around + half, 2 * half));
    else if (event.key === "-" && part) zoom(around - half * 4, around + half * 4);
    else if (event.key === "Escape" && part) zoom(0, all.length);
    else return;
    event.preventDefault();
  };
  const value = (one) => (pointed !== null ? format(one.values[pointed] ?? (lines ? null : 0)) : lines ? "" : format(total(one)));
  const time = pointed === null ? "" : timeName(starts[pointed], size);
  const read = `${time || "All"}: ${shown.map((one) => `${one.name} ${value(one)}`.trim()).join(", ")}`;
  return html`<figure class="chart card"><figcaption><h2>${title}</h2><span class="soft">${time}</span>${part ? html`<${Button} kind="ghost" class="small" onClick=${() => zoom(0, all.length)}>Show all<//>` : null}</figcaption>
    <div class="plot" role="slider" tabindex="0" aria-label=${title} aria-valuemin="0" aria-valuemax=${last} aria-valuenow=${pointed ?? last} aria-valuetext=${read} onKeyDown=${onKeyDown} onBlur=${() => setAt(null)}>
      <div class="scale" aria-hidden="true">${marks.map((mark) => html`<span key=${mark} style=${{ bottom: `${(mark / top) * 100}%` }}>${short(mark)}</span>`)}</div>
      <svg viewBox=${`0 0 ${starts.length} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true" onPointerMove=${onPointerMove} onPointerLeave=${() => (setAt(null), setDragged(null))}
        onPointerDown=${(event) => event.pointerType === "mouse" && setDragged([indexOf(event), indexOf(event)])} onPointerUp=${onPointerUp} onDblClick=${() => zoom(0, all.length)}>
        <rect class="ground" width=${starts.length} height=${HEIGHT} />
        ${marks.map((mark) => html`<line key=${mark} class="grid" x1="0" x2=${starts.length} y1=${y(mark, top)} y2=${y(mark, top)} />`)}
        ${dragged ? html`<rect class="dragged" x=${Math.min(...dragged)} width=${Math.abs(dragged[1] - dragged[0]) + 1} height=${HEIGHT} />` : null}
        ${pointed === null ? null : html`<rect class="pointed" x=${pointed} y="0" width="1" height=${HEIGHT} />`}
        ${lines ? shown.map((one) => html`<path key=${one.name} class=${`line ${one.class}`} d=${linePath(one.values, top)} />`) : stackPaths(shown, top).map((path, index) => html`<path key=${index} class=${`fill ${shown[index].class}`} d=${path} />`)}
      </svg>
      <div class="times" aria-hidden="true">${timeMarks(starts, size).map(({ index, text }) => html`<span key=${index} class=${index === last ? "end" : ""} style=${{ left: `${((index + 0.5) / starts.length) * 100}%` }}>${text}</span>`)}</div>
    </div>
    <ul class="legend">${series.map((one) => {
      const off = hidden.includes(one.name);
      return html`<li key=${one.name}><button type="button" aria-pressed=${String(!off)} title=${off ? "Show" : "Hide"} onClick=${() => setHidden(off ? hidden.filter((name) => name !== one.name) : [...hidden, one.name])}>
        <span class=${`swatch ${one.class}`} aria-hidden="true"></span><span class="clip">${one.name}</span><b>${off ? "" : value(one)}</b></button></li>`;
    })}</ul>
  </figure>`;
}

const y = (value, top) => HEIGHT - (value / top) * HEIGHT;

/** Round marks from zero to the most or just above it; `whole` ones have no fractions. */
function scale(most, whole) {
  if (!most) return [0, 1];
  const rough = Math.max(most / LINES, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = STEPS.find((one) => one * power >= rough * 0.999 && !(whole && (one * power) % 1)) * power;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}

/** A path of rectangles for each series, each on top of those before it. */
function stackPaths(series, top) {
  const heights = series.length ? series[0].values.map(() => 0) : [];
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
