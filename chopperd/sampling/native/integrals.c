/* Live integrals of one GPU: `LiveIntegrals` of integrals.py, which says what they mean, once more.
 *
 * Both give the same totals for the same records (a test compares them); only the order in which
 * numbers are added differs. One batch of records at a time, as there.
 */
#include "native.h"

#include <math.h>
#include <string.h>

/* As in integrals.py, where they are explained. */
#define GAP_PERIODS 3
#define ACTIVITY_NS (3 * NS_PER_S)
#define COUNTED_RATIO 0.05
#define HZ_PER_MHZ 1e6
/* As in model/counters.py and model/energy_counter.py. */
#define MOST_W 10000.0
#define MOST_LIMITED_RATIO 2.0
#define LATE_NS 1e9
#define MOVED_NS (NS_PER_S / 2)
/* As in model/causes.py. */
#define PROTECTIONS (BIT(HW_THERMAL) | BIT(POWER_BRAKE))
#define OUTRANKED (BIT(HW_SLOWDOWN) | BIT(POWER_CAP) | BIT(THERMAL))

enum { SM_CYCLES, SAMPLED_S, BUSY_S, BUSY_SM_CYCLES, BUSY_SAMPLED_S, ENERGY_J, LIMITED_FIRST };
#define LOST_FIRST (LIMITED_FIRST + CAUSES)

/* One sample as far as it is integrated, and the counters' increments since the one before. */
typedef struct {
    int64_t t_mono_ns, causes;
    double sm_clock_mhz, busy_ratio;
    double counted_s[CAUSES];
} sample_t;

/* What a batch adds; `has` says of which sums any part was known. */
typedef struct {
    double sums[LIMITED_FIRST], lost_s[CAUSES];
    int has[LIMITED_FIRST];
    int has_known, has_unknown; /* of busy ends: any whose causes were, or were not, readable */
} batch_t;

static void grow(double *total, double amount)
{
    *total = isnan(*total) ? amount : *total + amount;
}

/* ---- single samples --------------------------------------------------------------------- */

/* Whether a counter of energy can have come from one reading to a later one. */
static int follows(const energy_t *before, const energy_t *after)
{
    double rise_j = after->energy_j - before->energy_j;
    double passed_ns = (double)(after->t_mono_ns - before->t_mono_ns);
    return rise_j >= 0 && rise_j <= (passed_ns + LATE_NS) * (MOST_W / NS_PER_S);
}

static double believe(integrals_t *kept, const energy_t *now, double since_j)
{
    kept->energy_good = *now;
    kept->energy_other_first.energy_j = NAN;
    return now->energy_j - since_j;
}

static double energy_increment_j(integrals_t *kept, const record_t *record)
{
    energy_t now = {.t_mono_ns = record->t_mono_ns, .energy_j = record->energy_j};
    energy_t *first = &kept->energy_other_first;
    if (isnan(kept->energy_good.energy_j))
        return believe(kept, &now, now.energy_j);
    if (follows(&kept->energy_good, &now))
        return believe(kept, &now, kept->energy_good.energy_j);
    if (isnan(first->energy_j) || !follows(&kept->energy_other_last, &now))
        *first = now; /* a dip, a torn number, or a restart: the next ones tell */
    else if (now.t_mono_ns - first->t_mono_ns >= MOVED_NS)
        return believe(kept, &now, first->energy_j);
    kept->energy_other_last = now;
    return 0.0;
}

static double busy_ratio(integrals_t *kept, const record_t *record)
{
    if (!isnan(record->activity_ratio)) {
        kept->activity_mono_ns = record->t_mono_ns;
        kept->activity_ratio = record->activity_ratio;
        kept->is_idle_bit_wrong =
            record->causes & BIT(LOW_UTILIZATION) && record->activity_ratio > 0;
    }
    int is_fresh = !isnan(kept->activity_ratio) &&
                   record->t_mono_ns - kept->activity_mono_ns <= ACTIVITY_NS;
    if (record->causes & BIT(LOW_UTILIZATION) && !(is_fresh && kept->is_idle_bit_wrong))
        return 0.0;
    if (is_fresh)
        return kept->activity_ratio;
    return kept->has_idle_bit && !(record->causes & BIT(UNKNOWN)) ? 1.0 : NAN;
}

/* The increments of the driver's counters; one that fell has restarted and adds nothing, nor does
 * one that rose by more than time passed. */
