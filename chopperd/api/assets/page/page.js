// The live page: asks the agent, and shows what it says once a second.

import { Agent } from "./agent.js";
import { h, show } from "./elements.js";
import { S, command, copier, duration, moment, patterns, percent, plural, quiet, size, whole } from "./figures.js";
import { captures, drops, jobs, steps, unknownCaller } from "./captures.js";
import { boxes, found, gpuTable, headline, noGpus, silenceWords } from "./gpus.js";
import { History, SPANS } from "./history.js";

const part = (id) => document.getElementById(id);
const YOUNG_NS = 180 * S;
const SAVED_MS = 60_000; // by then the browser has saved a report
const DRAW_MS = 250; // between drawings, however much comes in

const agent = new Agent(soon, followed);
let history = new History(SPANS[0]);
let wrongToken = null;
let isDue = false;
let isChosen = false;
let saidBefore = "";

// Changes of one moment are drawn together.
function soon() {
  if (isDue) return;
  isDue = true;
  setTimeout(() => { isDue = false; draw(); }, document.hidden ? 1000 : DRAW_MS);
}

// A new answer about the GPUs; where it does not continue the one before, samples fill the gap.
function followed(continues) {
  if (!continues) refill(history);
  history.follow(agent.now);
}

async function refill(target) {
  target.before = null;
  target.newest = target.number(agent.now.snapshot_unix_ns);
  const [fromNs, toNs] = target.covers(agent.now.snapshot_unix_ns);
  const query = `from=${fromNs}&to=${toNs}&points=${target.span.slices}`;
  for (const gpu of agent.now.gpus) {
    const answer = await agent.answer(`gpus/${encodeURIComponent(gpu.gpu)}/samples?${query}`);
    if (answer !== null) target.fill(answer);
    soon();
  }
}

function choose(span) {
  isChosen = true;
  history = new History(span);
  if (agent.now !== null) {
    history.newest = history.number(agent.now.snapshot_unix_ns);
    refill(history);
  }
  soon();
}

// The last minute fills more of the page where there are only some minutes of samples.
function chooseFirst() {
  const { archive, snapshot_unix_ns: nowNs } = agent.status ?? {};
  if (isChosen || !archive || agent.now === null) return;
  isChosen = true;
  if (nowNs - (archive.oldest_unix_ns ?? nowNs) < YOUNG_NS) choose(SPANS[1]);
}

// A fault of the page itself must not leave old figures that look fresh.
function draw() {
  try {
    chooseFirst();
    drawAll();
  } catch (error) {
    part("main").classList.add("stale");
    show(part("strips"), h("p", { class: "strip stale", role: "alert" }, h("b", null, "NOT LIVE"), ` This page has a fault: ${error.message}.`));
    throw error;
  }
}

function drawAll() {
  const gpus = found(agent);
  const head = agent.now === null ? { words: "The agent does not answer", kind: "away" } : headline(agent, gpus);
  show(part("strips"), patterns(), strips());
  show(part("head"), header(gpus));
  part("main").classList.toggle("stale", !agent.isLive);
  part("main").dataset.snapshot = agent.now?.snapshot_unix_ns ?? "";
  show(part("main"), agent.now === null ? away() : content(gpus, head));
  show(part("foot"), footer());
  document.title = `${agent.isLive ? head.title ?? head.words : "not live"} · ${agent.status?.node ?? "chopperd"} · chopperd`;
  announce(agent.isLive ? head.words : `Not live: ${agent.problem}`);
}

// Said to screen readers when it changes, without the figures that change all the time.
function announce(words) {
  const lasting = words.replace(/: \d.*/, "");
  if (lasting !== saidBefore) part("said").textContent = lasting;
  saidBefore = lasting;
}

function strips() {
  const found = [];
  if (agent.now?.simulated) found.push(h("p", { key: "simulated", class: "strip simulated", role: "note" }, h("b", null, "SIMULATED DATA"), " These figures are of a simulated node, not of real GPUs."));
  if (agent.now !== null && !agent.isLive) {
    found.push(h("p", { key: "stale", class: "strip stale", role: "alert" }, h("b", null, "NOT LIVE"), ` ${agent.problem}. The figures are those of ${moment(agent.now.snapshot_unix_ns)} UTC; it is asked again each second.`));
  }
  return found;
}

