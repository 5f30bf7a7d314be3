/* A libnvidia-ml.so.1 with invented GPUs, for tests; loaded by the real Python binding.
 *
 * What it answers is in a file of the layout below, named by FAKE_NVML_SCENARIO and mapped shared,
 * so that a test in this process or another changes it while it is in use (scenario.py has the
 * same layout). Every member is 8 bytes wide. A GPU's values are a function of CLOCK_REALTIME:
 * segments of constant values, played once (the last one stays) or round and round; energy and
 * limit counters are the exact integrals of these segments.
 */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <fcntl.h>
#include <nvml.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 16
#define MAX_SEGMENTS 32
#define LIMIT_COUNTERS 5
#define FIELDS (LIMIT_COUNTERS + 1)
#define NS_PER_S 1000000000LL
#define NS_PER_MS 1000000LL
#define RAMP_RATE_MW_PER_S 54321

#define CALLS(X)                              \
    X(nvmlInitWithFlags)                      \
    X(nvmlShutdown)                           \
    X(nvmlSystemGetDriverVersion)             \
    X(nvmlDeviceGetCount_v2)                  \
    X(nvmlDeviceGetHandleByIndex_v2)          \
    X(nvmlDeviceGetHandleByUUID)              \
    X(nvmlDeviceGetUUID)                      \
    X(nvmlDeviceGetName)                      \
    X(nvmlDeviceGetPciInfo_v3)                \
    X(nvmlDeviceGetMaxClockInfo)              \
    X(nvmlDeviceGetApplicationsClock)         \
    X(nvmlDeviceGetDefaultApplicationsClock)  \
    X(nvmlDeviceGetEnforcedPowerLimit)        \
    X(nvmlDeviceGetPowerManagementDefaultLimit) \
    X(nvmlDeviceGetMigMode)                   \
    X(nvmlDeviceGetClockInfo)                 \
    X(nvmlDeviceGetCurrentClocksEventReasons) \
    X(nvmlDeviceGetCurrentClocksThrottleReasons) \
    X(nvmlDeviceGetFieldValues)               \
    X(nvmlDeviceGetPowerUsage)                \
    X(nvmlDeviceGetTotalEnergyConsumption)    \
    X(nvmlDeviceGetTemperatureV)              \
    X(nvmlDeviceGetTemperature)               \
    X(nvmlDeviceGetMemoryInfo_v2)             \
    X(nvmlDeviceGetMemoryInfo)                \
    X(nvmlDeviceGetUtilizationRates)

#define AS_ENUM(name) CALL_##name,
#define AS_TEXT(name) #name,
enum call { CALLS(AS_ENUM) CALL_COUNT };
static const char *const call_names[] = {CALLS(AS_TEXT)};

typedef struct {
    int64_t length_ns, sm_clock_mhz, mem_clock_mhz, power_mw, temperature_c, reasons, activity_percent;
} segment_t;

typedef struct {
    char uuid[96], name[96], pci_bus_id[32];
    int64_t sm_clock_max_mhz, mem_clock_max_mhz;
    int64_t applications_clock_mhz, default_applications_clock_mhz;
    int64_t power_limit_mw, power_limit_default_mw;
    int64_t memory_total_bytes, memory_reserved_bytes, memory_used_bytes;
    int64_t mig_mode;
    int64_t energy_start_mj, limited_start_ns[LIMIT_COUNTERS];
    int64_t counter_period_ns; /* counters move at multiples of this; 0: continuously */
    int64_t origin_unix_ns, repeats, segment_count;
    segment_t segments[MAX_SEGMENTS];
    int64_t code[CALL_COUNT], delay_ms[CALL_COUNT];
    int64_t field_code[FIELDS]; /* power cap, sync boost, thermal, hw thermal, brake; instant power */
    int64_t called[CALL_COUNT];
} gpu_t;

typedef struct {
    char driver_version[80];
    int64_t gpu_count;
    int64_t frozen_unix_ns;    /* 0: the clock runs */
    int64_t first_limit_field; /* 251 or 269 by driver version; 0: too old to have them */
    int64_t code[CALL_COUNT];  /* of calls that concern no GPU */
    gpu_t gpus[MAX_GPUS];
} scenario_t;

static scenario_t *scenario;
static int open_count;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- what tests check ------------------------------------------------------------------- */

size_t fake_nvml_layout_bytes(void) { return sizeof(scenario_t); }
int fake_nvml_open_count(void) { return open_count; }
const char *fake_nvml_call_name(int call)
{
    return call >= 0 && call < CALL_COUNT ? call_names[call] : NULL;
}

