/* An answer as it is at an instant: its bytes, with what moves in them; and its faults. */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <time.h>

#include "fake_amd_smi.h"

#define NS_PER_S 1000000000LL
#define MOST_TRIES 1000000 /* a second or so */

int64_t now_ns(void)
{
    struct timespec now;
    if (scenario->frozen_ns)
        return scenario->frozen_ns;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

const answer_t *answer_of(const gpu_t *gpu, enum call call, int64_t key)
{
    for (int64_t i = 0; i < gpu->answer_count; i++)
        if (gpu->answers[i].call == (int64_t)call && gpu->answers[i].key == key)
            return &gpu->answers[i];
    return NULL;
}

/* ---- numbers that move ------------------------------------------------------------------ */

static int64_t lap_ns(const motion_t *motion)
{
    int64_t total = 0;
    for (int64_t i = 0; i < motion->piece_count; i++)
        total += motion->lengths_ns[i];
    return total;
}

static int64_t level_at(const motion_t *motion, int64_t elapsed_ns)
{
    int64_t left = elapsed_ns, last = motion->piece_count - 1;
    if (motion->repeats) {
        int64_t lap = lap_ns(motion);
        left = (left % lap + lap) % lap;
    }
    for (int64_t i = 0; i < last; i++) {
        if (left < motion->lengths_ns[i])
            return motion->levels[i];
        left -= motion->lengths_ns[i];
    }
    return motion->levels[last];
}

static __int128 integral(const motion_t *motion, int64_t elapsed_ns)
{
    __int128 total = 0;
    int64_t left = elapsed_ns > 0 ? elapsed_ns : 0, last = motion->piece_count - 1;
    if (motion->repeats) {
        int64_t lap = lap_ns(motion);
        for (int64_t i = 0; i <= last; i++)
            total += (__int128)motion->levels[i] * motion->lengths_ns[i];
        total *= left / lap;
        left %= lap;
    }
    for (int64_t i = 0; i <= last; i++) {
        int64_t length = motion->lengths_ns[i];
        int64_t taken = i == last || left < length ? left : length;
        total += (__int128)motion->levels[i] * taken;
        left -= taken;
    }
    return total;
}

static uint64_t number_at(const motion_t *motion, int64_t at_ns)
{
    int64_t elapsed_ns = at_ns - motion->origin_ns;
    if (!motion->counts)
        return (uint64_t)level_at(motion, elapsed_ns);
    __int128 counted = integral(motion, elapsed_ns) * motion->numerator / motion->denominator;
    uint64_t number = (uint64_t)motion->base + (uint64_t)counted;
    return motion->bits < 64 ? number & ((1ULL << motion->bits) - 1) : number;
}

/* ---- a whole answer --------------------------------------------------------------------- */

/* The bytes at `offset` of the heap as they were measured `lag_ns` ago. */
static void render(const gpu_t *gpu, const answer_t *answer, int64_t offset, int64_t lag_ns,
                   char *block)
{
    int64_t now = now_ns(), measured = answer->held_ns ? answer->held_ns : now;
    if (answer->refresh_ns)
        measured -= measured % answer->refresh_ns;
    memcpy(block, gpu->heap + offset, (size_t)answer->bytes);
    for (int64_t i = 0; i < answer->motion_count; i++) {
        const motion_t *motion = &gpu->motions[answer->first_motion + i];
        uint64_t number = number_at(motion, (motion->at_read ? now : measured) - lag_ns);
        memcpy(block + motion->offset, &number, (size_t)motion->width);
    }
}

static void render_faults(const gpu_t *gpu, const answer_t *answer, char *block)
{
    char older[MOST_BLOCK_BYTES];
    int64_t from = answer->torn_at, offset = answer->torn_offset;
    render(gpu, answer, answer->offset, 0, block);
    if (from < 0)
        return;
    render(gpu, answer, offset < 0 ? answer->offset : offset, answer->torn_lag_ns, older);
    memcpy(block + from, older + from, (size_t)(answer->bytes - from));
}

/* What a test changes meanwhile is read before or after, unless it takes too long. */
void write_answer(const gpu_t *gpu, const answer_t *answer, void *out)
{
    char block[MOST_BLOCK_BYTES];
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        int64_t before = __atomic_load_n(&gpu->sequence, __ATOMIC_ACQUIRE);
        render_faults(gpu, answer, block);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        int64_t after = __atomic_load_n(&gpu->sequence, __ATOMIC_RELAXED);
        if (before == after && before % 2 == 0)
            break;
        sched_yield();
    }
    int64_t bytes = answer->bytes;
    if (answer->short_bytes >= 0 && answer->short_bytes < bytes)
        bytes = answer->short_bytes;
    memcpy(out, block, (size_t)bytes);
}
