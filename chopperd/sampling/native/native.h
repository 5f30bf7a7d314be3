/* What the C side of sampling shares with Python: one GPU's memory, plans, ticks.
 *
 * The same layout is in Python (`chopperd/sampling/memory/layout.py`, `library.py`), which compares
 * the sizes and does not use the library where they differ. Every member is 8 bytes
 * wide but for small arrays. Nothing here allocates, logs or knows Python; all memory belongs to
 * the caller.
 */
#ifndef CHOPPERD_NATIVE_H
#define CHOPPERD_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#ifndef NATIVE_VERSION
#define NATIVE_VERSION 6
#endif

#define CAUSES 10
#define VALUES 7
#define STATES 4
#define DIES 8
#define NO_DIE 65535
#define NS_PER_S 1000000000LL

#define UNKNOWN_BIT (1LL << 9) /* of `Cause.UNKNOWN` */

/* ---- shared memory (layout.py) ---------------------------------------------------------- */

typedef struct {
    int64_t sequence, t_mono_ns, span_ns, late_ns, scope, causes;
    double sm_clock_mhz, mem_clock_mhz, power_w, energy_j, temperature_c, memory_used_bytes;
    double activity_ratio;
    double limited_ns[CAUSES];
    uint16_t die_clocks_mhz[DIES];
} record_t;
#define RECORD_WORDS ((int64_t)(offsetof(record_t, die_clocks_mhz) / 8)) /* up to its dies */

typedef struct {
    int64_t call_started_mono_ns, call_scope, state, written, last_mono_ns;
    int64_t ticks_count, missed_count, transient_count, unexpected_count, losses_count;
    int64_t driver_ns, driver_full_ns, asked_period_ns, period_ns, pace;
} head_t;
#define HEAD_WORDS ((int64_t)(sizeof(head_t) / 8))

/* A status block as far as it is written here. */
typedef struct {
    head_t head;
    int64_t slow_state_sequence; /* of what Python alone writes */
    int64_t state_sequence, state_mono_ns;
    double state[STATES];
} status_t;

/* One GPU's part of it, and the words that say whether it is still ours. */
typedef struct {
    head_t *head; /* this writer's own copy, published as a whole */
    status_t *status;
    record_t *records;
    int64_t capacity;
    const int64_t *generation_word;
    int64_t generation;
} memory_t;

/* ---- plans and ticks (plans.c, ticks.c) ------------------------------------------------- */

enum shape { SHAPE_BUFFER, SHAPE_OF, SHAPE_COUNT, SHAPE_FILE, SHAPE_TEXT };
enum kind {
    KIND_UINT16,
    KIND_UINT32,
    KIND_UINT64,
    KIND_INT32,
    KIND_INT64,
    KIND_FLOAT64,
    KIND_DECIMAL
};

/* `lock`: of a `pthread_mutex_t` to hold meanwhile; 0: none. */
typedef struct {
    int64_t function, handle, buffer, buffer_bytes, shape, argument, lock;
} call_t;

/* A number in a buffer. `place` counts words of `record_t` up to its dies, then those of the
 * state, then dies. One that is counted is judged as it stands there, and adds to what its place
 * holds.
 */
typedef struct {
    int64_t call, offset, kind, place;
    double multiplier, divisor, addend, low, high;
    int64_t is_counted, first_check, checks_count;
} number_t;

/* A word of 32 bits that must be in the buffer of a number. */
typedef struct {
    int64_t offset, value;
} check_t;

typedef struct {
    const call_t *calls;
    int64_t calls_count;
    const number_t *numbers;
    int64_t numbers_count;
    const check_t *checks;
    int64_t checks_count;
    int64_t causes_call, causes_offset, causes_kind; /* the call is -1: not readable */
    int64_t causes_by_bit[64];
    int64_t stamp_call, stamp_offset, stamp_kind, stamp_still_ns; /* the call is -1: none */
} plan_t;

/* Why the library returned to the caller. */
enum why {
    WHY_ENDED,       /* there are no more */
    WHY_DUE,         /* `return_mono_ns` or `return_driver_ns` is reached */
    WHY_INTERRUPTED, /* the word changed, or another writer has taken over */
    WHY_HANDED       /* this tick is the caller's, now */
};

typedef struct {
    const memory_t *memory;
    const plan_t *plans[2]; /* of fast and of full reads; none: they are the caller's */
    const int64_t *deadlines_mono_ns, *ends_mono_ns, *are_full;
    int64_t count, next;
    int64_t owes_full;
    int64_t return_mono_ns, return_driver_ns; /* return to the caller from then on */
    int64_t hand_full_mono_ns;                /* full reads from then on are the caller's */
    const int64_t *interrupt_word;
    int64_t interrupt;
    int64_t carried_count[2];
    int64_t handed_deadline_mono_ns, handed_full;
    uint64_t stamp; /* what was measured last, and when it was first seen; 0: nothing yet */
    int64_t stamp_mono_ns;
} loop_t;

int native_taken(const plan_t *plan, record_t *record, double *state);
int native_is_fresh(loop_t *loop, const plan_t *plan, int64_t now_ns);
int64_t native_carry_out(loop_t *loop);
int64_t native_sizes(int64_t *sizes, int64_t count);

#endif
