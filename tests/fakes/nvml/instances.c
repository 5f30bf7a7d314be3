/* GPU instances, and the processes on them and on whole GPUs. */
#include "fake_nvml.h"

/* ---- GPU instances ---------------------------------------------------------------------- */

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
