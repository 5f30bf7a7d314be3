/* Carries out a plan: makes its calls and takes its numbers, or says that it is not as planned.
 *
 * `chopperd/devices/read_plan.py` says what each part of a plan means; `plans.py` has checked that
 * it fits its buffers, which is checked here once more.
 */
#define _GNU_SOURCE
#include "native.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

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
        return call->argument > call->buffer_bytes
               || pread((int)call->handle, buffer, (size_t)call->argument, 0) != call->argument;
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
    if (number->kind == KIND_INT32 && raw == -1)
        return 0; /* all ones: Python counts it as absent */
    double value = raw * number->multiplier / number->divisor;
    double judged = number->is_counted ? raw : value;
    if (!(judged >= number->low && judged <= number->high))
        return 0;
    return put(number, number->is_counted ? value + number->addend : value, record, state);
}

static int causes_found(const plan_t *plan, int64_t *causes)
{
    *causes = UNKNOWN_BIT;
    if (plan->causes_call < 0)
        return 1;
    int64_t bytes = bytes_of(plan->causes_kind);
    const char *from = part_of(plan, plan->causes_call, plan->causes_offset, bytes);
    if (from == NULL)
        return 0;
    uint64_t bits = bits_at(from, plan->causes_kind);
    if (bits == UINT64_MAX)
        return 0; /* all ones: no set of reasons */
    *causes = 0;
    for (; bits; bits &= bits - 1)
        *causes |= plan->causes_by_bit[__builtin_ctzll(bits)];
    return 1;
}

/* Make the calls of a plan and take their numbers; 0 if anything is not as planned. */
int native_taken(const plan_t *plan, record_t *record, double *state)
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
int native_is_fresh(loop_t *loop, const plan_t *plan, int64_t now_ns)
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
