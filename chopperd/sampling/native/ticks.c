/* Carries out the ticks of one GPU: waits, makes the driver calls of a plan, records.
 *
 * This is `DeviceLoop` with `PythonTicks` for the plain case, word for word in what it writes. It
 * runs with Python's lock released and returns to Python for everything else: errors, values out
 * of bounds, the end of the ticks, a stop. One thread a GPU.
 */
#define _GNU_SOURCE
#include "native.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A wait is cut into naps of this length, so that a stop is seen soon. */
#define NAP_NS 250000000LL

#define STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)
#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_ACQUIRE)

static int64_t mono_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* ---- waiting ---------------------------------------------------------------------------- */

static int is_current(const memory_t *memory)
{
    return LOAD(*memory->generation_word) == memory->generation;
}

static int is_interrupted(const loop_t *loop)
{
    return LOAD(*loop->interrupt_word) != loop->interrupt || !is_current(loop->memory);
}

/* Whether the deadline was reached before an interruption. A signal only cuts a nap short. */
static int wait_until(const loop_t *loop, int64_t deadline_ns)
{
    for (;;) {
        if (is_interrupted(loop))
            return 0;
        int64_t now_ns = mono_ns();
        if (now_ns >= deadline_ns)
            return 1;
        int64_t until_ns = deadline_ns - now_ns > NAP_NS ? now_ns + NAP_NS : deadline_ns;
        struct timespec until = {.tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

/* ---- carrying out a plan ---------------------------------------------------------------- */

/* What a file says now, with a zero after it. */
static int read_text(const call_t *call, char *buffer)
{
    if (call->argument >= call->buffer_bytes)
        return -1;
    ssize_t count = pread((int)call->handle, buffer, (size_t)call->argument, 0);
    if (count <= 0)
        return -1;
    buffer[count] = '\0';
    return 0;
}

static int called(const call_t *call)
{
    void *handle = (void *)(uintptr_t)call->handle, *buffer = (void *)(uintptr_t)call->buffer;
    uintptr_t function = (uintptr_t)call->function;
    switch (call->shape) {
    case SHAPE_BUFFER:
        return ((int (*)(void *, void *))function)(handle, buffer);
    case SHAPE_OF:
    case SHAPE_COUNT:
        return ((int (*)(void *, int, void *))function)(handle, (int)call->argument, buffer);
    case SHAPE_FILE: /* all of it, or nothing of use */
        return pread((int)call->handle, buffer, (size_t)call->argument, 0) != call->argument;
    case SHAPE_TEXT:
        return read_text(call, buffer);
    default:
        return -1;
    }
}

static int made_call(const call_t *call)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)call->lock;
    if (lock == NULL)
        return called(call);
    if (pthread_mutex_lock(lock) != 0)
        return -1;
    int code = called(call);
    pthread_mutex_unlock(lock);
    return code;
}

/* Where `bytes` bytes at an offset of a call's buffer are; NULL outside of it. */
static const char *part_of(const plan_t *plan, int64_t call, int64_t offset, int64_t bytes)
{
    if (call < 0 || call >= plan->calls_count)
        return NULL;
    if (offset < 0 || offset > plan->calls[call].buffer_bytes - bytes)
        return NULL;
    return (const char *)(uintptr_t)plan->calls[call].buffer + offset;
}

static int64_t bytes_of(int64_t kind)
{
    switch (kind) {
    case KIND_UINT16:
        return 2;
    case KIND_UINT32:
    case KIND_INT32:
        return 4;
    case KIND_DECIMAL:
        return 1; /* and more, up to the zero after the text */
    default:
        return 8;
    }
}

/* The bits of a number, those of a signed one with its sign; the caller has checked the room. */
static uint64_t bits_at(const char *from, int64_t kind)
{
    uint64_t bits = 0;
    memcpy(&bits, from, (size_t)bytes_of(kind)); /* little-endian */
    return kind == KIND_INT32 ? (uint64_t)(int64_t)(int32_t)bits : bits;
}

static double number_of(uint64_t bits, int64_t kind)
{
    double real;
    switch (kind) {
    case KIND_FLOAT64:
        memcpy(&real, &bits, sizeof(real));
        return real;
    case KIND_INT32:
    case KIND_INT64:
        return (double)(int64_t)bits;
    default:
        return (double)bits;
    }
}

static int checks_hold(const plan_t *plan, const number_t *number)
{
    for (int64_t i = 0; i < number->checks_count; i++) {
        int64_t place = number->first_check + i;
        if (place < 0 || place >= plan->checks_count)
            return 0;
        const check_t *check = &plan->checks[place];
        const char *from = part_of(plan, number->call, check->offset, 4);
        if (from == NULL || (int64_t)bits_at(from, KIND_UINT32) != check->value)
            return 0;
    }
    return 1;
}

/* A number in digits up to the end of the line or of the text; NaN if anything else is there. */
static double decimal_at(const char *from)
{
    double number = 0;
    const char *digit = from;
    for (; *digit >= '0' && *digit <= '9'; digit++)
        number = number * 10 + (*digit - '0');
    return digit > from && (*digit == '\n' || *digit == '\0') ? number : NAN;
}

/* Put a value where it belongs; 0 if it belongs nowhere. */
static int put(const number_t *number, double value, record_t *record, double *state)
{
    int64_t first = offsetof(record_t, sm_clock_mhz) / 8, place = number->place;
    if (place < first)
        return 0;
    if (place < RECORD_WORDS) {
        double *word = (double *)record + place;
        *word = number->is_counted && !isnan(*word) ? *word + value : value;
        return 1;
    }
    place -= RECORD_WORDS;
    if (place < STATES) {
        state[place] = value;
        return 1;
    }
    place -= STATES;
    if (place >= DIES || !(value >= 0 && value <= NO_DIE - 1))
        return 0;
    record->die_clocks_mhz[place] = (uint16_t)lrint(value);
    return 1;
}

/* Take a number to its place; 0 if it is not as planned. NaN is in no bounds. */
static int placed(const plan_t *plan, const number_t *number, record_t *record, double *state)
{
    const char *from = part_of(plan, number->call, number->offset, bytes_of(number->kind));
    if (from == NULL || !checks_hold(plan, number))
        return 0;
    double raw = number->kind == KIND_DECIMAL ? decimal_at(from)
                                              : number_of(bits_at(from, number->kind), number->kind);
    double value = raw * number->multiplier / number->divisor;
    double judged = number->is_counted ? raw : value;
    if (!(judged >= number->low && judged <= number->high))
        return 0;
    return put(number, number->is_counted ? value + number->addend : value, record, state);
}

static int causes_found(const plan_t *plan, int64_t *causes)
{
    *causes = BIT(UNKNOWN);
    if (plan->causes_call < 0)
        return 1;
    int64_t bytes = bytes_of(plan->causes_kind);
    const char *from = part_of(plan, plan->causes_call, plan->causes_offset, bytes);
    if (from == NULL)
        return 0;
    *causes = 0;
    for (uint64_t bits = bits_at(from, plan->causes_kind); bits; bits &= bits - 1)
        *causes |= plan->causes_by_bit[__builtin_ctzll(bits)];
    return 1;
}

/* Make the calls of a plan and take their numbers; 0 if anything is not as planned. */
static int taken(const plan_t *plan, record_t *record, double *state)
{
    double *numbers = &record->sm_clock_mhz;
    for (int64_t i = 0; i < VALUES + CAUSES; i++)
        numbers[i] = NAN;
    for (int64_t i = 0; i < STATES; i++)
        state[i] = NAN;
    for (int64_t i = 0; i < DIES; i++)
        record->die_clocks_mhz[i] = NO_DIE;
    for (int64_t i = 0; i < plan->calls_count; i++)
        if (made_call(&plan->calls[i]) != 0)
            return 0;
    for (int64_t i = 0; i < plan->numbers_count; i++)
        if (!placed(plan, &plan->numbers[i], record, state))
            return 0;
    return causes_found(plan, &record->causes);
}

/* Whether what was read is new enough; 0 if it was measured long ago. */
static int is_fresh(loop_t *loop, const plan_t *plan, int64_t now_ns)
{
    if (plan->stamp_call < 0)
        return 1;
    int64_t bytes = bytes_of(plan->stamp_kind);
    const char *from = part_of(plan, plan->stamp_call, plan->stamp_offset, bytes);
    if (from == NULL)
        return 0;
    uint64_t stamp = bits_at(from, plan->stamp_kind);
    if (stamp != loop->stamp || loop->stamp_mono_ns == 0) {
        loop->stamp = stamp;
        loop->stamp_mono_ns = now_ns;
    }
    return now_ns - loop->stamp_mono_ns < plan->stamp_still_ns;
}

/* ---- writing (as GpuWriter does) -------------------------------------------------------- */

static void begin_call(const memory_t *memory, int64_t now_ns, int64_t full)
{
    STORE(memory->status->head.call_scope, full);
    STORE(memory->status->head.call_started_mono_ns, now_ns);
}

/* The head as a whole, with no call in progress. */
static void publish(const memory_t *memory)
{
    const int64_t *from = (const int64_t *)memory->head;
    int64_t *to = (int64_t *)&memory->status->head;
    for (int64_t i = 0; i < HEAD_WORDS; i++)
        STORE(to[i], from[i]);
}

static void write_record(const memory_t *memory, record_t *record)
{
    int64_t written = memory->head->written;
    record_t *slot = &memory->records[written % memory->capacity];
    STORE(slot->sequence, 0);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* unfinished is seen before any of the rest */
    memcpy(&slot->t_mono_ns, &record->t_mono_ns, sizeof(*slot) - sizeof(slot->sequence));
    STORE(slot->sequence, written + 1);
    memory->head->written = written + 1;
    memory->head->last_mono_ns = record->t_mono_ns;
}

static void write_state(const memory_t *memory, const double *state, int64_t t_mono_ns)
{
    status_t *status = memory->status;
    int64_t odd = status->state_sequence | 1;
    STORE(status->state_sequence, odd);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    memcpy(status->state, state, sizeof(status->state));
    status->state_mono_ns = t_mono_ns;
    STORE(status->state_sequence, odd + 1);
}

static void miss(loop_t *loop, int64_t full)
{
    loop->memory->head->missed_count++;
    loop->owes_full |= full;
}

/* One look at the GPU; 0 if it was not as planned: nothing is recorded but the driver's time. */
static int look(loop_t *loop, int64_t deadline_ns, int64_t started_ns, int64_t full)
{
    const memory_t *memory = loop->memory;
    head_t *head = memory->head;
    record_t record;
    double state[STATES];
    begin_call(memory, started_ns, full);
    int is_planned = taken(loop->plans[full], &record, state);
    int64_t ended_ns = mono_ns();
    if (!is_current(memory)) /* the calls took so long that another writer has begun */
        return 0;
    is_planned = is_planned && is_fresh(loop, loop->plans[full], ended_ns);
    if (is_planned) {
        record.t_mono_ns = (started_ns + ended_ns) / 2;
        if (loop->plans[full]->has_dies)
            record.sm_clock_mhz = native_governing_mhz(&loop->dies, memory, &record);
        record.span_ns = ended_ns - started_ns;
        record.late_ns = started_ns - deadline_ns;
        record.scope = full;
        write_record(memory, &record);
        if (full)
            write_state(memory, state, record.t_mono_ns);
        head->ticks_count++;
    }
    head->driver_ns += ended_ns - started_ns;
    if (full)
        head->driver_full_ns += ended_ns - started_ns;
    publish(memory);
    return is_planned;
}

/* ---- the loop --------------------------------------------------------------------------- */

static enum why handed(loop_t *loop, int64_t deadline_ns, int64_t full)
{
    loop->handed_deadline_mono_ns = deadline_ns;
    loop->handed_full = full;
    return WHY_HANDED;
}

/* Carry out ticks from `next` on; says why it came back. */
int64_t native_carry_out(loop_t *loop)
{
    loop->carried_count[0] = loop->carried_count[1] = 0;
    while (loop->next < loop->count) {
        int64_t deadline_ns = loop->deadlines_mono_ns[loop->next];
        int64_t end_ns = loop->ends_mono_ns[loop->next];
        int64_t full = loop->are_full[loop->next] != 0;
        if (mono_ns() < end_ns && !wait_until(loop, deadline_ns))
            return WHY_INTERRUPTED;
        loop->next++;
        int64_t started_ns = mono_ns();
        if (started_ns >= end_ns) { /* this period has no read */
            miss(loop, full);
            continue;
        }
        full |= loop->owes_full;
        loop->owes_full = 0;
        if (loop->plans[full] == NULL || (full && deadline_ns >= loop->hand_full_mono_ns))
            return handed(loop, deadline_ns, full);
        if (!look(loop, deadline_ns, started_ns, full))
            return is_current(loop->memory) ? handed(loop, deadline_ns, full) : WHY_INTERRUPTED;
        loop->carried_count[full]++;
        int64_t now_ns = mono_ns();
        if (now_ns >= loop->integrator->due_mono_ns)
            native_integrate(loop->integrator, now_ns);
        if (now_ns >= loop->return_mono_ns
            || loop->memory->head->driver_ns >= loop->return_driver_ns)
            return WHY_DUE;
    }
    return WHY_ENDED;
}

/* What Python compares with its own layout; how many numbers there are. */
int64_t native_sizes(int64_t *sizes, int64_t count)
{
    const int64_t own[] = {
        NATIVE_VERSION,
        sizeof(record_t),
        sizeof(head_t),
        sizeof(totals_t),
        offsetof(status_t, totals_sequence),
        offsetof(status_t, totals),
        offsetof(status_t, side_sequence),
        offsetof(status_t, state_sequence),
        offsetof(status_t, state_mono_ns),
        offsetof(status_t, state),
        STATES,
        sizeof(memory_t),
        sizeof(integrals_t),
        sizeof(integrator_t),
        sizeof(call_t),
        sizeof(number_t),
        sizeof(check_t),
        sizeof(plan_t),
        sizeof(dies_t),
        sizeof(loop_t),
    };
    const int64_t own_count = sizeof(own) / sizeof(own[0]);
    for (int64_t i = 0; i < own_count && i < count; i++)
        sizes[i] = own[i];
    return own_count;
}
