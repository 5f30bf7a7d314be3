// What the agent says, kept up to date: its stream says when there is something new, and the rest
// is asked for. Figures that are no longer new are never passed off as live.

import { S } from "./figures.js";

const API = "/api/v1";
const STALE_MS = 4_000; // without a new snapshot
const RETRY_MS = 1_000;
const SLOW_MS = 5_000; // between questions about the agent itself, its traces and drops
const RECENT_NS = 10 * S; // over which rates are taken
const HOUR_NS = 3_600 * S;
const MOST_STEPS = 16;
const STUCK = "the agent answers, but has no new figures";
const TOKEN = "chopperd-token";

export class Agent {
  // `changed` is called after each change; `filled` when the history has to be read again.
  constructor(changed, filled) {
    this.changed = changed;
    this.filled = filled;
    this.now = null; // the newest answer about all GPUs
    this.recent = []; // those of the last ten seconds and the one before, oldest first
    this.compared = []; // first and last of the ten seconds over which excess was last computed
    this.status = null;
    this.viewer = null;
    this.drops = this.jobs = this.traces = this.findings = null;
    this.steps = [];
    this.refused = {}; // why an answer is missing, by its path
    this.problem = "the agent has not answered yet";
    this.seenAt = 0; // when the newest snapshot came, by this page's clock
    this.isLost = true; // whether the agent has ended or does not answer
    this.source = null;
    this.isAsking = false;
    this.wasLive = false;
    this.tracesSeen = null;
    this.token = tokenOfAddress() ?? sessionStorage.getItem(TOKEN);
  }

  start() {
    this.listen();
    this.askGpus();
    this.askSlowly();
    setInterval(() => this.tick(), RETRY_MS);
    setInterval(() => this.askSlowly(), SLOW_MS);
  }

  // What figures beside the excess are of: the same ten seconds, where they were seen.
  get tenSeconds() {
    const isFresh = this.compared.length && this.now.snapshot_unix_ns - this.compared[1].snapshot_unix_ns < RECENT_NS + 2 * S;
    return isFresh ? this.compared : this.recent;
  }

  get isLive() {
    return this.now !== null && !this.isLost && performance.now() - this.seenAt < STALE_MS;
  }

  // How old the shown figures are, in s: how old they were when they came, and the time since.
  get ageS() {
    return (performance.now() - this.seenAt) / 1000;
  }

  // The time on the agent's clock, as far as its newest answer tells.
  get nowNs() {
    return this.now === null ? null : this.now.snapshot_unix_ns + this.ageS * S;
  }

  listen() {
    this.source?.close();
    this.source = new EventSource(`${API}/stream`);
    this.source.addEventListener("snapshot", () => this.askGpus());
    this.source.addEventListener("end", () => this.lost("the agent has ended"));
    this.source.addEventListener("error", () => this.lost("the agent does not answer"));
  }

  lost(problem) {
    this.problem = problem;
    this.source?.close();
    this.source = null;
    this.isLost = true;
    this.changed();
  }

  // Each second: what the stream does not bring is asked for, also a stream.
  tick() {
    if (!this.isLive) this.askGpus();
    if (this.source === null) this.listen();
    if (this.wasLive !== this.isLive) this.askSlowly();
    this.wasLive = this.isLive;
    this.changed();
  }

