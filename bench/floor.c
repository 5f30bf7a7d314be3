/* What merely waking costs on this machine: threads that sleep to deadlines and do nothing else.
 *
 * `floor HZ SECONDS THREADS` prints JSON: the share of a core that it took, and how late each sleep
 * ended. A deadline falls at a random point of the middle 90 % of its period, as the sampler's do.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NS_PER_S 1000000000LL

typedef struct {
    pthread_t thread;
    int64_t start_ns, period_ns, count, *late_ns;
    uint64_t seed;
} sleeper_t;

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static double uniform(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (double)(*seed >> 11) / 9007199254740992.0;
}

static void *sleep_through(void *argument)
{
    sleeper_t *sleeper = argument;
    for (int64_t tick = 0; tick < sleeper->count; tick++) {
        double into = 0.05 + 0.9 * uniform(&sleeper->seed);
        int64_t deadline_ns = sleeper->start_ns + tick * sleeper->period_ns
                              + (int64_t)(into * (double)sleeper->period_ns);
        struct timespec until = {deadline_ns / NS_PER_S, deadline_ns % NS_PER_S};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        sleeper->late_ns[tick] = clock_ns(CLOCK_MONOTONIC) - deadline_ns;
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    double hz = atof(arguments[1]), seconds = atof(arguments[2]);
    int threads = atoi(arguments[3]);
    sleeper_t *sleepers = calloc((size_t)threads, sizeof(sleeper_t));
    int64_t began_ns = clock_ns(CLOCK_MONOTONIC), period_ns = (int64_t)(NS_PER_S / hz);
    for (int i = 0; i < threads; i++) {
        sleeper_t *sleeper = &sleepers[i];
        sleeper->start_ns = began_ns + i * period_ns / threads;
        sleeper->period_ns = period_ns;
        sleeper->count = (int64_t)(hz * seconds);
        sleeper->late_ns = calloc((size_t)sleeper->count, sizeof(int64_t));
        sleeper->seed = (uint64_t)i;
        pthread_create(&sleeper->thread, NULL, sleep_through, sleeper);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(sleepers[i].thread, NULL);
    double used = (double)clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    printf("{\"core_ratio\": %.9f, \"late_ns\": [", used / (double)(clock_ns(CLOCK_MONOTONIC) - began_ns));
    for (int i = 0; i < threads; i++)
        for (int64_t tick = 0; tick < sleepers[i].count; tick++)
            printf("%s%lld", i + tick ? "," : "", (long long)sleepers[i].late_ns[tick]);
    printf("]}\n");
    return 0;
}