/* ---- values as a function of time ------------------------------------------------------- */

static int64_t now_unix_ns(void)
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

static const segment_t *segment_at(const gpu_t *gpu, int64_t unix_ns)
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

static int64_t counter_time(const gpu_t *gpu, int64_t unix_ns)
{
    return gpu->counter_period_ns ? unix_ns - unix_ns % gpu->counter_period_ns : unix_ns;
}

static uint64_t energy_mj(const gpu_t *gpu, int64_t unix_ns)
{
    return gpu->energy_start_mj + (uint64_t)(integral(gpu, counter_time(gpu, unix_ns), 0) / NS_PER_S);
}

static uint64_t limited_ns(const gpu_t *gpu, int counter, int64_t unix_ns)
{
    static const int64_t bits[LIMIT_COUNTERS] = {0x4, 0x10, 0x20, 0x40, 0x80};
    return gpu->limited_start_ns[counter]
           + (uint64_t)integral(gpu, counter_time(gpu, unix_ns), bits[counter]);
}

/* ---- entering a call -------------------------------------------------------------------- */

static void wait_ms(int64_t ms)
{
    struct timespec rest = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS};
    if (ms > 0)
        nanosleep(&rest, NULL);
}

static gpu_t *gpu_of(nvmlDevice_t device) { return (gpu_t *)device; }

/* As long as the scenario says, which may say otherwise meanwhile. */
static void hang(const gpu_t *gpu, enum call call)
{
    for (int64_t waited_ms = 0; waited_ms < gpu->delay_ms[call]; waited_ms++)
        wait_ms(1);
}

static nvmlReturn_t enter(gpu_t *gpu, enum call call)
{
    if (!open_count)
        return NVML_ERROR_UNINITIALIZED;
    if (gpu == NULL)
        return (nvmlReturn_t)scenario->code[call];
    __atomic_fetch_add(&gpu->called[call], 1, __ATOMIC_RELAXED);
    hang(gpu, call);
    return (nvmlReturn_t)gpu->code[call];
}

