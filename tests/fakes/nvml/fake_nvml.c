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
#include <signal.h>
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
#define FIELDS (LIMIT_COUNTERS + 7)
#define BUFFERS 2 /* of samples: power, SM clock */
#define BUFFERED_SAMPLES 120
#define MOST_PROCESSES 80
#define MOST_XIDS 8
#define HANGS (-1)   /* as a code: the call does not return while it stands */
#define CRASHES (-2) /* as a code: the call ends the process */
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
    X(nvmlDeviceGetUtilizationRates)          \
    X(nvmlDeviceGetTemperatureThreshold)      \
    X(nvmlDeviceGetSamples)                   \
    X(nvmlDeviceGetViolationStatus)          \
    X(nvmlDeviceGetMaxMigDeviceCount)         \
    X(nvmlDeviceGetMigDeviceHandleByIndex)    \
    X(nvmlDeviceGetGpuInstanceId)             \
    X(nvmlDeviceGetComputeRunningProcesses_v3) \
    X(nvmlDeviceGetComputeRunningProcesses_v2) \
    X(nvmlEventSetCreate)                     \
    X(nvmlDeviceRegisterEvents)               \
    X(nvmlDeviceGetSupportedEventTypes)       \
    X(nvmlEventSetWait_v2)                    \
    X(nvmlDeviceGetTotalEccErrors)            \
    X(nvmlDeviceGetRemappedRows)              \
    X(nvmlDeviceGetRetiredPagesPendingStatus)

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
    int64_t field_code[FIELDS]; /* the limit counters, then as in enum other_field */
    int64_t called[CALL_COUNT];
    int64_t memory_temperature_c;
    int64_t temperature_threshold_c[3]; /* shutdown, slowdown, memory; 0: not supported */
    int64_t module_extra_mw;            /* what the module draws beside the GPU */
    int64_t clock_period_ns, power_period_ns; /* values move at multiples of this; 0: continuously */
    int64_t buffer_period_ns[BUFFERS];        /* 0: not supported */
} gpu_t;

/* What is seldom asked of a GPU, or tells that it is a GPU instance. */
typedef struct {
    int64_t mig_card;          /* 1 + index of the GPU that this is a GPU instance of; 0: of none */
    int64_t mig_instance;      /* its id there */
    int64_t process_count, process_pid[MOST_PROCESSES];
    int64_t process_bytes[MOST_PROCESSES]; /* -1: not available */
    int64_t xid_count, xid[MOST_XIDS];     /* since the machine started */
    int64_t ecc_uncorrected, rows_pending, rows_failed, pages_pending, recovery_action;
} aside_t;

typedef struct {
    char driver_version[80];
    int64_t gpu_count;
    int64_t frozen_unix_ns;    /* 0: the clock runs */
    int64_t first_limit_field; /* 251 or 269 by driver version; 0: too old to have them */
    int64_t code[CALL_COUNT];  /* of calls that concern no GPU */
    gpu_t gpus[MAX_GPUS];
    aside_t asides[MAX_GPUS];
} scenario_t;

enum other_field {
    POWER_INSTANT = LIMIT_COUNTERS,
    POWER_AVERAGE,
    MODULE_POWER_INSTANT,
    MODULE_POWER_AVERAGE,
    MEMORY_TEMPERATURE,
    ENERGY,
    ACCUMULATED_FREQUENCY
};

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

/* When a sensor of this update period took the value that it shows. */
static int64_t taken_at(int64_t unix_ns, int64_t period_ns)
{
    return period_ns ? unix_ns - unix_ns % period_ns : unix_ns;
}

static int64_t counter_time(const gpu_t *gpu, int64_t unix_ns)
{
    return taken_at(unix_ns, gpu->counter_period_ns);
}

static int64_t sm_clock_mhz(const gpu_t *gpu, int64_t unix_ns)
{
    return segment_at(gpu, taken_at(unix_ns, gpu->clock_period_ns))->sm_clock_mhz;
}