function header(gpus) {
  const { status } = agent;
  const models = new Set(gpus.filter((gpu) => gpu.info.parent === null).map((gpu) => gpu.info.name));
  const facts = [
    status && h("b", { key: "node" }, status.node),
    gpus.length ? h("span", { key: "gpus" }, `${gpus.filter((gpu) => gpu.info.parent === null).length} × ${[...models].join(", ")}`) : null,
    agent.now && h("span", { key: "live", class: `live${agent.isLive ? "" : " off"}` }, agent.isLive ? "live" : `not live since ${moment(agent.now.snapshot_unix_ns)} UTC`),
    agent.isLive && gpus.length ? h("span", { key: "rate" }, sampled(gpus)) : null,
  ];
  return [h("span", { class: "brand", key: "brand" }, "chopperd"), h("div", { class: "facts", key: "facts" }, facts), h("nav", { key: "nav", "aria-label": "Other pages" }, h("a", { href: "/docs" }, "API"), h("a", { href: "/metrics" }, "Metrics"), pauseButton())];
}

function sampled(gpus) {
  const rates = gpus.map((gpu) => gpu.sampling.kept_hz).filter((hz) => hz !== null);
  if (!rates.length) return "not sampled";
  const [low, high] = [Math.min(...rates), Math.max(...rates)].map(Math.round);
  return `${low === high ? whole(low) : `${whole(low)}–${whole(high)}`} Hz kept on ${rates.length} of ${plural(gpus.length, "GPU")}`;
}

function pauseButton() {
  if (!agent.viewer?.is_admin || !agent.status) return null;
  const act = agent.status.pause ? () => agent.resume() : askLength;
  return h("button", { type: "button", onclick: () => attempt(act) }, agent.status.pause ? "Resume sampling" : "Pause sampling");
}

async function attempt(act) {
  try {
    await act();
  } catch (error) {
    dialog("That did not work", h("p", null, error.message));
  }
}

function askLength() {
  const choice = (words, length) => h("button", { key: words, type: "button", onclick: () => { part("dialog").close(); attempt(() => agent.pause(length)); } }, words);
  dialog("Pause sampling and analysis",
    h("p", null, "No driver is read and no trace analysed meanwhile; the time stays unknown. Nothing else on the node changes."),
    h("p", { class: "choices" }, choice("10 minutes", "10m"), choice("1 hour", "1h"), choice("Until it is ended", "")));
}

function dialog(title, ...content) {
  show(part("dialog"),
    h("h2", { id: "dialog-title" }, title), h("div", { class: "inside" }, content),
    h("p", { class: "foot" }, h("button", { type: "button", onclick: () => part("dialog").close() }, "Close")));
  if (!part("dialog").open) part("dialog").showModal();
}

agent.showText = (address, name) => attempt(async () => {
  const response = await agent.fetch(address, { headers: { accept: "text/plain" } });
  const text = await response.text();
  dialog(`Report, ${name}`, h("pre", { tabindex: 0 }, text), copier(() => text, "Copy"));
});