#define ENTER(gpu, call)                                   \
    do {                                                   \
        nvmlReturn_t entered = enter((gpu), CALL_##call);  \
        if (entered != NVML_SUCCESS)                       \
            return entered;                                \
    } while (0)

static nvmlReturn_t copy_text(const char *from, char *to, unsigned int length)
{
    if (strlen(from) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

static nvmlReturn_t give(unsigned int *to, int64_t value)
{
    *to = (unsigned int)value;
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
        result = (nvmlReturn_t)scenario->code[CALL_nvmlInitWithFlags];
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
    for (int i = 0; i < scenario->gpu_count; i++) {
        if (strcmp(scenario->gpus[i].uuid, uuid) != 0)
            continue;
        ENTER(&scenario->gpus[i], nvmlDeviceGetHandleByUUID);
        *device = (nvmlDevice_t)&scenario->gpus[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/* ---- what does not change --------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ENTER(gpu_of(device), nvmlDeviceGetUUID);
    return copy_text(gpu_of(device)->uuid, uuid, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ENTER(gpu_of(device), nvmlDeviceGetName);
    return copy_text(gpu_of(device)->name, name, length);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER(gpu_of(device), nvmlDeviceGetPciInfo_v3);
    memset(pci, 0, sizeof(*pci));
    return copy_text(gpu_of(device)->pci_bus_id, pci->busId, sizeof(pci->busId));
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    const gpu_t *gpu = gpu_of(device);
    ENTER(gpu_of(device), nvmlDeviceGetMaxClockInfo);
    return give(clock, type == NVML_CLOCK_MEM ? gpu->mem_clock_max_mhz : gpu->sm_clock_max_mhz);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    (void)type;
    ENTER(gpu_of(device), nvmlDeviceGetApplicationsClock);
    return give(clock, gpu_of(device)->applications_clock_mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                                   unsigned int *clock)
{
    (void)type;
    ENTER(gpu_of(device), nvmlDeviceGetDefaultApplicationsClock);
    return give(clock, gpu_of(device)->default_applications_clock_mhz);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit)
{
    ENTER(gpu_of(device), nvmlDeviceGetEnforcedPowerLimit);
    return give(limit, gpu_of(device)->power_limit_mw);
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *limit)
{
    ENTER(gpu_of(device), nvmlDeviceGetPowerManagementDefaultLimit);
    return give(limit, gpu_of(device)->power_limit_default_mw);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER(gpu_of(device), nvmlDeviceGetMigMode);
    *current = *pending = (unsigned int)gpu_of(device)->mig_mode;
    return NVML_SUCCESS;
}

/* ---- what does -------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER(gpu_of(device), nvmlDeviceGetClockInfo);
    const segment_t *segment = segment_at(gpu_of(device), now_unix_ns());
    return give(clock, type == NVML_CLOCK_MEM ? segment->mem_clock_mhz : segment->sm_clock_mhz);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    ENTER(gpu_of(device), nvmlDeviceGetCurrentClocksEventReasons);
    *reasons = (unsigned long long)segment_at(gpu_of(device), now_unix_ns())->reasons;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    ENTER(gpu_of(device), nvmlDeviceGetCurrentClocksThrottleReasons);
    *reasons = (unsigned long long)segment_at(gpu_of(device), now_unix_ns())->reasons;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
{
    ENTER(gpu_of(device), nvmlDeviceGetPowerUsage);
    const gpu_t *gpu = gpu_of(device);
    int64_t now = now_unix_ns(), before = now - NS_PER_S;
    if (before < gpu->origin_unix_ns)
        return give(power, segment_at(gpu, now)->power_mw);
    return give(power, (int64_t)((integral(gpu, now, 0) - integral(gpu, before, 0)) / NS_PER_S));
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy)
{
    ENTER(gpu_of(device), nvmlDeviceGetTotalEnergyConsumption);
    *energy = energy_mj(gpu_of(device), now_unix_ns());
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    ENTER(gpu_of(device), nvmlDeviceGetTemperatureV);
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    temperature->temperature = (int)segment_at(gpu_of(device), now_unix_ns())->temperature_c;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int *temperature)
{
    (void)sensor;
    ENTER(gpu_of(device), nvmlDeviceGetTemperature);
    return give(temperature, segment_at(gpu_of(device), now_unix_ns())->temperature_c);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER(gpu_of(device), nvmlDeviceGetMemoryInfo_v2);
    const gpu_t *gpu = gpu_of(device);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = (unsigned long long)gpu->memory_total_bytes;
    memory->reserved = (unsigned long long)gpu->memory_reserved_bytes;
    memory->used = (unsigned long long)gpu->memory_used_bytes;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER(gpu_of(device), nvmlDeviceGetMemoryInfo);
    const gpu_t *gpu = gpu_of(device);
    memory->total = (unsigned long long)gpu->memory_total_bytes;
    memory->used = (unsigned long long)(gpu->memory_reserved_bytes + gpu->memory_used_bytes);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ENTER(gpu_of(device), nvmlDeviceGetUtilizationRates);
    utilization->gpu = (unsigned int)segment_at(gpu_of(device), now_unix_ns())->activity_percent;
    utilization->memory = 0;
    return NVML_SUCCESS;
}

/* ---- field values ----------------------------------------------------------------------- */

/* Which counter a field id is on this driver; -1: none. */
static int limit_counter(unsigned int field)
{
    int64_t first = scenario->first_limit_field;
    if (field == NVML_FI_DEV_PERF_POLICY_POWER)
        return 0;
    if (field == NVML_FI_DEV_PERF_POLICY_SYNC_BOOST)
        return 1;
    if (first && field >= first && field < first + LIMIT_COUNTERS - 2)
        return (int)(field - first) + 2;
    return -1;
}

static void answer_field(gpu_t *gpu, nvmlFieldValue_t *value, int64_t now)
{
    int counter = limit_counter(value->fieldId);
    value->timestamp = now / 1000;
    value->nvmlReturn = NVML_SUCCESS;
    if (counter >= 0) {
        value->nvmlReturn = (nvmlReturn_t)gpu->field_code[counter];
        value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        value->value.ullVal = limited_ns(gpu, counter, now);
    } else if (value->fieldId == NVML_FI_DEV_POWER_INSTANT) {
        value->nvmlReturn = (nvmlReturn_t)gpu->field_code[LIMIT_COUNTERS];
        value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        value->value.ullVal = UINT64_MAX; /* what lies beyond the type's bits is rubbish */
        value->value.uiVal = (unsigned int)segment_at(gpu, now)->power_mw;
    } else if (value->fieldId >= 251 && value->fieldId <= 273) {
        /* Power smoothing: an answer, to another question. */
        value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        value->value.uiVal = RAMP_RATE_MW_PER_S;
    } else {
        value->nvmlReturn = NVML_ERROR_INVALID_ARGUMENT;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER(gpu_of(device), nvmlDeviceGetFieldValues);
    int64_t now = now_unix_ns();
    for (int i = 0; i < count; i++)
        answer_field(gpu_of(device), &values[i], now);
    return NVML_SUCCESS;
}