static void count_limits(integrals_t *kept, const record_t *record, sample_t *sample)
{
    for (int cause = 0; cause < CAUSES; cause++) {
        double now_ns = record->limited_ns[cause], before_ns = kept->limited_ns[cause];
        sample->counted_s[cause] = 0.0;
        if (isnan(now_ns))
            continue;
        double apart_ns = (double)(record->t_mono_ns - kept->limited_mono_ns[cause]);
        if (now_ns > before_ns && /* not where there was none before */
            now_ns - before_ns <= apart_ns * MOST_LIMITED_RATIO + LATE_NS)
            sample->counted_s[cause] = (now_ns - before_ns) / NS_PER_S;
        kept->limited_ns[cause] = now_ns;
        kept->limited_mono_ns[cause] = record->t_mono_ns;
    }
}

static sample_t sample_of(integrals_t *kept, const record_t *record)
{
    sample_t sample = {
        .t_mono_ns = record->t_mono_ns,
        .causes = record->causes,
        .sm_clock_mhz = record->sm_clock_mhz,
        .busy_ratio = busy_ratio(kept, record),
    };
    count_limits(kept, record, &sample);
    return sample;
}

/* ---- which intervals are covered -------------------------------------------------------- */

/* The number that sorting would put at a place; reorders the numbers. */
static int64_t ranked(int64_t *numbers, int64_t count, int64_t place)
{
    int64_t low = 0, high = count - 1;
    while (low < high) {
        int64_t pivot = numbers[low + (high - low) / 2], i = low, j = high;
        while (i <= j) {
            while (numbers[i] < pivot)
                i++;
            while (numbers[j] > pivot)
                j--;
            if (i <= j) {
                int64_t swapped = numbers[i];
                numbers[i++] = numbers[j];
                numbers[j--] = swapped;
            }
        }
        if (place <= j)
            high = j;
        else if (place >= i)
            low = i;
        else
            break;
    }
    return numbers[place];
}

/* The longest spacing over which is integrated, given the batch's own spacings in `scratch` after
 * the kept ones; keeps the newest. */
static double longest_ns(integrals_t *kept, int64_t new_count, int64_t period_ns)
{
    int64_t all = kept->spacings_count + new_count;
    int64_t recent_count = new_count > SPACINGS ? new_count : SPACINGS;
    if (recent_count > all)
        recent_count = all;
    int64_t *recent = kept->scratch + (all - recent_count);
    kept->spacings_count = all < SPACINGS ? all : SPACINGS;
    memcpy(kept->spacings_ns, kept->scratch + (all - kept->spacings_count),
           (size_t)kept->spacings_count * sizeof(int64_t));
    if (recent_count == 0)
        return (double)(GAP_PERIODS * period_ns);
    int64_t lower = ranked(recent, recent_count, (recent_count - 1) / 2);
    int64_t upper = ranked(recent, recent_count, recent_count / 2);
    double median_ns = (double)(lower + upper) / 2;
    return GAP_PERIODS * (median_ns > (double)period_ns ? median_ns : (double)period_ns);
}

static double longest_of(integrals_t *kept, const record_t *ring, int64_t capacity, int64_t first,
                         int64_t count, int64_t period_ns)
{
    int64_t new_count = 0, before_ns = kept->last_mono_ns;
    memcpy(kept->scratch, kept->spacings_ns, (size_t)kept->spacings_count * sizeof(int64_t));
    for (int64_t i = 0; i < count; i++) {
        int64_t t_mono_ns = ring[(first + i) % capacity].t_mono_ns;
        if (i > 0 || kept->records_count > 0)
            kept->scratch[kept->spacings_count + new_count++] = t_mono_ns - before_ns;
        before_ns = t_mono_ns;
    }
    return longest_ns(kept, new_count, period_ns);
}

/* ---- intervals -------------------------------------------------------------------------- */

/* The reasons in force at one end, without those that a hardware protection outranks. */
static int64_t reasons(int64_t causes)
{
    int64_t bits = causes & (BIT(CAUSES) - 1);
    if (bits & PROTECTIONS)
        bits &= ~OUTRANKED;
    return bits ? bits : BIT(UNEXPLAINED);
}

