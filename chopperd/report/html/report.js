"use strict";
// The page reads without this. It adds: copying, saving the document, and choosing steps, whose
// bars are drawn from the document that the page holds.

const SVG = "http://www.w3.org/2000/svg";
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

function made(name, attributes = {}, ...content) {
  const isShape = ["rect", "line", "title"].includes(name);
  const element = isShape ? document.createElementNS(SVG, name) : document.createElement(name);
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

let unpacked = null;
function json() {
  unpacked ??= (async () => {
    const packed = atob($("#chopperd-report").textContent);
    const bytes = Uint8Array.from(packed, (each) => each.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(plain).text();
  })();
  return unpacked;
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

// Figures as `wording.py` writes them.

function ms(ns, significant = 3) {
  if (ns === null || ns === undefined) return "\u2013";
  const value = ns / 1e6;
  const size = Math.abs(value);
  const whole = size >= 1 ? String(Math.trunc(size)).length : 0;
  const digits = Math.max(significant - whole, 0);
  if (value === 0) return "0";
  const least = 10 ** -digits;
  if (size < least / 2) return `${value < 0 ? "-" : ""}<${least.toFixed(digits)}`;
  const shown = value.toFixed(digits);
  return size >= 10000 ? shown.replace(/\B(?=(\d{3})+(?!\d))/g, ",") : shown;
}

function interval(low, high) {
  return low === null || high === null ? "" : ` [${ms(low, 2)}, ${ms(high, 2)}]`;
}

const percent = (ratio) => `${(100 * ratio).toFixed(2)}%`;

function mean(values) {
  const known = values.filter((each) => each !== null && each !== undefined);
  return known.length ? known.reduce((sum, each) => sum + each, 0) / values.length : null;
}

// Bars as `drawing.py` makes them. The excess is that of one step: several do not add up.

const words = $("#rank-keys") && JSON.parse($("#rank-keys").textContent);

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
  const add = (name, said, ns) => {
    if (ns && ns >= words.least * bar.window) bar.pieces.push([name, said, ns]);
  };
  const isKnown = bar.excess !== null && bar.lost;
  const share = isKnown ? Math.min(Math.max(bar.excess / bar.lost, 0), 1) : 0;
  for (const pale of [false, true]) {
    const said = !pale ? words.excess : isKnown ? words.physics : words.ceiling;
    for (const [key, name] of words.causes) {
      const ns = mean(rows.map((row) => row.dvfs.by_cause_ns?.[key] ?? 0));
      add(`${pale ? "p" : "f"}-${key}`, `${name}: ${said}`, (pale ? 1 - share : share) * ns);
    }
  }
  for (const [key, name] of words.rows) {
    add(`f-${key}`, name, mean(rows.map((row) => row.waterfall_ns[key])));
  }
  return bar;
}

function shapes(bar, longest) {
  let at = 0;
  const found = bar.pieces.map(([name, said, ns]) => {
    const place = { x: percent(at / longest), width: percent(ns / longest), y: 1, height: 16 };
    at += ns;
    return made("rect", { ...place, class: name }, made("title", {}, `${said} ${ms(ns)} ms`));
  });
  if (bar.low === null || bar.high === null || !bar.lost) return found;
  const [left, right] = [percent(bar.low / longest), percent(bar.high / longest)];
  const lines = [
    [left, right, 9, 9, "halo"],
    [left, right, 9, 9, "whisker"],
    [left, left, 5, 13, "whisker"],
    [right, right, 5, 13, "whisker"],
  ];
  for (const [x1, x2, y1, y2, name] of lines) {
    found.push(made("line", { x1, x2, y1, y2, class: name }));
  }
  return found;
}

function redraw(line, bar, longest) {
  const [, excess, lost, span] = $$("td", line);
  const drawing = $(".bar svg", line);
  drawing.replaceChildren(...(bar ? shapes(bar, longest) : []));
  drawing.setAttribute("aria-label", `window ${ms(bar?.window)} ms`);
  const grey = bar ? made("span", { class: "ci" }, interval(bar.low, bar.high)) : "";
  excess.replaceChildren(ms(bar?.excess), grey);
  lost.textContent = ms(bar?.lost);
  span.textContent = ms(bar?.window);
}

// Choosing steps: click, arrows, Shift for several, Escape for all.

const picks = $$(".picks > [data-step]");
const note = $("#ranks .sub");
const atFirst = new Map();
for (const each of $$(".bars tbody tr, .bars thead .bar, #ranks .sub")) {
  atFirst.set(each, each.innerHTML);
}
let chosen = [];
let turn = 0;

function rowsOf(line, rows) {
  const { rank = "", device } = line.dataset;
  return rows.filter((row) => String(row.rank ?? "") === rank && String(row.device) === device);
}

async function drawChosen(steps) {
  const own = ++turn;
  const every = JSON.parse(await json()).steps;
  if (own !== turn) return;
  const rows = every.filter((row) => steps.includes(row.step) && row.waterfall_ns);
  const bars = new Map();
  for (const line of $$(".bars tbody tr")) {
    const its = rowsOf(line, rows);
    bars.set(line, its.length ? barOf(its) : null);
  }
  const longest = Math.max(...[...bars.values()].map((bar) => bar?.window ?? 0)) || 1;
  for (const [line, bar] of bars) redraw(line, bar, longest);
  $(".bars thead .bar").textContent = `0 to ${ms(longest)} ms`;
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const named = first === last ? `Step ${first}` : `Mean of steps ${first} to ${last}`;
  note.textContent = `${named}. Escape shows all steps again.`;
}

async function show() {
  for (const each of picks) each.setAttribute("aria-pressed", chosen.includes(each));
  const steps = chosen.map((each) => Number(each.dataset.step));
  const strip = $("svg.strip");
  strip.classList.toggle("choosing", steps.length > 0);
  for (const each of $$(".step", strip)) {
    each.classList.toggle("chosen", steps.includes(Number(each.dataset.step)));
  }
  if (!words || !note) return;
  if (!steps.length) {
    turn += 1;
    for (const [each, content] of atFirst) each.innerHTML = content;
    return;
  }
  await drawChosen(steps);
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
  show();
}

function chooseNone() {
  chosen = [];
  show();
}

picks.forEach((span, nth) => {
  const { title, dataset } = span;
  const about = { "data-step": dataset.step, "aria-label": title, "aria-pressed": false, title };
  const element = made("button", { type: "button", ...about }, ...span.childNodes);
  element.addEventListener("click", (event) => choose(nth, event.shiftKey));
  element.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    choose(nth + way, event.shiftKey);
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
  if (event.key === "Escape" && chosen.length) chooseNone();
});
