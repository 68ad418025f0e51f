/* A stand-in for libnvidia-ml.so.1: the functions that the sidecar calls, with two cards.
 *
 * Card 0 answers everything; card 1 is like a MIG slice: no utilisation and no power. FAKE_NVML_DRIVER=none makes
 * initialisation fail as it does without the kernel driver.
 */
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9 };

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};
struct memory {
    unsigned long long total, free, used;
};
struct utilization {
    unsigned gpu, memory;
};

static char cards[2];

static int index_of(const void *device)
{
    return device == &cards[0] ? 0 : device == &cards[1] ? 1 : -1;
}

int nvmlInit_v2(void)
{
    return getenv("FAKE_NVML_DRIVER") ? DRIVER_NOT_LOADED : SUCCESS;
}

const char *nvmlErrorString(int status)
{
    return status == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (index > 1)
        return INVALID_ARGUMENT;
    *device = &cards[index];
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info)
{
    int index = index_of(device);
    if (index < 0)
        return INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    strcpy(info->bus_id, index == 0 ? "00000000:3B:00.0" : "00000001:AF:00.0");
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length)
{
    if (index_of(device) < 0)
        return INVALID_ARGUMENT;
    strncpy(name, "NVIDIA H200", length);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    if (index_of(device) < 0)
        return INVALID_ARGUMENT;
    memory->total = 150ULL << 30;
    memory->used = 5ULL << 30;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *utilization)
{
    if (index_of(device) != 0)
        return NOT_SUPPORTED;
    utilization->gpu = 0;
    utilization->memory = 12;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    if (index_of(device) != 0)
        return NOT_SUPPORTED;
    *milliwatts = 412500;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    if (index_of(device) < 0 || sensor != 0)
        return INVALID_ARGUMENT;
    *celsius = 44;
    return SUCCESS;
}