  async askGpus() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      this.take(await this.get("gpus"));
    } catch (error) {
      this.problem = String(error.message);
    } finally {
      this.isAsking = false;
    }
    this.changed();
  }

  take(answer) {
    if (this.now?.snapshot_unix_ns === answer.snapshot_unix_ns) {
      this.problem = STUCK;
      return;
    }
    const wasLive = this.isLive;
    const isAfter = this.now !== null && goesOn(this.now, answer);
    if (!isAfter) [this.recent, this.compared] = [[], []];
    const isCompared = isAfter && windowClosed(this.now, answer);
    const beginNs = answer.snapshot_unix_ns - RECENT_NS;
    while (this.recent.length > 1 && this.recent[1].snapshot_unix_ns <= beginNs) this.recent.shift();
    this.recent.push(answer);
    if (isCompared) this.compared = [this.recent[0], answer];
    this.now = answer;
    this.seenAt = performance.now();
    this.isLost = false;
    this.problem = STUCK; // until it says something else
    this.filled(wasLive && isAfter);
  }

  async askSlowly() {
    const status = await this.answer("status");
    if (status === null) return;
    const restarted = this.status !== null && this.status.started_unix_ns !== status.started_unix_ns;
    this.status = status;
    this.viewer = await this.answer("viewer");
    const fromNs = Math.round(status.snapshot_unix_ns - HOUR_NS);
    this.drops = (await this.answer(`drops?from=${fromNs}&limit=50`))?.drops ?? null;
    if (this.viewer?.known) await this.askAboutJobs(restarted);
    this.changed();
  }

  async askAboutJobs(restarted) {
    this.traces = (await this.answer("traces?limit=200"))?.traces ?? null;
    const seen = (this.traces ?? []).map((each) => `${each.id} ${each.state} ${each.capture}`).join();
    if (!restarted && seen === this.tracesSeen) return;
    this.tracesSeen = seen;
    this.jobs = (await this.answer("jobs"))?.jobs ?? null;
    this.findings = (await this.answer("findings?limit=10"))?.jobs ?? null;
    const limit = MOST_STEPS * Math.max(this.now?.gpus.length ?? 8, 1);
    this.steps = (await this.answer(`steps?limit=${Math.min(limit, 1000)}`))?.steps ?? [];
  }

  // An answer, or null; why it is missing is in `refused`, by the path without its question.
  async answer(path) {
    const name = path.split("?")[0];
    try {
      const found = await this.get(path);
      delete this.refused[name];
      return found;
    } catch (error) {
      this.refused[name] = String(error.message);
      return null;
    }
  }

  async get(path, accept = "application/json") {
    const response = await this.fetch(`${API}/${path}`, { headers: { accept } });
    return accept === "application/json" ? response.json() : response.text();
  }

  // The response; an Error with the agent's own words where it refuses.
  async fetch(address, options = {}) {
    const headers = { ...options.headers, ...(this.token ? { authorization: `Bearer ${this.token}` } : {}) };
    let response;
    try {
      response = await fetch(address, { ...options, headers, cache: "no-store" });
    } catch {
      throw new Error("the agent does not answer");
    }
    if (response.ok) return response;
    const problem = await response.json().catch(() => ({}));
    throw new Error(problem.detail ?? `the agent answers ${response.status}`);
  }

  // Takes a token for this tab; resolves to why it does not do, or null.
  async identify(token) {
    this.token = token;
    if ((await this.answer("viewer")) === null) {
      this.token = null;
      return this.refused.viewer;
    }
    sessionStorage.setItem(TOKEN, token);
    await this.askSlowly();
    return null;
  }

  async pause(length) {
    await this.fetch(`${API}/pause${length ? `?for=${length}` : ""}`, { method: "POST" });
    await this.askSlowly();
  }

  async resume() {
    await this.fetch(`${API}/pause`, { method: "DELETE" });
    await this.askSlowly();
  }
}

// Whether the second answer continues the first: the same GPUs, and no counter that fell.
function goesOn(before, after) {
  if (after.snapshot_unix_ns < before.snapshot_unix_ns) return false;
  const sampled = new Map(before.gpus.map((gpu) => [gpu.gpu, gpu.totals?.sampled_s ?? 0]));
  return after.gpus.every((gpu) => (gpu.totals?.sampled_s ?? Infinity) >= (sampled.get(gpu.gpu) ?? 0));
}

// Whether the agent has compared the GPUs between two answers; it does so each ten seconds.
function windowClosed(before, after) {
  const excess = new Map(before.gpus.map((gpu) => [gpu.gpu, gpu.excess_live_s]));
  return after.gpus.some((gpu) => gpu.excess_live_s !== excess.get(gpu.gpu));
}

// The token that the address may end in (`#token=...`), which is then taken out of it.
function tokenOfAddress() {
  const found = /^#token=([\x21-\x7e]+)$/.exec(location.hash);
  if (found === null) return null;
  history.replaceState(null, "", location.pathname);
  sessionStorage.setItem(TOKEN, found[1]);
  return found[1];
}

const NO_RATES = { lost: null, byCause: {}, busyMhz: null };

// Of one GPU over the last ten seconds: ceiling loss as a share of sampled time, in all and by
// cause, and the mean clock while busy, in MHz. What is not known is null.
export function rates(recent, label) {
  const [before, now] = [recent[0], recent.at(-1)].map((answer) => answer?.gpus.find((gpu) => gpu.gpu === label));
  return now?.up ? ratesBetween(before?.totals, now.totals) : NO_RATES;
}

export function ratesBetween(before, now) {
  if (!before || !now) return NO_RATES;
  const sampledS = now.sampled_s - before.sampled_s;
  const busyS = now.busy_sampled_s - before.busy_sampled_s;
  const busyMhz = busyS > 0 ? (now.busy_sm_cycles - before.busy_sm_cycles) / busyS / 1e6 : null;
  const isLostKnown = sampledS > 0 && Object.keys(now.lost_live_s).length > 0;
  if (!isLostKnown) return { ...NO_RATES, busyMhz };
  const byCause = Object.fromEntries(
    Object.entries(now.lost_live_s).map(([cause, s]) => [cause, (s - (before.lost_live_s[cause] ?? 0)) / sampledS]),
  );
  const lost = Object.values(byCause).reduce((sum, each) => sum + each, 0);
  return { lost, byCause, busyMhz };
}
