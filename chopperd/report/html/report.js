"use strict";
// The page reads without this. It adds: copying, saving the document, and choosing steps, whose
// bars are drawn from the document that the page holds.

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

function made(name, attributes = {}, ...content) {
  const isShape = ["svg", "rect", "line", "title", "text"].includes(name);
  const element = isShape
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...content);
  return element;
}

function button(label, action) {
  const element = made("button", { type: "button" }, label);
  element.addEventListener("click", () => action(element));
  return element;
}

// Copying and saving.

async function copy(text, element) {
  const label = element.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = made("textarea", { class: "sr" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  element.textContent = "Copied";
  setTimeout(() => (element.textContent = label), 1500);
}

for (const place of $$("[data-copy]")) {
  const element = button("Copy", (self) => copy(place.dataset.copy, self));
  element.setAttribute("aria-label", `Copy: ${place.dataset.copy}`);
  place.append(element);
}

let text = null;
function json() {
  text ??= (async () => {
    const packed = Uint8Array.from(atob($("#chopperd-report").textContent), (c) => c.charCodeAt(0));
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(plain).text();
  })();
  return text;
}

async function save() {
  const address = URL.createObjectURL(new Blob([await json()], { type: "application/json" }));
  made("a", { href: address, download: "report.json" }).click();
  URL.revokeObjectURL(address);
}

const summary = () => $(".verdict > div").innerText.replaceAll("\nCopy", "");
$("header .controls").append(
  button("Copy summary", (self) => copy(summary(), self)),
  button("Save JSON", save),
);

// Choosing steps: click, arrows, Shift for several, Escape for all.

const keys = $("#rank-keys") && JSON.parse($("#rank-keys").textContent);
const picks = $$(".picks > [data-step]");
let chosen = [];

function ms(ns, significant = 3) {
  if (ns === null || ns === undefined) return "–";
  const value = ns / 1e6;
  const size = Math.abs(value);
  const digits = Math.max(significant - (size >= 1 ? String(Math.trunc(size)).length : 0), 0);
  if (value === 0) return "0";
  if (size < 10 ** -digits / 2) return `${value < 0 ? "-" : ""}<${(10 ** -digits).toFixed(digits)}`;
  const shown = value.toFixed(digits);
  return size >= 10000 ? shown.replace(/\B(?=(\d{3})+(?!\d))/, ",") : shown;
}

function interval(low, high) {
  return low === null || high === null || low === undefined ? "" : ` [${ms(low, 2)}, ${ms(high, 2)}]`;
}

function mean(values) {
  const known = values.filter((each) => each !== null && each !== undefined);
  return known.length ? known.reduce((sum, each) => sum + each, 0) / values.length : null;
}

// What `Bar` of drawing.py is: excess belongs to one step, as those of several do not add up.
function barOf(rows) {
  const one = rows.length === 1 ? rows[0].dvfs : {};
  const bar = {
    window: mean(rows.map((row) => row.window_ns)),
    lost: mean(rows.map((row) => row.dvfs.lost_ns)),
    excess: one.excess_ns ?? null,
    low: one.excess_low_ns ?? null,
    high: one.excess_high_ns ?? null,
    pieces: [],
  };
  const share = bar.excess === null || !bar.lost ? null : Math.min(Math.max(bar.excess / bar.lost, 0), 1);
  for (const pale of [false, true]) {
    const part = pale ? 1 - (share ?? 0) : share ?? 0;
    const words = !pale ? keys.excess : share === null ? keys.ceiling : keys.physics;
    for (const [key, name] of keys.causes) {
      const ns = part * (mean(rows.map((row) => row.dvfs.by_cause_ns?.[key] ?? 0)) ?? 0);
      if (ns >= keys.least * bar.window) bar.pieces.push([`${pale ? "p" : "f"}-${key}`, `${name}: ${words}`, ns]);
    }
  }
  for (const [key, name] of keys.rows) {
    const ns = mean(rows.map((row) => row.waterfall_ns?.[key]));
    if (ns >= keys.least * bar.window) bar.pieces.push([`f-${key}`, name, ns]);
  }
  return bar;
}

const percent = (ratio) => `${(100 * ratio).toFixed(2)}%`;

function redraw(line, bar, longest) {
  const drawing = $(".bar svg", line);
  const [, excess, lost, span] = $$("td", line);
  drawing.replaceChildren();
  excess.textContent = lost.textContent = span.textContent = "–";
  if (!bar) return;
  let at = 0;
  for (const [name, words, ns] of bar.pieces) {
    const title = made("title", {}, `${words} ${ms(ns)} ms`);
    const place = { x: percent(at / longest), width: percent(ns / longest), y: 1, height: 16 };
    drawing.append(made("rect", { ...place, class: name }, title));
    at += ns;
  }
  if (bar.low !== null && bar.high !== null && bar.lost) {
    const [x1, x2] = [percent(bar.low / longest), percent(bar.high / longest)];
    const lines = [[x1, x2, 9, 9, "halo"], [x1, x2, 9, 9, "whisker"]];
    for (const x of [x1, x2]) lines.push([x, x, 5, 13, "whisker"]);
    for (const [x1, x2, y1, y2, name] of lines) {
      drawing.append(made("line", { x1, x2, y1, y2, class: name }));
    }
  }
  drawing.setAttribute("aria-label", `window ${ms(bar.window)} ms`);
  excess.replaceChildren(ms(bar.excess), made("span", { class: "ci" }, interval(bar.low, bar.high)));
  lost.textContent = ms(bar.lost);
  span.textContent = ms(bar.window);
}

const first = new Map($$(".bars tbody tr, .bars thead .bar").map((each) => [each, each.innerHTML]));
const note = $("#ranks .sub");
const words = note?.textContent;

async function show() {
  for (const each of picks) each.setAttribute("aria-pressed", chosen.includes(each));
  const steps = chosen.map((each) => Number(each.dataset.step));
  const strip = $("svg.strip");
  strip.classList.toggle("choosing", steps.length > 0);
  for (const each of $$(".step", strip)) each.classList.toggle("chosen", steps.includes(Number(each.dataset.step)));
  if (!keys || !note) return;
  if (!steps.length) {
    for (const [each, content] of first) each.innerHTML = content;
    note.textContent = words;
    return;
  }
  const rows = JSON.parse(await json()).steps.filter((row) => steps.includes(row.step) && row.waterfall_ns);
  const lines = $$(".bars tbody tr");
  const bars = lines.map((line) => {
    const those = rows.filter((row) => String(row.rank ?? "") === (line.dataset.rank ?? "") && String(row.device) === line.dataset.device);
    return those.length ? barOf(those) : null;
  });
  const longest = Math.max(...bars.map((bar) => bar?.window ?? 0)) || 1;
  lines.forEach((line, nth) => redraw(line, bars[nth], longest));
  $(".bars thead .bar").textContent = `0 to ${ms(longest)} ms`;
  const named = steps.length === 1 ? `Step ${steps[0]}` : `Mean of steps ${Math.min(...steps)} to ${Math.max(...steps)}`;
  note.textContent = `${named}. Escape shows all steps again.`;
  const radio = $(`.figures input[data-step="${steps.at(-1)}"]`);
  if (radio) radio.checked = true;
}

function choose(nth, extend) {
  const target = picks[Math.min(Math.max(nth, 0), picks.length - 1)];
  if (extend && chosen.length) {
    const [from, to] = [picks.indexOf(chosen[0]), picks.indexOf(target)];
    chosen = picks.slice(Math.min(from, to), Math.max(from, to) + 1);
    if (from > to) chosen.reverse();
  } else {
    chosen = chosen.length === 1 && chosen[0] === target ? [] : [target];
  }
  target.focus();
  return show();
}

picks.forEach((span, nth) => {
  const label = span.title;
  const element = made("button", { type: "button", "data-step": span.dataset.step, "aria-label": label, "aria-pressed": false, title: label }, ...span.childNodes);
  element.addEventListener("click", (event) => choose(nth, event.shiftKey));
  element.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (way) choose(nth + way, event.shiftKey);
    else if (event.key === "Escape") { chosen = []; show(); }
    else return;
    event.preventDefault();
  });
  span.replaceWith(element);
  picks[nth] = element;
});
$("svg.strip")?.addEventListener("click", (event) => {
  const step = event.target.closest(".step")?.dataset.step;
  const nth = picks.findIndex((each) => each.dataset.step === step);
  if (nth >= 0) choose(nth, event.shiftKey);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen.length) { chosen = []; show(); }
});
