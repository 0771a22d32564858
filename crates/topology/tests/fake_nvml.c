/* Functions of NVML with fixed answers: two GPUs, joined by two links, the second of them divided. */

#include <string.h>

typedef struct device { int number; } *device;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_sub_system_id;
    char bus_id[32];
} pci;
typedef struct { unsigned long long total, free, used; } memory;

enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static struct device gpus[] = {{0}, {1}}, instances[] = {{2}, {3}};
static int started;

int nvmlInit_v2(void) { started = 1; return SUCCESS; }
int nvmlShutdown(void) { started = 0; return SUCCESS; }

static int write(char *to, unsigned bytes, const char *text) {
    if (!started || strlen(text) >= bytes) return INVALID_ARGUMENT;
    strcpy(to, text);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *to, unsigned bytes) { return write(to, bytes, "570.1"); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) {
    if (index > 1) return INVALID_ARGUMENT;
    *found = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(device of, char *to, unsigned bytes) {
    static const char *names[] = {"GPU-a", "GPU-b", "MIG-a", "MIG-b"};
    return write(to, bytes, names[of->number]);
}

int nvmlDeviceGetName(device of, char *to, unsigned bytes) {
    return write(to, bytes, of->number < 2 ? "Fake A100" : "Fake A100 MIG 1g.10gb");
}

static int place(pci *to, const char *bus_id) {
    memset(to, 0xff, sizeof *to);
    to->pci_device_id = 0x20b010de;
    strcpy(to->bus_id, bus_id);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(device of, pci *to) {
    return place(to, of->number ? "00000000:0F:00.0" : "00000000:07:00.0");
}

int nvmlDeviceGetMemoryInfo(device of, memory *to) {
    to->total = (of->number < 2 ? 80ull : 10ull) << 30;
    to->free = to->used = 1;
    return SUCCESS;
}

int nvmlDeviceGetCpuAffinity(device of, unsigned words, unsigned long *mask) {
    if (words != 128) return INVALID_ARGUMENT;
    mask[0] = 1;
    mask[1] = 2;
    return SUCCESS;
}

int nvmlDeviceGetMemoryAffinity(device of, unsigned words, unsigned long *mask, unsigned scope) {
    if (words != 128 || scope) return INVALID_ARGUMENT;
    if (of->number) return NOT_SUPPORTED;
    mask[0] = 2;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device of, unsigned *current, unsigned *pending) {
    if (!of->number) return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device of, unsigned *count) { *count = 4; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(device of, unsigned index, device *found) {
    if (index != 1 && index != 3) return NOT_FOUND;
    *found = &instances[index / 2];
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(device of, unsigned link, unsigned *active) {
    if (link >= 12) return INVALID_ARGUMENT;
    *active = link < 2;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkVersion(device of, unsigned link, unsigned *version) {
    *version = 5;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device of, unsigned link, pci *to) {
    return place(to, of->number ? "00000000:07:00.0" : "00000000:0F:00.0");
}

int nvmlDeviceGetTopologyCommonAncestor(device a, device b, unsigned *level) {
    *level = 20;
    return a == b ? INVALID_ARGUMENT : SUCCESS;
}
