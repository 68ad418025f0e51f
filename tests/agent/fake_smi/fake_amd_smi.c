/* A stand-in for libamd_smi.so: the part of its interface that pyrsmi 1.1.0 calls.
 *
 * The file named by FAKE_SMI_CARDS has one card a line and is read again at every call:
 *     DOMAIN BUS DEVICE FUNCTION  BUSY MEMORY_BUSY  VRAM_USED VRAM_TOTAL  CURRENT_W AVERAGE_W  NAME...
 * The first four are hexadecimal. A figure of -1 answers as AMD SMI does on cards that lack it: all bits set in a
 * structure, NOT_SUPPORTED for memory. A handle is the address of a slot; anything else is INVAL, as when a caller
 * cuts it to 32 bits. FAKE_SMI_HANG=1 makes reading activity hang.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVAL = 1, NOT_SUPPORTED = 2, MOST_CARDS = 32 };

struct card {
    unsigned domain, bus, device, function;
    long long busy, memory_busy, vram_used, vram_total, current_watts, average_watts;
    char name[200];
};

static char slots[MOST_CARDS];

static unsigned load(struct card *cards)
{
    const char *path = getenv("FAKE_SMI_CARDS");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned count = 0;
    if (file == NULL)
        return 0;
    while (count < MOST_CARDS) {
        struct card *c = &cards[count];
        if (fscanf(file, "%x %x %x %x %lld %lld %lld %lld %lld %lld %199[^\n]", &c->domain, &c->bus, &c->device,
                   &c->function, &c->busy, &c->memory_busy, &c->vram_used, &c->vram_total, &c->current_watts,
                   &c->average_watts, c->name) != 11)
            break;
        count++;
    }
    fclose(file);
    return count;
}

static int find(const void *handle, struct card *card)
{
    struct card cards[MOST_CARDS];
    unsigned count = load(cards);
    for (unsigned i = 0; i < count; i++) {
        if (handle == &slots[i]) {
            *card = cards[i];
            return SUCCESS;
        }
    }
    return INVAL;
}

int amdsmi_init(uint64_t flags)
{
    (void)flags;
    return SUCCESS;
}

int amdsmi_shut_down(void)
{
    return SUCCESS;
}

int amdsmi_status_code_to_string(int status, const char **text)
{
    *text = status == INVAL ? "invalid parameters" : "other";
    return SUCCESS;
}

int amdsmi_get_socket_handles(uint32_t *count, void **sockets)
{
    struct card cards[MOST_CARDS];
    uint32_t have = load(cards);
    for (uint32_t i = 0; sockets != NULL && i < have && i < *count; i++)
        sockets[i] = &slots[i];
    *count = have;
    return SUCCESS;
}

/* One processor a socket; both have the same handle here. */
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **processors)
{
    struct card card;
    int status = find(socket, &card);
    if (status != SUCCESS)
        return status;
    if (processors != NULL)
        processors[0] = socket;
    *count = 1;
    return SUCCESS;
}

/* Called with an argument too few this would write through a stale register; here it only tells on the caller. */
int amdsmi_get_processor_handles_by_type(void *socket, int type, void **processors, uint32_t *count)
{
    (void)socket, (void)type, (void)processors, (void)count;
    abort();
}

struct engine_usage {
    uint32_t gfx, umc, mm, reserved[13];
};

int amdsmi_get_gpu_activity(void *processor, struct engine_usage *usage)
{
    struct card card;
    int status = find(processor, &card);
    if (status != SUCCESS)
        return status;
    while (getenv("FAKE_SMI_HANG") != NULL)
        sleep(1);
    memset(usage, 0, sizeof *usage);
    usage->gfx = card.busy < 0 ? 0xFFFF : (uint32_t)card.busy;
    usage->umc = card.memory_busy < 0 ? 0xFFFF : (uint32_t)card.memory_busy;
    usage->mm = 0xFFFF;
    return SUCCESS;
}

static int answer(long long value, uint64_t *out)
{
    if (value < 0)
        return NOT_SUPPORTED;
    *out = (uint64_t)value;
    return SUCCESS;
}

int amdsmi_get_gpu_memory_usage(void *processor, int type, uint64_t *out)
{
    struct card card;
    int status = find(processor, &card);
    if (status != SUCCESS)
        return status;
    return type == 0 ? answer(card.vram_used, out) : NOT_SUPPORTED;
}

int amdsmi_get_gpu_memory_total(void *processor, int type, uint64_t *out)
{
    struct card card;
    int status = find(processor, &card);
    if (status != SUCCESS)
        return status;
    return type == 0 ? answer(card.vram_total, out) : NOT_SUPPORTED;
}

struct power_info {
    uint64_t socket;
    uint32_t current, average;
    uint64_t gfx_voltage, soc_voltage, mem_voltage;
    uint32_t limit;
    uint64_t reserved[18];
};

int amdsmi_get_power_info(void *processor, struct power_info *info)
{
    struct card card;
    int status = find(processor, &card);
    if (status != SUCCESS)
        return status;
    memset(info, 0, sizeof *info);
    info->current = card.current_watts < 0 ? 0xFFFF : (uint32_t)card.current_watts;
    info->average = card.average_watts < 0 ? 0xFFFF : (uint32_t)card.average_watts;
    return SUCCESS;
}

struct asic_info {
    char market_name[256];
    uint32_t vendor_id;
    char vendor_name[256];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[256];
    uint32_t oam_id, compute_units;
    uint64_t graphics_version;
    uint32_t subsystem_id, reserved[21];
};

int amdsmi_get_gpu_asic_info(void *processor, struct asic_info *info)
{
    struct card card;
    int status = find(processor, &card);
    if (status != SUCCESS)
        return status;
    memset(info, 0, sizeof *info);
    memcpy(info->market_name, card.name, strlen(card.name));
    return SUCCESS;
}

/* amdsmi_bdf_t: function 3 bits, device 5, bus 8, domain 48. */
int amdsmi_get_gpu_device_bdf(void *processor, uint64_t *bdf)
{
    struct card card;
    int status = find(processor, &card);
    if (status != SUCCESS)
        return status;
    *bdf = (uint64_t)card.domain << 16 | card.bus << 8 | card.device << 3 | card.function;
    return SUCCESS;
}
