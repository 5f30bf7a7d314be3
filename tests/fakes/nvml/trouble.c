/* What tells that something is wrong with a GPU: events, errors, memory to be replaced. */
#include "fake_nvml.h"

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
