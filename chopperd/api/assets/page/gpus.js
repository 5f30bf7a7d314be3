// The node now: its headline, what the clock costs and why, and a line for each GPU.

import { rates } from "./agent.js";
import { h } from "./elements.js";
import {
  S, causeWords, command, copier, decimal, difference, duration, empty, known, legend, mark, median, moment, ms, paint, pale,
  percent, perSecond, plural, quiet, size, stopwatch, swatch, table, whole, UNKNOWN,
} from "./figures.js";

const CULPRIT_RATIO = 0.03; // of an upper figure without interval
const LEAST_PEERS = 4;
const GIB = 2 ** 30;
const LINE_HEIGHT = 100;

// What is known of each GPU, in the order of the table: silent ones, then those behind their peers.
export function found(agent) {
  const gpus = (agent.now?.gpus ?? []).map((gpu) => ({ ...gpu, ...rates(agent.tenSeconds, gpu.gpu) }));
  for (const gpu of gpus) {
    const peers = gpus.filter((each) => each.info.name === gpu.info.name && known(each.busyMhz)).map((each) => each.busyMhz);
    gpu.peersMhz = peers.length >= LEAST_PEERS ? median(peers) : null;
    gpu.behindMhz = known(gpu.busyMhz) && known(gpu.peersMhz) ? gpu.busyMhz - gpu.peersMhz : null;
    gpu.isAwaited = gpu.last_sample_unix_ns === null && gpu.trouble === null && gpu.sampling.hung === null;
    gpu.isSilent = !gpu.up && !gpu.isAwaited;
    gpu.isSlow = gpu.up && (gpu.excess_live_ratio ?? 0) >= CULPRIT_RATIO;
    gpu.isBusy = gpu.up && (gpu.reading.activity_ratio ?? 0) > 0;
    gpu.suspicion = gpu.isSilent ? 2 : gpu.isSlow ? gpu.excess_live_ratio : 0;
  }
  return gpus.sort((one, other) => other.suspicion - one.suspicion);
}

// The one line that matters most now: {words, title, kind}.
export function headline(agent, gpus) {
  const silent = gpus.filter((gpu) => gpu.isSilent);
  const slow = gpus.find((gpu) => gpu.isSlow);
  const { sampler, pause } = agent.status ?? {};
  if (pause) return { words: "Sampling is paused", kind: "paused" };
  if (!gpus.length) return { words: sampler?.condition === "starting" ? "Looking for GPUs" : "No GPU can be read", kind: "none" };
  if (silent.length === gpus.length) return { words: "No GPU answers", kind: "silent" };
  if (slow) {
    const behind = known(slow.behindMhz) && slow.behindMhz < 0 ? `: ${whole(-slow.behindMhz)} MHz below its peers` : "";
    return { words: `GPU ${slow.gpu} is slow${behind}`, title: `GPU ${slow.gpu} −${perSecond(slow.excess_live_ratio)} ms/s`, kind: "slow", gpu: slow };
  }
  if (silent.length) return { words: `GPU ${silent.map((gpu) => gpu.gpu).join(", ")} ${silent.length > 1 ? "do" : "does"} not answer`, kind: "silent" };
  if (!gpus.some((gpu) => gpu.isBusy)) return { words: "No GPU is busy", kind: "idle" };
  return { words: "No GPU stands out", kind: "even" };
}

export function boxes(agent, gpus, head) {
  if (head.kind === "none" || head.kind === "paused") return null;
  const worst = head.gpu ?? gpus.filter((gpu) => known(gpu.lost)).sort((a, b) => b.lost - a.lost)[0];
  return h("div", { class: "boxes" }, lossBox(worst, head), whyBox(worst, gpus, head), lookBox(agent, gpus, head));
}

const box = (label, ...parts) => h("section", { class: "box", key: label, "aria-label": label }, h("h2", { class: "label" }, label), parts);

