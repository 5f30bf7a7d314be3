/* What an invented GPU's sensors show at a time. */
#include "fake_nvml.h"

#include <time.h>

int64_t now_unix_ns(void)
{
    struct timespec now;
    if (scenario->frozen_unix_ns)
        return scenario->frozen_unix_ns;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static int64_t lap_ns(const gpu_t *gpu)
{
    int64_t total = 0;
    for (int i = 0; i < gpu->segment_count; i++)
        total += gpu->segments[i].length_ns;
    return total;
}

const segment_t *segment_at(const gpu_t *gpu, int64_t unix_ns)
{
    int64_t left = unix_ns - gpu->origin_unix_ns;
    int last = (int)gpu->segment_count - 1;
    if (gpu->repeats) {
        int64_t lap = lap_ns(gpu);
        left = (left % lap + lap) % lap;
    }
    for (int i = 0; i < last; i++) {
        if (left < gpu->segments[i].length_ns)
            return &gpu->segments[i];
        left -= gpu->segments[i].length_ns;
    }
    return &gpu->segments[last];
}

/* What is integrated: power in mW, or 1 while any of these reason bits is set. */
static int64_t weight(const segment_t *segment, int64_t bits)
{
    if (bits == 0)
        return segment->power_mw;
    return (segment->reasons & bits) != 0;
}

static __int128 integral(const gpu_t *gpu, int64_t unix_ns, int64_t bits)
{
    __int128 total = 0;
    int64_t left = unix_ns - gpu->origin_unix_ns;
    int last = (int)gpu->segment_count - 1;
    if (left <= 0)
        return 0;
    if (gpu->repeats) {
        int64_t lap = lap_ns(gpu);
        for (int i = 0; i <= last; i++)
            total += (__int128)weight(&gpu->segments[i], bits) * gpu->segments[i].length_ns;
        total *= left / lap;
        left %= lap;
    }
    for (int i = 0; i <= last; i++) {
        int64_t length = gpu->segments[i].length_ns;
        int64_t taken = i == last || left < length ? left : length;
        total += (__int128)weight(&gpu->segments[i], bits) * taken;
        left -= taken;
    }
    return total;
}

int64_t taken_at(int64_t unix_ns, int64_t period_ns)
{
    return period_ns ? unix_ns - unix_ns % period_ns : unix_ns;
}

static int64_t counter_time(const gpu_t *gpu, int64_t unix_ns)
{
    return taken_at(unix_ns, gpu->counter_period_ns);
}

int64_t sm_clock_mhz(const gpu_t *gpu, int64_t unix_ns)
{
    return segment_at(gpu, taken_at(unix_ns, gpu->clock_period_ns))->sm_clock_mhz;
}

int64_t power_mw(const gpu_t *gpu, int64_t unix_ns)
{
    return segment_at(gpu, taken_at(unix_ns, gpu->power_period_ns))->power_mw;
}

int64_t average_power_mw(const gpu_t *gpu, int64_t unix_ns)
{
    int64_t end = taken_at(unix_ns, gpu->power_period_ns), start = end - NS_PER_S;
    if (start < gpu->origin_unix_ns)
        return segment_at(gpu, end)->power_mw;
    return (int64_t)((integral(gpu, end, 0) - integral(gpu, start, 0)) / NS_PER_S);
}

uint64_t energy_mj(const gpu_t *gpu, int64_t unix_ns)
{
    return gpu->energy_start_mj
           + (uint64_t)(integral(gpu, counter_time(gpu, unix_ns), 0) / NS_PER_S);
}

uint64_t limited_ns(const gpu_t *gpu, int counter, int64_t unix_ns)
{
    static const int64_t bits[LIMIT_COUNTERS] = {0x4, 0x10, 0x20, 0x40, 0x80};
    return gpu->limited_start_ns[counter]
           + (uint64_t)integral(gpu, counter_time(gpu, unix_ns), bits[counter]);
}
