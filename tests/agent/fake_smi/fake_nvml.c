/* A stand-in for libnvidia-ml.so.1: the functions that the sidecar calls, with two cards.
 *
 * Card 0 answers everything; card 1 is like a MIG slice: no utilisation and no power. FAKE_NVML_DRIVER=none makes
 * initialisation fail as it does without the kernel driver. Card 0 is at half its lanes, at its power limit and slowed by
 * an external brake, and has had ECC errors; card 1 has ECC off. FAKE_NVML_LOST=start has card 0 refuse to be opened;
 * with a file's name, it answers nothing more once that file is there. While the file FAKE_NVML_HANGS is there, whoever
 * asks card 0 for its power waits. FAKE_NVML_CARDS=1 leaves out card 1.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

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
    const char *lost = getenv("FAKE_NVML_LOST");
    if (device == &cards[0])
        return lost && access(lost, F_OK) == 0 ? -1 : 0;
    return device == &cards[1] ? 1 : -1;
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
    *count = getenv("FAKE_NVML_CARDS") ? 1 : 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    const char *lost = getenv("FAKE_NVML_LOST");
    if (index > 1)
        return INVALID_ARGUMENT;
    if (index == 0 && lost && strcmp(lost, "start") == 0)
        return GPU_IS_LOST;
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
    const char *hangs = getenv("FAKE_NVML_HANGS");
    if (index_of(device) != 0)
        return NOT_SUPPORTED;
    while (hangs && access(hangs, F_OK) == 0)
        usleep(10000);
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

/* Graphics, SM, memory and video clocks, in MHz. */
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *clock)
{
    static const unsigned clocks[] = {1980, 1965, 3201, 1545};
    if (index_of(device) < 0 || type < 0 || type > 3)
        return INVALID_ARGUMENT;
    *clock = clocks[type];
    return SUCCESS;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width)
{
    int index = index_of(device);
    if (index < 0)
        return INVALID_ARGUMENT;
    *width = index == 0 ? 8 : 0xFFFF;
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *width)
{
    if (index_of(device) < 0)
        return INVALID_ARGUMENT;
    *width = 16;
    return SUCCESS;
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *generation)
{
    int index = index_of(device);
    if (index < 0)
        return INVALID_ARGUMENT;
    *generation = index == 0 ? 4 : 99;
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *generation)
{
    if (index_of(device) < 0)
        return INVALID_ARGUMENT;
    *generation = 5;
    return SUCCESS;
}

int nvmlDeviceGetPcieReplayCounter(void *device, unsigned *count)
{
    if (index_of(device) < 0)
        return INVALID_ARGUMENT;
    *count = 12;
    return SUCCESS;
}

/* Corrected (0) or uncorrected (1) errors, since the driver's start (0) or the card's first day (1). */
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count)
{
    if (index_of(device) != 0)
        return NOT_SUPPORTED;
    if (type < 0 || type > 1 || counter < 0 || counter > 1)
        return INVALID_ARGUMENT;
    *count = (type == 0 ? 5 : 2) + (counter == 1 ? 1000 : 0);
    return SUCCESS;
}

/* SwPowerCap, HwSlowdown, HwPowerBrakeSlowdown. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
    if (index_of(device) != 0)
        return NOT_SUPPORTED;
    *reasons = 0x4 | 0x8 | 0x80;
    return SUCCESS;
}
