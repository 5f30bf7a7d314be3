/* A libnvidia-ml.so.1 with invented GPUs, for tests; loaded by the real Python binding.
 *
 * What it answers is in the file that FAKE_NVML_SCENARIO names (fake_nvml.h). Here: the library as
 * a whole, and what each call begins with.
 */
#define _GNU_SOURCE
#include "fake_nvml.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define AS_TEXT(name) #name,
static const char *const call_names[] = {CALLS(AS_TEXT)};

scenario_t *scenario;
static int open_count;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- what tests check ------------------------------------------------------------------- */

size_t fake_nvml_layout_bytes(void) { return sizeof(scenario_t); }
int fake_nvml_open_count(void) { return open_count; }
const char *fake_nvml_call_name(int call)
{
    return call >= 0 && call < CALL_COUNT ? call_names[call] : NULL;
}

/* ---- entering a call -------------------------------------------------------------------- */

void wait_ms(int64_t ms)
{
    struct timespec rest = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS};
    if (ms > 0)
        nanosleep(&rest, NULL);
}

/* The code that a call is to answer, once it does. */
static nvmlReturn_t obeyed(const int64_t *code)
{
    int64_t wanted;
    while ((wanted = __atomic_load_n(code, __ATOMIC_RELAXED)) == HANGS)
        wait_ms(2);
    if (wanted == CRASHES)
        raise(SIGSEGV);
    return (nvmlReturn_t)wanted;
}

/* As long as the scenario says, which may say otherwise meanwhile. */
static void hang(const gpu_t *gpu, enum call call)
{
    for (int64_t waited_ms = 0; waited_ms < gpu->delay_ms[call]; waited_ms++)
        wait_ms(1);
}

nvmlReturn_t enter(gpu_t *gpu, enum call call)
{
    if (!open_count)
        return NVML_ERROR_UNINITIALIZED;
    if (gpu == NULL)
        return obeyed(&scenario->code[call]);
    __atomic_fetch_add(&gpu->called[call], 1, __ATOMIC_RELAXED);
    hang(gpu, call);
    return obeyed(&gpu->code[call]);
}

nvmlReturn_t copy_text(const char *from, char *to, unsigned int length)
{
    if (strlen(from) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

/* ---- the library as a whole ------------------------------------------------------------- */

static nvmlReturn_t map_scenario(void)
{
    struct stat about;
    const char *path = getenv("FAKE_NVML_SCENARIO");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (fstat(file, &about) || (size_t)about.st_size != sizeof(scenario_t)) {
        close(file);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    /* An older map is left alone: a hanging call may still use it. */
    void *mapped = mmap(NULL, sizeof(scenario_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return NVML_ERROR_MEMORY;
    scenario = mapped;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&open_lock);
    nvmlReturn_t result = open_count ? NVML_SUCCESS : map_scenario();
    if (result == NVML_SUCCESS)
        result = obeyed(&scenario->code[CALL_nvmlInitWithFlags]);
    if (result == NVML_SUCCESS)
        open_count++;
    pthread_mutex_unlock(&open_lock);
    return result;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&open_lock);
    nvmlReturn_t result = open_count ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (open_count)
        open_count--;
    pthread_mutex_unlock(&open_lock);
    return result;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    return result == NVML_SUCCESS ? "Success" : "an error of the fake driver";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER(NULL, nvmlSystemGetDriverVersion);
    return copy_text(scenario->driver_version, version, length);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER(NULL, nvmlDeviceGetCount_v2);
    return give(count, scenario->gpu_count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    ENTER(NULL, nvmlDeviceGetHandleByIndex_v2);
    if (index >= scenario->gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    ENTER(&scenario->gpus[index], nvmlDeviceGetHandleByIndex_v2);
    *device = (nvmlDevice_t)&scenario->gpus[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER(NULL, nvmlDeviceGetHandleByUUID);
    for (int i = 0; i < MAX_GPUS; i++) {
        int is_there = i < scenario->gpu_count || scenario->asides[i].mig_card;
        if (!is_there || strcmp(scenario->gpus[i].uuid, uuid) != 0)
            continue;
        ENTER(&scenario->gpus[i], nvmlDeviceGetHandleByUUID);
        *device = (nvmlDevice_t)&scenario->gpus[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}