// With a token a link is not enough: the report is fetched with it, and saved.
agent.openReport = (event, address, name) => {
  if (!agent.token) return;
  event.preventDefault();
  attempt(async () => {
    const response = await agent.fetch(address, { headers: { accept: "text/html, application/json;q=0.5" } });
    const isPage = (response.headers.get("content-type") ?? "").startsWith("text/html");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = `report-${name}.${isPage ? "html" : "json"}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), SAVED_MS);
  });
};

const section = (title, text, content, tools) =>
  h("section", { key: title, "aria-label": title }, h("div", { class: "top" }, h("div", null, h("h2", null, title), text ? h("p", { class: "sub" }, text) : null), tools ?? null), h("div", { class: "content" }, content));

function away() {
  return h("section", { key: "away" }, h("h1", null, "The agent does not answer"), h("p", null, `${agent.problem}. It is asked again each second.`), command("chopperd status"));
}

function content(gpus, head) {
  const isKnown = agent.viewer?.known;
  const ribbonText = "Ribbon: what held the clock. Line: mean clock while busy. Excess: loss against the peers, at most, of the last whole 10 s.";
  return [
    h("div", { class: "headline", key: "headline" }, h("h1", null, agent.isLive ? head.words : `At ${moment(agent.now.snapshot_unix_ns)}: ${head.words}`), jobFacts()),
    problems(gpus),
    boxes(agent, gpus, head),
    section("GPUs", gpus.length ? ribbonText : null, gpus.length ? gpuTable(agent, gpus, history) : noGpus(agent), gpus.length ? spans() : null),
    isKnown
      ? section("Steps", "Captured steps by their critical device. Losses stand on the axis: what can be fixed is solid, what the peers lose too is pale.", steps(agent))
      : section("Jobs, steps, captures", null, agent.viewer === null ? quiet("Asking…") : unknownCaller(identify, wrongToken)),
    h("div", { class: "columns", key: "columns" },
      isKnown ? section("Captures", "Profiler traces of this node’s ranks, newest first.", captures(agent)) : null,
      section("Clock drops, last hour", "A busy GPU’s clock fell below that of its last minute.", drops(agent)),
      isKnown ? section("Jobs", null, jobs(agent)) : null,
      section("Agent", null, agentFacts())),
  ];
}

async function identify(token) {
  wrongToken = await agent.identify(token);
  draw();
}

function jobFacts() {
  const [job] = agent.jobs ?? [];
  if (!job) return null;
  return h("p", { class: "facts" }, "newest job ", h("b", null, job.job ?? "without a name"), `, ${plural(job.captures, "capture")}, last ${moment(job.last_unix_ns, agent.nowNs)} UTC`);
}

function spans() {
  return h("div", { class: "choices", role: "group", "aria-label": "Time shown" },
    SPANS.map((span) => h("button", { key: span.words, type: "button", "aria-pressed": span === history.span ? "true" : "false", onclick: () => choose(span) }, span.words)));
}

// What is wrong with parts of the agent, and with GPUs.
function problems(gpus) {
  const { status } = agent;
  if (!status) return null;
  const { sampler, pause } = status;
  const lines = [
    pause ? `Sampling and analysis are paused ${pause.until_unix_ns === null ? "until that is ended" : `until ${moment(pause.until_unix_ns, agent.nowNs)} UTC`}: ${pause.reason}` : null,
    ["starting", "running", "paused"].includes(sampler.condition) ? null : `Sampling is ${sampler.condition}: ${sampler.reason ?? "no reason known"}`,
    status.trouble, status.archive.trouble, status.store.trouble, status.store.set_aside, status.analysis.trouble,
    ...gpus.filter((gpu) => gpu.trouble && gpu.up).map((gpu) => `GPU ${gpu.gpu}: ${gpu.trouble}`),
    ...(gpus.some((gpu) => gpu.isSlow) ? gpus.filter((gpu) => gpu.isSilent).map((gpu) => `GPU ${gpu.gpu}: ${silenceWords(gpu, agent)}`) : []),
  ].filter(Boolean);
  if (!lines.length) return null;
  return h("ul", { class: "problems", key: "problems", "aria-label": "Problems" }, [...new Set(lines)].map((line) => h("li", { key: line.slice(0, 24) }, line)));
}

function agentFacts() {
  const { status } = agent;
  if (!status) return quiet("Asking…");
  const { archive, store, analysis, sampler, processes, self_test: test, backend } = status;
  const cpu = Object.values(processes).reduce((sum, each) => sum + each.cpu_s, 0);
  const upS = (status.snapshot_unix_ns - status.started_unix_ns) / S;
  const facts = [
    ["sampler", `${sampler.condition}, ${backend.name ?? "no back end"}, ${plural(sampler.restart_count, "restart")}`],
    ["recorder", `${size(archive.bytes)}, since ${moment(archive.oldest_unix_ns ?? NaN, agent.nowNs)}`],
    ["store", `${size(store.bytes)}, ${plural(store.steps, "step row")}, ${plural(store.traces, "trace")}`],
    ["analysis", `${analysis.mode}, ${plural(analysis.waiting, "trace")} waiting${analysis.working_on ? ", one in work" : ""}`],
    ["its own cost", `${percent(upS > 0 ? cpu / upS : NaN, 1)} of a core since it started ${duration(upS)} ago`],
    ["cost to steps", test.step_time_ratio === null ? `not measured: ${test.reason ?? "no reason known"}` : `${percent(test.step_time_ratio - 1, 2)} [${percent(test.low_ratio - 1, 2)}, ${percent(test.high_ratio - 1, 2)}]`],
  ];
  return h("dl", { class: "pairs" }, facts.map(([name, text]) => [h("dt", { key: name }, name), h("dd", { key: `${name} is` }, text)]));
}

function footer() {
  const { status } = agent;
  return [
    h("span", { key: "version" }, status ? `chopperd ${status.version}, back end ${status.backend.name ?? "none"}` : "chopperd"),
    h("span", { key: "utc" }, "all times are UTC"),
    h("span", { key: "only" }, "read only: no device setting is ever changed"),
  ];
}

draw();
agent.start();