function lossBox(gpu, head) {
  const label = "Lost to the clock now";
  if (head.kind === "idle") return box(label, big(UNKNOWN), say("A loss is counted while a GPU works, and none does."));
  if (!gpu) return box(label, big(UNKNOWN), say("Not known yet: it takes some seconds of samples of a GPU that answers."));
  const isExcess = head.kind === "slow";
  const ratio = isExcess ? gpu.excess_live_ratio : gpu.lost;
  const parts = [big(perSecond(ratio), `ms of each second, GPU ${gpu.gpu}`)];
  if (isExcess) parts.push(say("More than its peers lose, at most, in the last whole 10 s. Other ranks wait for it."), lossBar(gpu));
  else parts.push(say("At most, against its highest clock: mostly what this work costs at this power. No GPU loses more than its peers."));
  return box(label, parts);
}

const big = (figure, unit) => h("p", { class: "big" }, figure, unit ? h("small", null, ` ${unit}`) : null);
const say = (...text) => h("p", { class: "say" }, text);

// Excess in full colour, and pale what the peers lose too.
function lossBar(gpu) {
  if (!known(gpu.lost) || gpu.lost <= 0) return null;
  const share = Math.min(gpu.excess_live_ratio / gpu.lost, 1);
  const cause = mainCause(gpu) ?? "unknown";
  const words = `${perSecond(gpu.excess_live_ratio)} ms of each second more than its peers, ${perSecond(gpu.lost)} below the highest clock, both at most`;
  return h("div", { class: "lossbar" },
    h("svg", { role: "img", "aria-label": words, height: 18 },
      h("rect", { width: percentOf(share), height: 18, fill: paint(cause) }),
      h("rect", { x: percentOf(share), width: percentOf(1 - share), y: 0.5, height: 17, fill: pale(cause), stroke: `var(--${cause})` })),
    h("p", null, h("span", null, "excess"), h("span", null, `at most ${perSecond(gpu.lost)}, the rest its peers lose too`)));
}

const percentOf = (share) => `${(100 * share).toFixed(2)}%`;

function mainCause(gpu) {
  const [cause, share] = Object.entries(gpu.byCause).sort(([, a], [, b]) => b - a)[0] ?? [null, 0];
  return share > 0 ? cause : gpu.reading.causes?.[0] ?? null;
}

