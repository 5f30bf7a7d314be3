// The last minutes of each GPU in slices: what held its clock, and the mean clock while it was busy.

import { S, known } from "./figures.js";
import { CAUSES } from "./palette.js";
import { ratesBetween } from "./agent.js";

export const SPANS = [
  { words: "10 min", slices: 120, sliceS: 5 },
  { words: "1 min", slices: 60, sliceS: 1 },
];
const IDLE_RATIO = 0.05;
const HELD_S = 4; // a GPU that answers may be read so seldom: a slice without a sample is as the one before
const ORDER = Object.keys(CAUSES);

export class History {
  constructor(span) {
    this.span = span;
    this.gpus = new Map(); // label -> slice number -> its sums, null where the GPU did not answer
    this.read = new Set(); // labels whose samples were read
    this.newest = null; // number of the newest slice
    this.before = null;
  }

  number(unixNs) {
    return Math.floor(unixNs / S / this.span.sliceS);
  }

  // The time that the slices cover, [from, to) in ns.
  covers(nowNs) {
    const end = this.number(nowNs) + 1;
    const sliceNs = this.span.sliceS * S;
    return [(end - this.span.slices) * sliceNs, end * sliceNs];
  }

  // Takes a GPU's samples (`/gpus/{gpu}/samples`), in bins of a slice or one by one.
  fill(answer) {
    this.read.add(answer.gpu);
    const { sm_clock_mhz: clock, activity_ratio: activity } = answer.values;
    let held = {};
    answer.t_unix_ns.forEach((at, nth) => {
      const mhz = clock?.mean[nth] ?? null;
      if (mhz === null) return;
      const shares = Object.entries(answer.causes).map(([cause, each]) => [cause, each[nth]]);
      // A bin between two samples has a clock, but no sample of its own.
      if (!shares.some(([, share]) => share === null)) held = Object.fromEntries(shares);
      this.add(answer.gpu, this.number(at + (answer.bin_ns ?? 0) / 2), { mhz, activity: activity?.mean[nth] ?? null, causes: held });
    });
  }

  // Takes an answer about all GPUs, after the one before.
  follow(answer) {
    const before = new Map((this.before?.gpus ?? []).map((gpu) => [gpu.gpu, gpu]));
    const last = this.number(answer.snapshot_unix_ns);
    const first = this.before === null ? last : Math.min(this.number(this.before.snapshot_unix_ns) + 1, last);
    for (const gpu of answer.gpus) {
      const value = gpu.up && gpu.reading.sm_clock_mhz !== null ? since(before.get(gpu.gpu), gpu) : null;
      const slices = this.of(gpu.gpu);
      for (let number = first; number <= last; number += 1) {
        if (value !== null) this.add(gpu.gpu, number, value);
        else if (gpu.last_sample_unix_ns !== null && !slices.get(number)) slices.set(number, null);
      }
    }
    this.before = answer;
    this.newest = last;
  }

  of(label) {
    if (!this.gpus.has(label)) this.gpus.set(label, new Map());
    return this.gpus.get(label);
  }

  add(label, number, { mhz, activity, causes }) {
    const slices = this.of(label);
    const sums = slices.get(number) ?? { count: 0, idle: 0, mhz: 0, causes: {} };
    sums.count += 1;
    if (known(activity) && activity < IDLE_RATIO) sums.idle += 1;
    else sums.mhz += mhz;
    for (const [cause, share] of Object.entries(causes)) sums.causes[cause] = (sums.causes[cause] ?? 0) + share;
    slices.set(number, sums);
    for (const old of slices.keys()) if (old <= number - 2 * this.span.slices) slices.delete(old);
  }

  // The slices of a GPU, oldest first: {kind, cause, mhz}; kind is "unread" (its samples are yet to
  // come), "early" (before its first sample), "gone" (no sample), "idle" or "busy", cause the limit
  // in force most of the time, null for none.
  slices(label) {
    const held = this.of(label);
    const first = Math.min(...held.keys());
    const found = [];
    let heldS = HELD_S;
    for (let number = this.newest - this.span.slices + 1; number <= this.newest; number += 1) {
      const sums = held.get(number);
      heldS = sums ? 0 : heldS + this.span.sliceS;
      const isHeld = sums === undefined && heldS < HELD_S && found.length > 0;
      if (sums) found.push(drawn(sums));
      else if (isHeld) found.push(found.at(-1));
      else found.push({ kind: this.without(label, number, first), cause: null, mhz: null });
    }
    return found;
  }

  // What a slice without samples is.
  without(label, number, first) {
    if (number < first) return this.read.has(label) ? "early" : "unread";
    return number === this.newest && this.of(label).get(number) === undefined ? "early" : "gone";
  }
}

// A GPU between two answers: the mean clock while busy, and what cost it most.
function since(before, now) {
  const { busyMhz, byCause } = ratesBetween(before?.totals, now.totals);
  const lost = Object.entries(byCause).filter(([, ratio]) => ratio > 0);
  const reported = (now.reading.causes ?? ["unknown"]).map((cause) => [cause, 1]);
  const total = lost.reduce((sum, [, ratio]) => sum + ratio, 0);
  const causes = lost.length ? lost.map(([cause, ratio]) => [cause, ratio / total]) : reported;
  return { mhz: busyMhz ?? now.reading.sm_clock_mhz, activity: now.reading.activity_ratio, causes: Object.fromEntries(causes) };
}

function drawn({ count, idle, mhz, causes }) {
  const busy = count - idle;
  const cause = mostly(causes, count);
  return busy * 2 < count ? { kind: "idle", cause, mhz: null } : { kind: "busy", cause, mhz: mhz / busy };
}

function mostly(causes, count) {
  const [cause, share] = Object.entries(causes).sort(
    ([a, more], [b, less]) => less - more || ORDER.indexOf(a) - ORDER.indexOf(b),
  )[0] ?? [null, 0];
  return share * 2 >= count ? cause : null;
}
