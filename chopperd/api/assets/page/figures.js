// Figures in words, and the marks of causes and rows. Unknown is a dash, never 0.

import { CAUSES, ROWS } from "./palette.js";
import { h } from "./elements.js";

export const UNKNOWN = "–";
export const MS = 1e6;
export const S = 1e9;
const MIB = 2 ** 20;
const GIB = 2 ** 30;

export const known = (value) => typeof value === "number" && Number.isFinite(value);

export function whole(value) {
  return known(value) ? signed(Math.round(value).toLocaleString("en-US")) : UNKNOWN;
}

export function decimal(value, digits) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  const smallest = 10 ** -digits;
  if (Math.abs(value) < smallest / 2) return `${value < 0 ? "−" : ""}<${smallest.toFixed(digits)}`;
  return signed(value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

const signed = (text) => text.replace("-", "−");

// A difference, which always has a sign.
export function difference(value) {
  if (!known(value)) return UNKNOWN;
  return Math.round(value) === 0 ? "±0" : (value > 0 ? "+" : "") + whole(value);
}

// Nanoseconds as ms: at most three significant digits and two decimals.
export function ms(ns) {
  if (!known(ns)) return UNKNOWN;
  const size = Math.abs(ns) / MS;
  return decimal(ns / MS, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

export function interval(low, high, format) {
  return known(low) && known(high) ? `[${format(low)}, ${format(high)}]` : "";
}

export const percent = (ratio, digits = 0) => (known(ratio) ? `${decimal(100 * ratio, digits)} %` : UNKNOWN);

// A share of time as ms a second.
export function perSecond(ratio) {
  return known(ratio) ? decimal(1000 * ratio, ratio >= 0.1 ? 0 : 1) : UNKNOWN;
}

export function size(bytes) {
  if (!known(bytes)) return UNKNOWN;
  return bytes >= GIB ? `${decimal(bytes / GIB, 1)} GiB` : `${decimal(bytes / MIB, 1)} MiB`;
}

export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 100) return `${decimal(seconds, seconds < 10 ? 1 : 0)} s`;
  const minutes = seconds / 60;
  if (minutes < 100) return `${whole(minutes)} min`;
  return minutes < 72 * 60 ? `${decimal(minutes / 60, 1)} h` : `${decimal(minutes / 1440, 1)} days`;
}

// Of a running wait: 0:47, 12:05.
export function stopwatch(seconds) {
  const whole = Math.max(Math.floor(seconds), 0);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

// Unix time in ns as time of day in UTC; with the date where it is not that of `now`.
export function moment(unixNs, nowNs) {
  if (!known(unixNs)) return UNKNOWN;
  const text = new Date(unixNs / MS).toISOString();
  const isToday = nowNs === undefined || text.slice(0, 10) === new Date(nowNs / MS).toISOString().slice(0, 10);
  return isToday ? text.slice(11, 19) : `${text.slice(5, 10)} ${text.slice(11, 19)}`;
}

export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

export function median(values) {
  const sorted = values.filter(known).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// The newest clock of a cause or row by its published name; one of a later version is shown as it is.
export const mark = (key) => CAUSES[key] ?? ROWS[key] ?? { words: key.replaceAll("_", " "), texture: "hatch" };

export const causeWords = (causes) =>
  causes === null ? "unknown" : causes.map((each) => mark(each).words).join(" + ") || "nothing";

const textured = Object.entries({ ...ROWS, ...CAUSES }).filter(([, each]) => each.texture);

// What a part is filled with: its colour, or the pattern that tells it apart.
export function paint(key) {
  const { texture } = mark(key);
  if (texture === "hatch" || texture === undefined) return "url(#hatch)";
  return texture ? `url(#${texture}-${key})` : `var(--${key})`;
}

export const pale = (key) => `color-mix(in srgb, var(--${key}) var(--pale), var(--panel))`;

// The patterns, once a page.
export function patterns() {
  return h("svg", { key: "patterns", width: 0, height: 0, class: "patterns", "aria-hidden": "true" },
    h("defs", null, hatch(), textured.filter(([, each]) => each.texture !== "hatch").map(([key, each]) => pattern(key, each.texture))));
}

function hatch() {
  return h("pattern", { key: "hatch", id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    h("rect", { width: 6, height: 6, fill: "var(--well)" }), h("line", { y2: 6, stroke: "var(--unknown)", "stroke-width": 4 }));
}

function pattern(key, texture) {
  const over = texture === "dots"
    ? h("circle", { cx: 2, cy: 2, r: 1, fill: "var(--panel)" })
    : h("line", { x2: 5, y1: 4, y2: 4, stroke: "var(--panel)", "stroke-width": 1.4 });
  return h("pattern", { key, id: `${texture}-${key}`, width: texture === "dots" ? 4 : 7, height: texture === "dots" ? 4 : 6, patternUnits: "userSpaceOnUse" },
    h("rect", { width: 7, height: 6, fill: `var(--${key})` }), over);
}

export function swatch(fill, stroke) {
  return h("svg", { class: "swatch", width: 12, height: 12, "aria-hidden": "true" }, h("rect", { x: 0.5, y: 0.5, width: 11, height: 11, rx: 2, fill, stroke: stroke ?? "none" }));
}

// A legend of [fill, words, stroke].
export const legend = (...entries) =>
  h("ul", { class: "legend" }, entries.map(([fill, words, stroke]) => h("li", { key: words }, swatch(fill, stroke), words)));

// A table: columns are [heading, class], cells are texts or elements; rows are {key, class, cells}.
export function table(caption, columns, rows) {
  return h("table", null,
    h("caption", { class: "unseen" }, caption),
    h("thead", null, h("tr", null, columns.map(([heading, kind], nth) => h("th", { key: nth, scope: "col", class: kind ?? "" }, heading)))),
    h("tbody", null, rows.map(({ key, kind, cells }) =>
      h("tr", { key, class: kind ?? "" }, cells.map((cell, nth) =>
        cell?.tag === "td" || cell?.tag === "th" ? cell : h("td", { key: nth, class: columns[nth][1] ?? "" }, cell))))));
}

export const quiet = (text) => h("span", { class: "quiet" }, text);

// A command with a button that copies it, where the browser can.
export function command(text) {
  return h("p", { class: "command", key: `command ${text}` }, h("code", null, text), copier(() => text, "Copy"));
}

export function copier(text, words) {
  if (!navigator.clipboard) return null;
  return h("button", { type: "button", onclick: (event) => copy(event.currentTarget, text()) }, words);
}

async function copy(button, text) {
  await navigator.clipboard.writeText(text);
  document.getElementById("said").textContent = "copied";
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
}

// What is shown where there is nothing yet: why, and the ways in.
export function empty(title, ...parts) {
  return h("div", { class: "empty" }, h("h3", null, title), parts);
}
