/* The calls that have a GPU's identity, limits and sensors for their answer. */
#include "fake_nvml.h"

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

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                       unsigned int *clock)
{
    const gpu_t *gpu = gpu_of(device);
    ENTER(gpu_of(device), nvmlDeviceGetMaxClockInfo);
    return give(clock, type == NVML_CLOCK_MEM ? gpu->mem_clock_max_mhz : gpu->sm_clock_max_mhz);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                            unsigned int *clock)
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

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                               nvmlTemperatureThresholds_t type,
                                               unsigned int *temperature)
{
    ENTER(gpu_of(device), nvmlDeviceGetTemperatureThreshold);
    if (type > NVML_TEMPERATURE_THRESHOLD_MEM_MAX || !gpu_of(device)->temperature_threshold_c[type])
        return NVML_ERROR_NOT_SUPPORTED;
    return give(temperature, gpu_of(device)->temperature_threshold_c[type]);
}

/* ---- what does change ------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER(gpu_of(device), nvmlDeviceGetClockInfo);
    int64_t now = now_unix_ns();
    if (type == NVML_CLOCK_MEM)
        return give(clock, segment_at(gpu_of(device), now)->mem_clock_mhz);
    return give(clock, sm_clock_mhz(gpu_of(device), now));
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                    unsigned long long *reasons)
{
    ENTER(gpu_of(device), nvmlDeviceGetCurrentClocksEventReasons);
    *reasons = (unsigned long long)segment_at(gpu_of(device), now_unix_ns())->reasons;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long *reasons)
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
