// What came in from jobs: steps, captures with their reports, jobs; drops of the clock.

import { h } from "./elements.js";
import { ROWS } from "./palette.js";
import {
  MS, command, duration, empty, interval, known, legend, mark, moment, ms, paint, pale, plural, quiet, swatch, table, whole, UNKNOWN,
} from "./figures.js";

const MOST_STEPS = 16;
const STRIP_HEIGHT = 110;
const NEWEST = 6;
const LEAST_NAMED = 0.005; // of the time of all steps shown: less has no place in the legend
const REPORT = "/api/v1/report/latest";
const PENDING = new Set(["queued", "spooled"]);
// Rows of a step over its clock loss, from the axis up; compute at the reference comes last.
const UPPER = Object.keys(ROWS).filter((row) => row !== "compute_at_ref" && row !== "dvfs_loss");

// Where nobody knows who asks: the ways in.
export function unknownCaller(identify, why) {
  return empty("Jobs are shown to those who may see them",
    h("p", null, "A user of this node sees his own jobs, administrators all of them. Over TCP nobody is known. Come through the agent's socket, and open ", h("code", null, "http://localhost:9470"), ":"),
    command("ssh -L 9470:/run/chopperd/api.sock NODE"),
    h("p", null, "or give the token of ", h("code", null, "api.token_file"), ":"),
    h("form", { onsubmit: (event) => { event.preventDefault(); identify(event.target.elements.token.value.trim()); } },
      h("label", { for: "token" }, "Token"), h("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true }),
      h("button", { type: "submit" }, "Use it in this tab")),
    why ? h("p", { class: "wrong" }, why) : null);
}

const noSteps = () =>
  empty("No step is known yet",
    h("p", null, "The GPUs are sampled without it. Steps come with traces of PyTorch’s profiler: this prints the lines that make a job write them:"),
    command("chopperd explain profiler"), h("p", null, "or report on one run, with its samples:"), command("chopperd record -- torchrun train.py"));

export const noCaptures = () =>
  empty("No capture yet",
    h("p", null, "Clock, cause and excess above need none. A capture adds where each step went. Put the trace files of a job’s ranks into ",
      h("code", null, "inbox/JOB/"), " of the agent’s state folder, or send them:"),
    command("curl --unix-socket /run/chopperd/api.sock --data-binary @rank0.json 'http://localhost/api/v1/traces?job=JOB'"));

// The critical row of each step, newest first; of steps without one, the longest.
export function criticalRows(rows) {
  const found = new Map();
  for (const row of rows) {
    const key = `${row.job} ${row.run} ${row.step}`;
    const before = found.get(key);
    if (!before || (row.is_critical && !before.is_critical) || (!before.is_critical && row.window_ns > before.window_ns)) found.set(key, row);
  }
  return [...found.values()];
}

// What a step went to, from the axis up: [key, ns, is it pale].
function parts(row) {
  const { by_cause_ns: causes, lost_ns: lost, excess_ns: excess } = row.dvfs ?? {};
  const share = lost > 0 ? Math.min((excess ?? 0) / lost, 1) : 0;
  const ofCause = Object.entries(causes ?? {});
  const upper = UPPER.map((key) => [key, row.waterfall_ns[key] ?? 0, false]);
  return [
    ...ofCause.map(([cause, ns]) => [cause, ns * share, false]),
    ...ofCause.map(([cause, ns]) => [cause, ns * (1 - share), true]),
    ...upper,
    ["compute_at_ref", row.waterfall_ns.compute_at_ref ?? 0, false],
  ].filter(([, ns]) => ns > 0);
}

// The order of the stack; a cause is not in it, and so comes first.
const ORDER = ["dvfs_loss", ...UPPER, "compute_at_ref"];

const fill = ([key, , isPale]) => (isPale ? pale(key) : paint(key));

export function steps(agent) {
  const rows = criticalRows(agent.steps).filter((row) => known(row.window_ns) && row.waterfall_ns);
  if (!rows.length) return agent.refused.steps ? refusal(agent, "steps") : noSteps();
  const newest = rows.slice(0, NEWEST);
  const rest = rows.slice(NEWEST);
  return [
    strip([...rows].reverse()), stepLegend(rows), stepTable("Newest captured steps", newest),
    rest.length ? h("details", { key: "rest" }, h("summary", null, plural(rest.length, "earlier step")), stepTable("Earlier captured steps", rest)) : null,
  ];
}

function strip(rows) {
  const longest = Math.max(...rows.map((row) => row.window_ns));
  const widest = 100 / Math.max(rows.length, MOST_STEPS);
  const columns = rows.map((row, nth) => {
    let top = STRIP_HEIGHT;
    const bars = parts(row).map((part, at) => {
      const height = (part[1] / longest) * STRIP_HEIGHT;
      top -= height;
      return h("rect", { key: at, x: `${nth * widest + widest * 0.1}%`, width: `${widest * 0.8}%`, y: top.toFixed(2), height: height.toFixed(2), fill: fill(part) });
    });
    const title = `step ${row.step}, ${ms(row.window_ns)} ms, critical GPU ${row.gpu ?? UNKNOWN}, excess at most ${ms(row.dvfs?.excess_high_ns ?? row.dvfs?.excess_ns)} ms`;
    return h("g", { key: `${row.job} ${row.step}`, class: row.partial || row.tail ? "faded" : "" }, h("title", null, title), bars,
      h("text", { x: `${(nth + 0.5) * widest}%`, y: STRIP_HEIGHT + 14, "text-anchor": "middle", class: (rows.length - nth) % 2 ? "" : "other" }, row.step));
  });
  const words = `${plural(rows.length, "captured step")}, up to ${ms(longest)} ms long; the table has their figures`;
  return [h("p", { class: "scale", key: "scale" }, `${ms(longest)} ms`), h("svg", { key: "strip", class: "strip-of-steps", role: "img", "aria-label": words, height: STRIP_HEIGHT + 18 }, columns)];
}

function stepLegend(rows) {
  const total = new Map();
  let whole = 0;
  for (const [key, ns, isPale] of rows.flatMap(parts)) {
    const name = isPale ? "pale" : key;
    total.set(name, (total.get(name) ?? 0) + ns);
    whole += ns;
  }
  const named = [...total].filter(([, ns]) => ns >= LEAST_NAMED * whole).map(([name]) => name);
  const place = (name) => ORDER.indexOf(name === "pale" ? "dvfs_loss" : name);
  const words = (name) => (name in ROWS ? mark(name).words : `${mark(name).words}, excess`);
  const light = ["color-mix(in srgb, var(--ink3) var(--pale), var(--panel))", "pale: the peers lose it too", "var(--ink3)"];
  return h("div", { class: "keys", key: "step keys" }, legend(
    ...named.sort((a, b) => place(a) - place(b)).map((name) => (name === "pale" ? light : [paint(name), words(name)]))));
}

function stepTable(caption, rows) {
  const columns = [["step"], ["GPU"], ["where it went"], ["ms", "num"], ["MHz in compute", "num wide"], ["at most, ms", "num wide"], ["excess, ms", "num"]];
  return h("div", { class: "scroll", key: caption }, table(caption, columns, rows.map((row) => {
    const { compute } = row.clock ?? {};
    const { lost_ns: lost, excess_ns: excess, excess_low_ns: low, excess_high_ns: high } = row.dvfs ?? {};
    return {
      key: `${row.job} ${row.run} ${row.step}`,
      cells: [
        `${row.step}${row.partial ? " (partial)" : ""}`, row.gpu ?? UNKNOWN, stepBar(row), ms(row.window_ns),
        h("td", { key: 4, class: "num wide" }, whole(compute?.mean_mhz), ci(interval(compute?.low_mhz, compute?.high_mhz, whole))), ms(lost),
        h("td", { key: 6, class: "num" }, ms(excess), ci(interval(low, high, ms))),
      ],
    };
  })));
}

const ci = (text) => (text ? quiet(` ${text}`) : null);

function stepBar(row) {
  let at = 0;
  const all = parts(row);
  const words = all.map(([key, ns, isPale]) => `${mark(key).words}${isPale ? " (peers too)" : ""} ${ms(ns)} ms`).join(", ");
  const bars = all.map((part, nth) => {
    const share = (100 * part[1]) / row.window_ns;
    at += share;
    return h("rect", { key: nth, x: `${at - share}%`, width: `${share}%`, height: 16, fill: fill(part) });
  });
  return h("svg", { class: "stepbar", role: "img", "aria-label": words, height: 16 }, h("title", { key: "title" }, words), bars);
}

// Traces by capture, newest first; those that are in none (yet) each for itself.
export function captures(agent) {
  if (agent.traces === null) return refusal(agent, "traces");
  if (!agent.traces.length) return noCaptures();
  const groups = new Map();
  for (const trace of agent.traces) {
    const key = trace.capture === null ? `${trace.job} ${trace.state} ${trace.reason}` : `capture ${trace.capture}`;
    groups.set(key, [...(groups.get(key) ?? []), trace]);
  }
  const columns = [["received"], ["job"], ["ranks", "wide"], ["state"], ["report", "num"]];
  return h("div", { class: "scroll" }, table("Captures, newest first", columns, [...groups].slice(0, 12).map(([key, traces]) => capture(agent, key, traces))));
}

function capture(agent, key, traces) {
  const [{ job, reason, capture: id }] = traces;
  const states = new Set(traces.map((each) => each.state));
  const done = traces.filter((each) => each.state === "analysed").length;
  const isPending = traces.some((each) => PENDING.has(each.state));
  const kind = isPending ? "working" : done === traces.length ? "fine" : "bad";
  const state = states.size === 1 ? traces[0].state : `${done} of ${traces.length} analysed`;
  const ranks = traces.map((each) => each.rank).filter(known);
  return {
    key,
    cells: [
      moment(Math.max(...traces.map((each) => each.received_unix_ns)), agent.nowNs), name(job),
      ranks.length ? plural(ranks.length, "rank") : plural(traces.length, "file"),
      h("td", { key: 3 }, h("span", { class: `state ${kind}` }, state), reason ? quiet(` ${reason}`) : null),
      id === null ? null : reports(agent, { capture: id }),
    ],
  };
}

// Links to a report in the forms that the API has.
function reports(agent, which) {
  const query = Object.entries(which).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  const address = `${REPORT}${query ? `?${query}` : ""}`;
  const title = String(Object.values(which)[0] ?? "latest");
  return h("span", { class: "links" },
    h("a", { href: address, target: "_blank", rel: "noopener", onclick: (event) => agent.openReport(event, address, title), "aria-label": `Report, ${title}` }, "Report"),
    h("button", { type: "button", class: "link", onclick: () => agent.showText(address, title), "aria-label": `Report as text, ${title}` }, "Text"));
}

const name = (job) => h("span", { class: "name" }, job ?? quiet("no name"));

const refusal = (agent, what) => h("p", { class: "quiet" }, agent.refused[what] ? `Not known: ${agent.refused[what]}.` : "Asking…");

export function drops(agent) {
  if (agent.drops === null) return refusal(agent, "drops");
  if (!agent.drops.length) return empty("None", h("p", null, "No busy GPU fell below its last minute’s clock in this hour."));
  const columns = [["time"], ["GPU"], ["clock, MHz", "num"], ["length", "num"], ["cause"], ["lost", "num wide"]];
  return h("div", { class: "scroll" }, table("Clock drops of the last hour, newest first", columns, agent.drops.slice(0, 12).map((drop) => ({
    key: `${drop.gpu} ${drop.begin_unix_ns}`,
    cells: [
      moment(drop.begin_unix_ns, agent.nowNs), drop.gpu, `${whole(drop.reference_mhz)} → ${whole(drop.lowest_mhz)}`,
      ending(drop), h("td", { key: 4 }, swatch(paint(drop.cause)), ` ${mark(drop.cause).words}`), `${ms(drop.lost_s * 1000 * MS)} ms`,
    ],
  }))));
}

const ENDINGS = { open: ", still low", new_level: ", then a new level", interrupted: ", end unknown" };
const ending = (drop) => `${duration(drop.length_s)}${ENDINGS[drop.state] ?? ""}`;

export function jobs(agent) {
  if (agent.jobs === null) return refusal(agent, "jobs");
  if (!agent.jobs.length) return empty("No job yet", h("p", null, "A job is known by its first trace."));
  const columns = [["job"], ["captures", "num"], ["traces", "num wide"], ["last", "num"], ["newest report", "num"]];
  return h("div", { class: "scroll" }, table("Jobs, newest first", columns, agent.jobs.slice(0, 12).map((job) => ({
    key: String(job.job),
    cells: [name(job.job), whole(job.captures), whole(job.traces), moment(job.last_unix_ns, agent.nowNs), job.captures ? reports(agent, { job: job.job }) : null],
  }))));
}
