// The last minutes of each GPU in slices: what held its clock, and the mean clock while it was busy.

import { S, known } from "./figures.js";
import { CAUSES } from "./palette.js";
import { ratesBetween } from "./agent.js";

export const SPANS = [
  { words: "10 min", slices: 120, sliceS: 5 },
  { words: "1 min", slices: 60, sliceS: 1 },
];
const IDLE_RATIO = 0.05;
const ORDER = Object.keys(CAUSES);

export class History {
  constructor(span) {
    this.span = span;
    this.gpus = new Map(); // label -> slice number -> its sums
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
    answer.t_unix_ns.forEach((at, nth) => {
      const mhz = clock?.mean[nth] ?? null;
      if (mhz === null) return;
      const shares = Object.entries(answer.causes).map(([cause, each]) => [cause, each[nth]]);
      const causes = Object.fromEntries(shares.filter(([, share]) => share !== null));
      this.add(answer.gpu, at + (answer.bin_ns ?? 0) / 2, { mhz, activity: activity?.mean[nth] ?? null, causes });
    });
  }

  // Takes an answer about all GPUs, after the one before.
  follow(answer) {
    const before = new Map((this.before?.gpus ?? []).map((gpu) => [gpu.gpu, gpu]));
    for (const gpu of answer.gpus) {
      if (!gpu.up || gpu.reading.sm_clock_mhz === null) continue;
      const { busyMhz } = ratesBetween(before.get(gpu.gpu)?.totals, gpu.totals);
      const causes = gpu.reading.causes === null ? { unknown: 1 } : Object.fromEntries(gpu.reading.causes.map((each) => [each, 1]));
      this.add(gpu.gpu, gpu.last_sample_unix_ns, { mhz: busyMhz ?? gpu.reading.sm_clock_mhz, activity: gpu.reading.activity_ratio, causes });
    }
    this.before = answer;
    this.newest = this.number(answer.snapshot_unix_ns);
  }

  add(label, unixNs, { mhz, activity, causes }) {
    const slices = this.gpus.get(label) ?? this.gpus.set(label, new Map()).get(label);
    const number = this.number(unixNs);
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
    const held = this.gpus.get(label) ?? new Map();
    const first = Math.min(...held.keys());
    return Array.from({ length: this.span.slices }, (_, nth) => {
      const number = this.newest - this.span.slices + 1 + nth;
      const sums = held.get(number);
      if (!sums) return { kind: this.without(label, number, first), cause: null, mhz: null };
      const busy = sums.count - sums.idle;
      const cause = mostly(sums);
      return busy * 2 < sums.count ? { kind: "idle", cause, mhz: null } : { kind: "busy", cause, mhz: sums.mhz / busy };
    });
  }

  // What a slice without samples is.
  without(label, number, first) {
    if (number < first) return this.read.has(label) ? "early" : "unread";
    return number === this.newest ? "early" : "gone"; // the newest may not have one yet
  }
}

function mostly({ causes, count }) {
  const [cause, share] = Object.entries(causes).sort(
    ([a, more], [b, less]) => less - more || ORDER.indexOf(a) - ORDER.indexOf(b),
  )[0] ?? [null, 0];
  return share * 2 >= count ? cause : null;
}