/* The share of an interval that each cause was counted for, at most 1 in all; the sum. */
static double counted_ratios(const sample_t *const ends[2], double length_s, double *ratios)
{
    double above = 0.0, below = 0.0, sum = 0.0, left = 1.0;
    int is_held = ends[0]->causes & PROTECTIONS && ends[1]->causes & PROTECTIONS;
    for (int cause = 0; cause < CAUSES; cause++) {
        ratios[cause] = ends[1]->counted_s[cause] / length_s;
        above += PROTECTIONS & BIT(cause) ? ratios[cause] : 0.0;
        below += OUTRANKED & BIT(cause) ? ratios[cause] : 0.0;
    }
    if (is_held)
        left = 0.0;
    else if (above > 0 && below > 0)
        left = fmin(fmax(1.0 - above, 0.0) / below, 1.0);
    for (int cause = 0; cause < CAUSES; cause++) {
        ratios[cause] *= OUTRANKED & BIT(cause) ? left : 1.0;
        sum += ratios[cause];
    }
    for (int cause = 0; cause < CAUSES && sum > 1.0; cause++)
        ratios[cause] /= sum;
    return sum;
}

/* Share a loss below the standing limit among the reasons in force at one end: those that were
 * counted by their time, the others what is left. */
static void blame(double *lost_s, int64_t bits, const double *ratios, double below_s)
{
    double shares[CAUSES] = {0}, sum = 0.0, whole = 0.0;
    int uncounted = 0;
    for (int cause = 0; cause < CAUSES; cause++)
        if (bits & BIT(cause)) {
            sum += ratios[cause];
            uncounted += ratios[cause] == 0;
        }
    for (int cause = 0; cause < CAUSES; cause++)
        if (bits & BIT(cause)) {
            shares[cause] = ratios[cause] == 0 ? fmax(1.0 - sum, 0.0) / uncounted : ratios[cause];
            whole += shares[cause];
        }
    for (int cause = 0; cause < CAUSES; cause++)
        if (bits & BIT(cause))
            lost_s[cause] += below_s * shares[cause] / whole;
}

/* Split what one interval lost against the reference; `ends` with the busy time at each. */
static void lose(const integrals_t *kept, const sample_t *const ends[2], const double busy_s[2],
                 double half_s, double *lost_s)
{
    double reference_mhz = kept->reference_mhz, standing_mhz = reference_mhz;
    double ratios[CAUSES], unseen[CAUSES] = {0}, rest = 1.0;
    int64_t bits[2] = {reasons(ends[0]->causes), reasons(ends[1]->causes)};
    if (!isnan(kept->limit_mhz) && kept->limit_mhz != 0.0 && kept->limit_mhz < reference_mhz)
        standing_mhz = kept->limit_mhz;
    if (counted_ratios(ends, 2 * half_s, ratios) < COUNTED_RATIO)
        memset(ratios, 0, sizeof(ratios));
    for (int cause = 0; cause < CAUSES; cause++)
        if (!((bits[0] | bits[1]) & BIT(cause))) {
            unseen[cause] = ratios[cause];
            rest -= ratios[cause];
        }
    for (int end = 0; end < 2; end++) {
        double clock_mhz = ends[end]->sm_clock_mhz;
        double below_s = busy_s[end] * fmax(standing_mhz - clock_mhz, 0) / reference_mhz;
        double user_mhz = fmax(reference_mhz - fmax(clock_mhz, standing_mhz), 0);
        lost_s[USER_LIMIT] += busy_s[end] * user_mhz / reference_mhz;
        for (int cause = 0; cause < CAUSES; cause++)
            lost_s[cause] += below_s * unseen[cause];
        blame(lost_s, bits[end], ratios, below_s * rest);
    }
}

static void add_to(batch_t *batch, int total, double amount)
{
    batch->sums[total] += amount;
    batch->has[total] = 1;
}

static void integrate(const integrals_t *kept, const sample_t *const ends[2], batch_t *batch)
{
    double half_s = (double)(ends[1]->t_mono_ns - ends[0]->t_mono_ns) / (2 * NS_PER_S);
    double busy_s[2] = {half_s * ends[0]->busy_ratio, half_s * ends[1]->busy_ratio};
    double clocks_mhz[2] = {ends[0]->sm_clock_mhz, ends[1]->sm_clock_mhz};
    int is_told = !isnan(busy_s[0]) && !isnan(busy_s[1]);
    int has_clock = !isnan(clocks_mhz[0]) && !isnan(clocks_mhz[1]);
    if (is_told)
        add_to(batch, BUSY_S, busy_s[0] + busy_s[1]);
    if (!has_clock)
        return;
    add_to(batch, SM_CYCLES, half_s * (clocks_mhz[0] + clocks_mhz[1]) * HZ_PER_MHZ);
    add_to(batch, SAMPLED_S, 2 * half_s);
    if (!is_told)
        return;
    add_to(batch, BUSY_SAMPLED_S, busy_s[0] + busy_s[1]);
    add_to(batch, BUSY_SM_CYCLES,
           (busy_s[0] * clocks_mhz[0] + busy_s[1] * clocks_mhz[1]) * HZ_PER_MHZ);
    for (int end = 0; end < 2; end++)
        *(ends[end]->causes & BIT(UNKNOWN) ? &batch->has_unknown : &batch->has_known) = 1;
    if (!isnan(kept->reference_mhz) && kept->reference_mhz != 0.0)
        lose(kept, ends, busy_s, half_s, batch->lost_s);
}