function whyBox(gpu, gpus, head) {
  if (head.kind === "idle") return box("Why", say("Low clocks of idle GPUs are normal, and not drawn as a loss."));
  if (!gpu) return box("Why", say("Silent GPUs: the table says which driver call hangs, or what the driver reports."));
  const cause = mainCause(gpu);
  const share = known(gpu.lost) && gpu.lost > 0 && cause in gpu.byCause ? gpu.byCause[cause] / gpu.lost : null;
  const peers = gpus.filter((each) => each !== gpu && each.isBusy && each.info.name === gpu.info.name);
  return box("Why",
    h("p", { class: "big second" }, cause ? [swatch(paint(cause)), ` ${capital(mark(cause).words)}`] : "No limit in force"),
    h("dl", { class: "pairs" },
      h("dt", null, `GPU ${gpu.gpu}`), h("dd", null, state(gpu), share === null ? "" : `; ${mark(cause).words} in ${percent(share)} of its loss, last 10 s`),
      peers.length ? [h("dt", null, plural(peers.length, "peer")), h("dd", null, peersState(peers))] : []));
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function state({ reading }) {
  const limit = known(reading.power_limit_w) ? ` of ${whole(reading.power_limit_w)}` : "";
  return `${whole(reading.temperature_c)} °C, ${whole(reading.power_w)}${limit} W`;
}

function peersState(peers) {
  const range = (values, unit) => {
    const all = values.filter(known).map(Math.round);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    return all.length ? `${low === high ? whole(low) : `${whole(low)}–${whole(high)}`} ${unit}` : `${UNKNOWN} ${unit}`;
  };
  const counts = new Map();
  for (const each of peers) counts.set(causeWords(each.reading.causes), (counts.get(causeWords(each.reading.causes)) ?? 0) + 1);
  const held = [...counts].sort(([, a], [, b]) => b - a)[0][0];
  return `${range(peers.map((each) => each.reading.temperature_c), "°C")}, ${range(peers.map((each) => each.reading.power_w), "W")}; mostly ${held}`;
}

function lookBox(agent, gpus, head) {
  const found = newestFinding(agent, head.gpu);
  const silent = gpus.filter((gpu) => gpu.isSilent);
  const also = silent.length ? say(h("b", null, `GPU ${silent.map((gpu) => gpu.gpu).join(", ")}`), silent.length > 1 ? " do not answer." : " does not answer.") : null;
  if (!found) return box("Look at", pointer(agent, head), also, ticket(agent, gpus, head));
  const bound = known(found.bound_ns) ? [", at most ", h("b", null, `${ms(found.bound_ns)} ms`), " of a step"] : "";
  return box("Look at",
    h("p", { class: "big second" }, capital(found.action)),
    say(capital(found.title), bound, ": from the capture of ", found.job === null ? "a job without a name" : h("b", null, found.job), `, ${found.time.slice(11, 19)}.`),
    found.command ? command(found.command) : null, also, ticket(agent, gpus, head));
}

function newestFinding(agent, gpu) {
  const job = (agent.findings ?? []).find((each) => each.findings.length);
  const finding = gpu ? job?.findings.find((each) => each.gpu === gpu.gpu) : job?.findings[0];
  return finding ? { ...finding, job: job.job, time: job.time } : null;
}

function pointer(agent, head) {
  if (!head.gpu) return [h("p", { class: "big second" }, head.kind === "silent" ? "The driver" : "Nothing now"), head.kind === "silent" ? command("chopperd doctor") : null];
  const { pci_bus_id: pci, name } = head.gpu.info;
  return [h("p", { class: "big second" }, `GPU ${head.gpu.gpu}`, h("small", null, pci ? ` PCI ${pci}` : "")), say(`${name}. A capture of its job says what it costs each step.`)];
}

function ticket(agent, gpus, head) {
  const text = () => [`${agent.status?.node}: ${head.words}`, ...gpus.map((gpu) =>
    `GPU ${gpu.gpu} (${gpu.info.uuid}): ${whole(gpu.reading.sm_clock_mhz)} MHz, ${state(gpu)}, held by ${condition(gpu, agent)}, excess at most ${perSecond(gpu.excess_live_ratio)} ms/s`),
    `${new Date(agent.now.snapshot_unix_ns / 1e6).toISOString()}, chopperd ${agent.status?.version}${agent.now.simulated ? ", SIMULATED DATA" : ""}`].join("\n");
  const button = copier(text, "Copy for a ticket");
  return button ? h("p", { class: "foot" }, button) : null;
}

// Why a GPU does not answer, else the limits in force now.
export function condition(gpu, agent) {
  if (gpu.sampling.hung !== null) return `driver call (${gpu.sampling.hung.scope}) hangs for ${stopwatch(gpu.sampling.hung.age_s + sinceSnapshot(agent))}`;
  if (!gpu.up) return gpu.isAwaited ? "no sample yet" : "does not answer";
  if (gpu.info.parent !== null) return `part of GPU ${gpu.info.parent}`;
  return causeWords(gpu.reading.causes);
}

const sinceSnapshot = (agent) => Math.max((agent.nowNs - agent.now.snapshot_unix_ns) / S, 0);

const columns = (time) => [
  ["GPU"], [`held by, last ${time}`], ["busy clock", "wide"], ["MHz", "num"], ["against peers", "num wide"], ["°C", "num"], ["W of limit", "num wide"],
  ["busy", "num wide"], ["memory", "num wide"], ["at most, ms/s", "num wide"], ["excess, ms/s", "num"],
];

export function gpuTable(agent, gpus, history) {
  const drawn = new Map(gpus.map((gpu) => [gpu.gpu, history.slices(gpu.gpu)]));
  const clocks = [...drawn.values()].flat().map((slice) => slice.mhz).filter(known);
  const range = clocks.length ? [Math.min(...clocks), Math.max(...clocks)] : null;
  const peers = medians(gpus, drawn);
  const rows = gpus.map((gpu) => gpuRow(agent, gpu, drawn.get(gpu.gpu), peers.get(gpu.info.name), range));
  return [
    h("div", { class: "scroll", key: "gpus" }, table("GPUs of this node", columns(history.span.words), rows)),
    ribbonLegend(drawn, range),
  ];
}

// The median clock of each slice over the busy GPUs of a model, by model; null of fewer than four.
function medians(gpus, drawn) {
  const names = new Set(gpus.map((gpu) => gpu.info.name));
  return new Map([...names].map((name) => {
    const those = gpus.filter((gpu) => gpu.info.name === name).map((gpu) => drawn.get(gpu.gpu));
    return [name, those[0].map((_, nth) => {
      const clocks = those.map((slices) => slices[nth].mhz).filter(known);
      return clocks.length >= LEAST_PEERS ? median(clocks) : null;
    })];
  }));
}

function gpuRow(agent, gpu, slices, peers, range) {
  const label = h("th", { key: 0, scope: "row" }, gpu.gpu);
  const ribbonCell = h("td", { key: 1, class: "ribbon" }, ribbon(slices, `${gpu.gpu}: ${condition(gpu, agent)}`), h("span", { class: "quiet" }, gpu.up ? condition(gpu, agent) : "no answer"));
  const lineCell = h("td", { key: 2, class: "wide ribbon" }, clockLine(slices, peers, range, gpu));
  const key = `gpu ${gpu.gpu}`;
  if (!gpu.up) return { key, kind: gpu.isSilent ? "silent" : "", cells: [label, ribbonCell, lineCell, silence(agent, gpu)] };
  return { key, kind: gpu.isSlow ? "hot" : "", cells: [label, ribbonCell, lineCell, ...figures(gpu)] };
}

function figures(gpu) {
  const { reading, info } = gpu;
  const behind = difference(gpu.behindMhz);
  const part = (key, kind, ...content) => h("td", { key, class: kind, "data-figure": key }, content);
  return [
    part("clock", "num", whole(reading.sm_clock_mhz), known(gpu.behindMhz) ? h("small", { class: "narrow" }, behind) : null),
    part("peers", "num wide", behind),
    part("temperature", "num", whole(reading.temperature_c)),
    part("power", "num wide", whole(reading.power_w), quiet(` / ${whole(reading.power_limit_w)}`)),
    part("busy", "num wide", percent(reading.activity_ratio)),
    part("memory", "num wide", decimal(known(reading.memory_used_bytes) ? reading.memory_used_bytes / GIB : null, 1), quiet(` / ${known(info.memory_size_bytes) ? size(info.memory_size_bytes) : UNKNOWN}`)),
    part("lost", "num wide", perSecond(gpu.lost)),
    part("excess", "num", perSecond(gpu.excess_live_ratio)),
  ];
}

// Why a GPU has no figures, with the fault that the driver reports.
export function silenceWords(gpu, agent) {
  const words = condition(gpu, agent);
  return gpu.trouble && gpu.sampling.hung === null ? `${words}: ${gpu.trouble}` : words;
}

// A GPU without figures is a row all the same, which says why.
function silence(agent, gpu) {
  const last = gpu.last_sample_unix_ns === null ? "It has not had a sample yet." : `Last sample ${duration((agent.nowNs - gpu.last_sample_unix_ns) / S)} ago. Its figures end there: they are unknown, not 0.`;
  return h("td", { key: "silence", colspan: 8, class: "silence" }, h("b", null, capital(silenceWords(gpu, agent))), ` ${gpu.isAwaited ? "" : last}`);
}

const KINDS = { unread: "var(--well)", early: "var(--well)", gone: "url(#hatch)", idle: "var(--idle)" };
const fillOf = (slice) => (slice.kind !== "busy" ? KINDS[slice.kind] : slice.cause === null ? "var(--free)" : paint(slice.cause));

function ribbon(slices, words) {
  const parts = runs(slices, fillOf);
  return h("svg", { role: "img", "aria-label": words, height: 12 },
    parts.map(([fill, start, length]) => h("rect", { key: start, x: percentOf(start / slices.length), width: percentOf(length / slices.length), height: 12, fill })));
}

// Neighbours of equal value as [value, start, length].
function runs(items, valueOf) {
  const found = [];
  items.forEach((item, nth) => {
    const value = valueOf(item);
    if (found.length && found.at(-1)[0] === value) found.at(-1)[2] += 1;
    else found.push([value, nth, 1]);
  });
  return found;
}

// The clock of a GPU over its peers' median; the area between is its loss where it stands out.
function clockLine(slices, peers, range, gpu) {
  const words = `busy clock of GPU ${gpu.gpu}, ${known(gpu.busyMhz) ? `${whole(gpu.busyMhz)} MHz now` : "not known now"}`;
  if (range === null) return h("svg", { role: "img", "aria-label": words, height: 30 });
  const [low, high] = [range[0] - 10, range[1] + 10];
  const x = (nth) => (nth + 0.5).toFixed(1);
  const y = (mhz) => (LINE_HEIGHT * (1 - (mhz - low) / (high - low))).toFixed(1);
  const own = slices.map((slice) => slice.mhz);
  const cause = mainCause(gpu) ?? "unexplained";
  const gone = runs(slices, (slice) => slice.kind === "gone").filter(([isGone]) => isGone);
  return h("svg", { role: "img", "aria-label": words, height: 30 },
    gone.map(([, start, length]) => h("rect", { key: `gone ${start}`, x: percentOf(start / slices.length), width: percentOf(length / slices.length), height: 30, fill: "url(#hatch)" })),
    h("svg", { key: "line", viewBox: `0 0 ${slices.length} ${LINE_HEIGHT}`, preserveAspectRatio: "none", width: "100%", height: 30 },
      gpu.isSlow ? h("path", { key: "area", d: area(own, peers, x, y), fill: `var(--${cause})` }) : null,
      h("path", { key: "peers", class: "peers", d: path(peers, x, y) }),
      h("path", { key: "own", class: "own", d: path(own, x, y) })));
}

function path(values, x, y) {
  return runs(values, known).filter(([isKnown]) => isKnown).map(([, start, length]) => {
    const points = values.slice(start, start + length).map((mhz, nth) => `${x(start + nth)} ${y(mhz)}`);
    return `M${points.join("L")}${length === 1 ? "h0.01" : ""}`;
  }).join("");
}

function area(own, peers, x, y) {
  const below = own.map((mhz, nth) => (known(mhz) && known(peers[nth]) && mhz < peers[nth] ? mhz : null));
  return runs(below, known).filter(([isKnown]) => isKnown).map(([, start, length]) => {
    const indices = Array.from({ length }, (_, nth) => start + nth);
    const there = indices.map((nth) => `${x(nth)} ${y(below[nth])}`);
    const back = indices.reverse().map((nth) => `${x(nth)} ${y(peers[nth])}`);
    return `M${[...there, ...back].join("L")}Z`;
  }).join("");
}

function ribbonLegend(drawn, range) {
  const slices = [...drawn.values()].flat();
  const causes = [...new Set(slices.filter((slice) => slice.kind === "busy" && slice.cause).map((slice) => slice.cause))];
  const kinds = new Set(slices.map((slice) => slice.kind));
  const isFree = slices.some((slice) => slice.kind === "busy" && slice.cause === null);
  return h("div", { class: "keys", key: "keys" }, legend(
    ...causes.map((cause) => [paint(cause), mark(cause).words]),
    ...(isFree ? [["var(--free)", "nothing held it", "var(--line2)"]] : []),
    ...(kinds.has("idle") ? [["var(--idle)", "idle", "var(--line2)"]] : []),
    ...(kinds.has("early") && !kinds.has("unread") ? [["var(--well)", "before the first sample", "var(--line2)"]] : []),
    ...(kinds.has("unread") ? [["var(--well)", "not read yet", "var(--line2)"]] : []),
    ...(kinds.has("gone") ? [["url(#hatch)", "no answer: unknown"]] : [])),
  range ? quiet(`lines from ${whole(range[0])} to ${whole(range[1])} MHz; dotted: median of the peers`) : null);
}

export function noGpus(agent) {
  const { sampler, pause } = agent.status ?? {};
  if (pause) return empty("Sampling is paused", h("p", null, `${pause.reason}; ${pause.until_unix_ns === null ? "until it is ended" : `until ${moment(pause.until_unix_ns, agent.nowNs)} UTC`}.`));
  if (sampler?.condition === "starting") return empty("Looking for GPUs", h("p", null, "The sampler has just started."));
  return empty("No GPU can be read", h("p", null, sampler?.reason ?? "The agent does not say why."),
    h("p", null, "Traces can still be analysed, without clocks. What is missing, and the fix:"), command("chopperd doctor"));
}
