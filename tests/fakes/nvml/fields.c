/* Field values, the samples that the driver keeps itself, and the old limit counters. */
#include "fake_nvml.h"

#define RAMP_RATE_MW_PER_S 54321

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
    value->timestamp = now / 1000;
    value->nvmlReturn = NVML_SUCCESS;
    if (counter >= 0) {
        value->nvmlReturn = (nvmlReturn_t)gpu->field_code[counter];
        answer_counter(value, limited_ns(gpu, counter, now));
    } else if (other >= 0) {
        answer_other(gpu, value, other, now);
    } else if (value->fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) {
        answer_unsigned(value, aside_of((nvmlDevice_t)gpu)->recovery_action);
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

/* ---- buffered samples, the old limit counters ------------------------------------------- */

static nvmlSample_t buffered_sample(const gpu_t *gpu, nvmlSamplingType_t type, int64_t unix_ns)
{
    nvmlSample_t sample = {.timeStamp = (unsigned long long)(unix_ns / 1000)};
    const segment_t *segment = segment_at(gpu, unix_ns);
    int is_power = type == NVML_TOTAL_POWER_SAMPLES;
    sample.sampleValue.uiVal
        = (unsigned int)(is_power ? segment->power_mw : segment->sm_clock_mhz);
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