/* ---- a batch ---------------------------------------------------------------------------- */

static void add_up(integrals_t *kept, const batch_t *batch)
{
    for (int total = 0; total < LIMITED_FIRST; total++)
        if (batch->has[total])
            grow(&kept->totals[total], batch->sums[total]);
    if (!batch->has[BUSY_SAMPLED_S] || isnan(kept->reference_mhz) || kept->reference_mhz == 0.0)
        return;
    for (int cause = 0; cause < CAUSES; cause++) {
        int is_known = cause == UNKNOWN ? batch->has_unknown : batch->has_known;
        if (is_known || batch->lost_s[cause] > 0)
            grow(&kept->totals[LOST_FIRST + cause], batch->lost_s[cause]);
    }
}

/* Integrate on over `count` records of a ring from number `first` on; 0 if there is no room. */
int64_t native_add(integrals_t *kept, const record_t *ring, int64_t capacity, int64_t first,
                   int64_t count, int64_t period_ns)
{
    if (count > capacity || count > kept->scratch_count - SPACINGS)
        return 0;
    batch_t batch = {0};
    double counted_s[CAUSES] = {0};
    double longest = longest_of(kept, ring, capacity, first, count, period_ns);
    sample_t before = {
        .t_mono_ns = kept->last_mono_ns,
        .causes = kept->last_causes,
        .sm_clock_mhz = kept->last_sm_clock_mhz,
        .busy_ratio = kept->last_busy_ratio,
    };
    for (int64_t i = 0; i < count; i++) {
        const record_t *record = &ring[(first + i) % capacity];
        if (!isnan(record->energy_j))
            add_to(&batch, ENERGY_J, energy_increment_j(kept, record));
        sample_t sample = sample_of(kept, record);
        for (int cause = 0; cause < CAUSES; cause++)
            counted_s[cause] += sample.counted_s[cause];
        int64_t spacing_ns = sample.t_mono_ns - before.t_mono_ns;
        if (kept->records_count++ > 0 && spacing_ns > 0 && (double)spacing_ns <= longest)
            integrate(kept, (const sample_t *const[2]){&before, &sample}, &batch);
        before = sample;
    }
    kept->last_mono_ns = before.t_mono_ns;
    kept->last_causes = before.causes;
    kept->last_sm_clock_mhz = before.sm_clock_mhz;
    kept->last_busy_ratio = before.busy_ratio;
    for (int cause = 0; cause < CAUSES && count > 0; cause++)
        if (!isnan(kept->limited_ns[cause]))
            grow(&kept->totals[LIMITED_FIRST + cause], counted_s[cause]);
    add_up(kept, &batch);
    return 1;
}

/* Bring the totals up to the newest record and publish them; 0 if another writer has begun.
 *
 * Of the two copies the one that does not hold is written, then the number that makes it hold. */
int64_t native_integrate(integrator_t *integrator, int64_t now_mono_ns)
{
    const memory_t *memory = integrator->memory;
    int64_t written = memory->head->written, first = integrator->integrated_count;
    int64_t period_ns = memory->head->period_ns;
    integrator->due_mono_ns = now_mono_ns + integrator->every_ns;
    if (__atomic_load_n(memory->generation_word, __ATOMIC_ACQUIRE) != memory->generation)
        return 0;
    if (written - first > memory->capacity)
        first = written - memory->capacity;
    if (period_ns < integrator->period_ns) /* of two rates the slower one tells what is a gap */
        period_ns = integrator->period_ns;
    if (!native_add(integrator->integrals, memory->records, memory->capacity, first,
                    written - first, period_ns))
        return 0;
    integrator->period_ns = written > first ? memory->head->period_ns : period_ns;
    integrator->integrated_count = written;
    int64_t sequence = memory->status->totals_sequence + 1;
    totals_t *totals = &memory->status->totals[sequence % 2];
    totals->integrated_count = written;
    memcpy(totals->values, integrator->integrals->totals, sizeof(totals->values));
    __atomic_store_n(&memory->status->totals_sequence, sequence, __ATOMIC_RELEASE);
    return 1;
}