static int64_t power_mw(const gpu_t *gpu, int64_t unix_ns)
{
    return segment_at(gpu, taken_at(unix_ns, gpu->power_period_ns))->power_mw;
}

/* The mean of the last second. */
static int64_t average_power_mw(const gpu_t *gpu, int64_t unix_ns)
{
    int64_t end = taken_at(unix_ns, gpu->power_period_ns), start = end - NS_PER_S;
    if (start < gpu->origin_unix_ns)
        return segment_at(gpu, end)->power_mw;
    return (int64_t)((integral(gpu, end, 0) - integral(gpu, start, 0)) / NS_PER_S);
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
        return obeyed(&scenario->code[call]);
    __atomic_fetch_add(&gpu->called[call], 1, __ATOMIC_RELAXED);
    hang(gpu, call);
    return obeyed(&gpu->code[call]);
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
    int64_t now = now_unix_ns();
    if (type == NVML_CLOCK_MEM)
        return give(clock, segment_at(gpu_of(device), now)->mem_clock_mhz);
    return give(clock, sm_clock_mhz(gpu_of(device), now));
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
    return give(power, average_power_mw(gpu_of(device), now_unix_ns()));
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

/* Which other field this is, in this scope; -1: none that this driver has. */
static int other_field(const nvmlFieldValue_t *value)
{
    int module = value->scopeId == 1;
    switch (value->fieldId) {
    case NVML_FI_DEV_POWER_INSTANT:
        return module ? MODULE_POWER_INSTANT : POWER_INSTANT;
    case NVML_FI_DEV_POWER_AVERAGE:
        return module ? MODULE_POWER_AVERAGE : POWER_AVERAGE;
    case NVML_FI_DEV_MEMORY_TEMP:
        return MEMORY_TEMPERATURE;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        return ENERGY;
    case NVML_FI_DEV_POWER_SYNC_BALANCING_FREQ:
        return ACCUMULATED_FREQUENCY;
    default:
        return -1;
    }
}

static void answer_unsigned(nvmlFieldValue_t *value, int64_t number)
{
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    value->value.ullVal = UINT64_MAX; /* what lies beyond the type's bits is rubbish */
    value->value.uiVal = (unsigned int)number;
}

static void answer_counter(nvmlFieldValue_t *value, uint64_t number)
{
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    value->value.ullVal = number;
}

static void answer_other(const gpu_t *gpu, nvmlFieldValue_t *value, int field, int64_t now)
{
    value->nvmlReturn = (nvmlReturn_t)gpu->field_code[field];
    switch (field) {
    case POWER_INSTANT:
        answer_unsigned(value, power_mw(gpu, now));
        break;
    case POWER_AVERAGE:
        answer_unsigned(value, average_power_mw(gpu, now));
        break;
    case MODULE_POWER_INSTANT:
        answer_unsigned(value, power_mw(gpu, now) + gpu->module_extra_mw);
        break;
    case MODULE_POWER_AVERAGE:
        answer_unsigned(value, average_power_mw(gpu, now) + gpu->module_extra_mw);
        break;
    case MEMORY_TEMPERATURE:
        answer_unsigned(value, gpu->memory_temperature_c);
        break;
    case ENERGY:
        answer_counter(value, energy_mj(gpu, now));
        break;
    default:
        answer_counter(value, (uint64_t)(sm_clock_mhz(gpu, now) * (now / NS_PER_MS)));
    }
}

static void answer_field(gpu_t *gpu, nvmlFieldValue_t *value, int64_t now)
{
    int counter = limit_counter(value->fieldId), other = other_field(value);
    const aside_t *aside = &scenario->asides[gpu - scenario->gpus];
    value->timestamp = now / 1000;
    value->nvmlReturn = NVML_SUCCESS;
    if (counter >= 0) {
        value->nvmlReturn = (nvmlReturn_t)gpu->field_code[counter];
        answer_counter(value, limited_ns(gpu, counter, now));
    } else if (other >= 0) {
        answer_other(gpu, value, other, now);
    } else if (value->fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) {
        answer_unsigned(value, aside->recovery_action);
    } else if (value->fieldId >= 251 && value->fieldId <= 273) {
        /* Power smoothing: an answer, to another question. */
        answer_unsigned(value, RAMP_RATE_MW_PER_S);
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

/* ---- thresholds, buffered samples, the old limit counters ------------------------------- */

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type,
                                               unsigned int *temperature)
{
    ENTER(gpu_of(device), nvmlDeviceGetTemperatureThreshold);
    if (type > NVML_TEMPERATURE_THRESHOLD_MEM_MAX || !gpu_of(device)->temperature_threshold_c[type])
        return NVML_ERROR_NOT_SUPPORTED;
    return give(temperature, gpu_of(device)->temperature_threshold_c[type]);
}

static nvmlSample_t buffered_sample(const gpu_t *gpu, nvmlSamplingType_t type, int64_t unix_ns)
{
    nvmlSample_t sample = {.timeStamp = (unsigned long long)(unix_ns / 1000)};
    const segment_t *segment = segment_at(gpu, unix_ns);
    sample.sampleValue.uiVal = (unsigned int)(type == NVML_TOTAL_POWER_SAMPLES ? segment->power_mw
                                                                               : segment->sm_clock_mhz);
    return sample;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long last_seen, nvmlValueType_t *value_type,
                                  unsigned int *count, nvmlSample_t *samples)
{
    ENTER(gpu_of(device), nvmlDeviceGetSamples);
    const gpu_t *gpu = gpu_of(device);
    int known = type == NVML_TOTAL_POWER_SAMPLES || type == NVML_PROCESSOR_CLK_SAMPLES;
    int64_t period = known ? gpu->buffer_period_ns[type == NVML_PROCESSOR_CLK_SAMPLES] : 0;
    unsigned int taken = 0, asked = *count;
    if (!period)
        return NVML_ERROR_NOT_SUPPORTED;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    *count = BUFFERED_SAMPLES;
    if (samples == NULL)
        return NVML_SUCCESS;
    int64_t newest = taken_at(now_unix_ns(), period);
    for (int age = BUFFERED_SAMPLES - 1; age >= 0 && taken < asked; age--) {
        nvmlSample_t sample = buffered_sample(gpu, type, newest - age * period);
        if (sample.timeStamp > last_seen)
            samples[taken++] = sample;
    }
    *count = taken;
    return taken ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy,
                                          nvmlViolationTime_t *time)
{
    static const int counters[] = {0, 2, 1}; /* power, thermal, sync boost */
    ENTER(gpu_of(device), nvmlDeviceGetViolationStatus);
    int64_t now = now_unix_ns();
    if (policy > NVML_PERF_POLICY_SYNC_BOOST)
        return NVML_ERROR_NOT_SUPPORTED;
    time->referenceTime = (unsigned long long)(now / 1000);
    time->violationTime = limited_ns(gpu_of(device), counters[policy], now);
    return NVML_SUCCESS;
}

/* ---- GPU instances ---------------------------------------------------------------------- */

static aside_t *aside_of(nvmlDevice_t device)
{
    return &scenario->asides[gpu_of(device) - scenario->gpus];
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ENTER(gpu_of(device), nvmlDeviceGetMaxMigDeviceCount);
    return give(count, gpu_of(device)->mig_mode ? MAX_GPUS : 0);
}

/* Of the instance in each place; places without one answer that they have none. */
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *instance)
{
    ENTER(gpu_of(device), nvmlDeviceGetMigDeviceHandleByIndex);
    if (index >= MAX_GPUS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (scenario->asides[index].mig_card != gpu_of(device) - scenario->gpus + 1)
        return NVML_ERROR_NOT_FOUND;
    *instance = (nvmlDevice_t)&scenario->gpus[index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER(gpu_of(device), nvmlDeviceGetGpuInstanceId);
    return give(id, aside_of(device)->mig_instance);
}

/* ---- processes -------------------------------------------------------------------------- */

static void add_processes(const aside_t *aside, unsigned int room, unsigned int *count,
                          nvmlProcessInfo_t *processes)
{
    for (int i = 0; i < aside->process_count; i++) {
        unsigned int instance = aside->mig_card ? (unsigned int)aside->mig_instance : UINT32_MAX;
        nvmlProcessInfo_t process = {.pid = (unsigned int)aside->process_pid[i],
                                     .usedGpuMemory = (unsigned long long)aside->process_bytes[i],
                                     .gpuInstanceId = instance,
                                     .computeInstanceId = aside->mig_card ? 0 : UINT32_MAX};
        if (*count < room && processes != NULL)
            processes[*count] = process;
        ++*count;
    }
}

/* On a card also those of its instances. */
static nvmlReturn_t give_processes(nvmlDevice_t device, unsigned int *count,
                                   nvmlProcessInfo_t *processes)
{
    unsigned int room = *count;
    *count = 0;
    add_processes(aside_of(device), room, count, processes);
    for (int i = 0; i < MAX_GPUS; i++)
        if (scenario->asides[i].mig_card == gpu_of(device) - scenario->gpus + 1)
            add_processes(&scenario->asides[i], room, count, processes);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *processes)
{
    ENTER(gpu_of(device), nvmlDeviceGetComputeRunningProcesses_v3);
    return give_processes(device, count, processes);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *processes)
{
    ENTER(gpu_of(device), nvmlDeviceGetComputeRunningProcesses_v2);
    return give_processes(device, count, processes);
}

/* ---- events and errors ------------------------------------------------------------------ */

/* One event set a process; how many XIDs of each registered GPU it has seen, or -1. */
static int64_t seen_xids[MAX_GPUS];
static int has_set;

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER(NULL, nvmlEventSetCreate);
    for (int i = 0; i < MAX_GPUS; i++)
        seen_xids[i] = -1;
    has_set = 1;
    *set = (nvmlEventSet_t)seen_xids;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    has_set = 0;
    return set == (nvmlEventSet_t)seen_xids ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ENTER(gpu_of(device), nvmlDeviceGetSupportedEventTypes);
    *types = nvmlEventTypeXidCriticalError | nvmlEventTypePState;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set)
{
    ENTER(gpu_of(device), nvmlDeviceRegisterEvents);
    if (set != (nvmlEventSet_t)seen_xids || types & ~nvmlEventTypeXidCriticalError)
        return NVML_ERROR_INVALID_ARGUMENT;
    seen_xids[gpu_of(device) - scenario->gpus] = aside_of(device)->xid_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    ENTER(NULL, nvmlEventSetWait_v2);
    if (!has_set || set != (nvmlEventSet_t)seen_xids)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < MAX_GPUS; i++) {
        const aside_t *aside = &scenario->asides[i];
        if (seen_xids[i] < 0 || seen_xids[i] >= aside->xid_count)
            continue;
        memset(data, 0, sizeof(*data));
        data->device = (nvmlDevice_t)&scenario->gpus[i];
        data->eventType = nvmlEventTypeXidCriticalError;
        data->eventData = (unsigned long long)aside->xid[seen_xids[i]++ % MOST_XIDS];
        data->gpuInstanceId = data->computeInstanceId = UINT32_MAX;
        return NVML_SUCCESS;
    }
    wait_ms(timeout_ms);
    return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, unsigned long long *count)
{
    ENTER(gpu_of(device), nvmlDeviceGetTotalEccErrors);
    int asked = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED && counter == NVML_VOLATILE_ECC;
    *count = asked ? (unsigned long long)aside_of(device)->ecc_uncorrected : 12345;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                       unsigned int *uncorrectable, unsigned int *pending,
                                       unsigned int *failed)
{
    ENTER(gpu_of(device), nvmlDeviceGetRemappedRows);
    *correctable = *uncorrectable = 3;
    *pending = (unsigned int)aside_of(device)->rows_pending;
    *failed = (unsigned int)aside_of(device)->rows_failed;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
    ENTER(gpu_of(device), nvmlDeviceGetRetiredPagesPendingStatus);
    *pending = aside_of(device)->pages_pending ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}
