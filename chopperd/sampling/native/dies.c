/* Which die of a GPU governs its clock, as `governing.py` has it, from the ring of records.
 *
 * Sums of whole MHz are kept over the records of the last 2 s. They follow the ring, so that it
 * does not matter who wrote a record.
 */
#include "native.h"

#include <math.h>
#include <string.h>

#define WINDOW_NS (2 * NS_PER_S)
#define DEEP_SLEEP_MHZ 140

static int runs(uint16_t clock_mhz)
{
    return clock_mhz > DEEP_SLEEP_MHZ && clock_mhz != NO_DIE;
}

static void count(dies_t *dies, const record_t *record, int64_t sign)
{
    for (int die = 0; die < DIES; die++) {
        if (!runs(record->die_clocks_mhz[die]))
            continue;
        dies->sums_mhz[die] += sign * record->die_clocks_mhz[die];
        dies->counts[die] += sign;
    }
}

/* Bring the sums to the records that are held and later than a time. The slot of the record that
 * comes next counts no more. */
static void follow(dies_t *dies, const memory_t *memory, int64_t after_ns)
{
    int64_t written = memory->head->written, capacity = memory->capacity;
    /* What was counted may have been overwritten: begin again with what is there. */
    if (written < dies->next || written - dies->first > capacity) {
        memset(dies, 0, sizeof(*dies));
        dies->first = dies->next = written > capacity ? written - capacity : 0;
    }
    for (; dies->next < written; dies->next++)
        count(dies, &memory->records[dies->next % capacity], 1);
    for (; dies->first < written; dies->first++) {
        const record_t *oldest = &memory->records[dies->first % capacity];
        if (oldest->t_mono_ns > after_ns && written - dies->first < capacity)
            break;
        count(dies, oldest, -1);
    }
}

/* The lowest clock that is not switched off, of dies none of which runs. */
static double lowest(const uint16_t *clocks_mhz)
{
    double found = NAN;
    for (int die = 0; die < DIES; die++) {
        uint16_t clock_mhz = clocks_mhz[die];
        if (clock_mhz != 0 && clock_mhz != NO_DIE && !(found <= clock_mhz))
            found = clock_mhz;
    }
    return found;
}

/* The clock of the governing die of a record that is about to be written; NaN if none has one. */
double native_governing_mhz(dies_t *dies, const memory_t *memory, const record_t *now)
{
    follow(dies, memory, now->t_mono_ns - WINDOW_NS);
    int governing = -1;
    double lowest_mhz = INFINITY;
    for (int die = 0; die < DIES; die++) {
        uint16_t clock_mhz = now->die_clocks_mhz[die];
        if (!runs(clock_mhz))
            continue;
        double mean_mhz
            = (double)(dies->sums_mhz[die] + clock_mhz) / (double)(dies->counts[die] + 1);
        if (mean_mhz < lowest_mhz) {
            lowest_mhz = mean_mhz;
            governing = die;
        }
    }
    return governing < 0 ? lowest(now->die_clocks_mhz) : now->die_clocks_mhz[governing];
}
