/* What a scenario file holds, and what the calls of the fake driver are made of.
 *
 * The file is mapped shared, so that a test in this process or another changes it while it is in
 * use (scenario.py has the same layout). Every member is 8 bytes wide but for texts. A GPU's
 * values are a function of CLOCK_REALTIME: segments of constant values, played once (the last one
 * stays) or round and round; energy and limit counters are the exact integrals of these segments.
 */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <stdint.h>
#include <string.h>

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
enum call { CALLS(AS_ENUM) CALL_COUNT };

typedef struct {
    int64_t length_ns, sm_clock_mhz, mem_clock_mhz, power_mw, temperature_c, reasons;
    int64_t activity_percent;
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
    int64_t clock_period_ns, power_period_ns; /* values move at multiples; 0: continuously */
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

/* The fields that are no limit counters; other_field() tells which one is asked for. */
enum other_field {
    POWER_INSTANT = LIMIT_COUNTERS,
    POWER_AVERAGE,
    MODULE_POWER_INSTANT,
    MODULE_POWER_AVERAGE,
    MEMORY_TEMPERATURE,
    ENERGY,
    ACCUMULATED_FREQUENCY
};

/* ---- library.c -------------------------------------------------------------------------- */

extern scenario_t *scenario;

static inline gpu_t *gpu_of(nvmlDevice_t device) { return (gpu_t *)device; }

static inline aside_t *aside_of(nvmlDevice_t device)
{
    return &scenario->asides[gpu_of(device) - scenario->gpus];
}

/* Begin a call, of a GPU or (NULL) of none: what the scenario wants it to answer, once it does. */
nvmlReturn_t enter(gpu_t *gpu, enum call call);

#define ENTER(gpu, call)                                   \
    do {                                                   \
        nvmlReturn_t entered = enter((gpu), CALL_##call);  \
        if (entered != NVML_SUCCESS)                       \
            return entered;                                \
    } while (0)

void wait_ms(int64_t ms);
nvmlReturn_t copy_text(const char *from, char *to, unsigned int length);

static inline nvmlReturn_t give(unsigned int *to, int64_t value)
{
    *to = (unsigned int)value;
    return NVML_SUCCESS;
}

/* ---- values.c --------------------------------------------------------------------------- */

int64_t now_unix_ns(void);
const segment_t *segment_at(const gpu_t *gpu, int64_t unix_ns);
/* When a sensor of this update period took the value that it shows. */
int64_t taken_at(int64_t unix_ns, int64_t period_ns);
int64_t sm_clock_mhz(const gpu_t *gpu, int64_t unix_ns);
int64_t power_mw(const gpu_t *gpu, int64_t unix_ns);
/* The mean of the last second. */
int64_t average_power_mw(const gpu_t *gpu, int64_t unix_ns);
uint64_t energy_mj(const gpu_t *gpu, int64_t unix_ns);
uint64_t limited_ns(const gpu_t *gpu, int counter, int64_t unix_ns);

#endif
