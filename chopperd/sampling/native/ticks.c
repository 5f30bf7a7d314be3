/* Carries out the ticks of one GPU: waits, makes the driver calls of a plan, records.
 *
 * It does what `DeviceLoop` with `PythonTicks` does in the plain case, and writes the same words. It
 * runs with Python's lock released and returns to Python for everything else: errors, values out
 * of bounds, the end of the ticks, a stop. One thread a GPU.
 */
#define _GNU_SOURCE
#include "native.h"

#include <string.h>
#include <time.h>

/* A wait is cut into naps of this length, so that a stop takes effect soon. */
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

/* Read the GPU once; 0 if it was not as planned: only the driver's time is recorded then. */
static int read_gpu(loop_t *loop, int64_t deadline_ns, int64_t started_ns, int64_t full)
{
    const memory_t *memory = loop->memory;
    head_t *head = memory->head;
    record_t record;
    double state[STATES];
    begin_call(memory, started_ns, full);
    int is_planned = native_taken(loop->plans[full], &record, state);
    int64_t ended_ns = mono_ns();
    if (!is_current(memory)) /* the calls took so long that another writer has begun */
        return 0;
    is_planned = is_planned && native_is_fresh(loop, loop->plans[full], ended_ns);
    if (is_planned) {
        record.t_mono_ns = (started_ns + ended_ns) / 2;
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
        if (!read_gpu(loop, deadline_ns, started_ns, full))
            return is_current(loop->memory) ? handed(loop, deadline_ns, full) : WHY_INTERRUPTED;
        loop->carried_count[full]++;
        int64_t now_ns = mono_ns();
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
        offsetof(status_t, slow_state_sequence),
        offsetof(status_t, state_sequence),
        offsetof(status_t, state_mono_ns),
        offsetof(status_t, state),
        STATES,
        sizeof(memory_t),
        sizeof(call_t),
        sizeof(number_t),
        sizeof(check_t),
        sizeof(plan_t),
        sizeof(loop_t),
    };
    const int64_t own_count = sizeof(own) / sizeof(own[0]);
    for (int64_t i = 0; i < own_count && i < count; i++)
        sizes[i] = own[i];
    return own_count;
}
