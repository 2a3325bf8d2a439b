/* libnvidia-ml.so.1: the calls that nvidia-ml-py makes for what autotune asks.
 *
 * The file `nvml` in the folder of the stand-in has a line for each sample of a process, of which the last one stays:
 *   MHZ REASONS PID USED   the clock, the bits of what holds it down, and another process on the GPU with the percentage
 *                          of its time that it used; 0 for none, and -1 where the driver does not say
 * Without the file the GPU is quiet. The file `mode` has the number of its compute mode, by default 0. The caller computes on it, too, under its own number; with the environment
 * variable AUTOTUNE_CUDA_HOST_PID under that one, as in a container.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { OURS_USED = 90 };

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
} process_t;

typedef struct {
    unsigned pid;
    unsigned long long stamp_us;
    unsigned sm, memory, encoder, decoder;
} use_t;

static int initialized, samples, mhz = 1980, reasons, other, used;

static void next_sample(void) {
    char path[4096];
    const char *folder = getenv("AUTOTUNE_CUDA_STAND_IN");
    snprintf(path, sizeof path, "%s/nvml", folder ? folder : "/nonexistent");
    FILE *file = fopen(path, "r");
    samples++;
    if (!file) return;
    for (int line = 0; line < samples; line++)
        if (fscanf(file, "%d %i %d %d", &mhz, &reasons, &other, &used) != 4) break;
    fclose(file);
}

static unsigned own_pid(void) {
    const char *host = getenv("AUTOTUNE_CUDA_HOST_PID");
    return host ? (unsigned)atoi(host) : (unsigned)getpid();
}

int nvmlInitWithFlags(unsigned flags) {
    initialized = !flags;
    return OK;
}

/* The GPUs that devices.csv names, as `bus, uuid, name, capability`. */
enum { MOST = 8 };
typedef struct {
    char bus[32], uuid[96], name[64];
    int major, minor;
} gpu_t;
static gpu_t gpus[MOST];

static unsigned read_gpus(void) {
    char path[4096];
    unsigned count = 0;
    const char *folder = getenv("AUTOTUNE_CUDA_STAND_IN");
    snprintf(path, sizeof path, "%s/devices.csv", folder ? folder : "/nonexistent");
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    for (gpu_t *gpu = gpus; count < MOST; gpu++, count++)
        if (fscanf(file, " %31[^,], %95[^,], %63[^,], %d.%d", gpu->bus, gpu->uuid, gpu->name, &gpu->major, &gpu->minor) != 5)
            break;
    fclose(file);
    return count;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = read_gpus();
    return initialized ? OK : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &gpus[index < MOST ? index : 0];
    return !initialized ? UNINITIALIZED : index < read_gpus() ? OK : NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = &gpus[0];
    return !initialized ? UNINITIALIZED : strncmp(uuid, "GPU-", 4) ? NOT_FOUND : OK;
}

int nvmlDeviceGetUUID(gpu_t *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->uuid);
    return OK;
}

int nvmlDeviceGetName(gpu_t *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->name);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(gpu_t *gpu, int *major, int *minor) {
    *major = gpu->major;
    *minor = gpu->minor;
    return OK;
}

typedef struct {
    char legacy_bus[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *found) {
    memset(found, 0, sizeof *found);
    snprintf(found->bus_id, sizeof found->bus_id, "%s", gpu->bus);
    return OK;
}

int nvmlDeviceGetComputeMode(gpu_t *gpu, int *mode) {
    char path[4096];
    const char *folder = getenv("AUTOTUNE_CUDA_STAND_IN");
    snprintf(path, sizeof path, "%s/mode", folder ? folder : "/nonexistent");
    FILE *file = fopen(path, "r");
    *mode = 0;
    if (file) {
        if (fscanf(file, "%d", mode) != 1) *mode = 0;
        fclose(file);
    }
    return gpu ? OK : UNINITIALIZED;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *gpu_and_memory) {
    gpu_and_memory[0] = OURS_USED;
    gpu_and_memory[1] = 0;
    return device ? OK : UNINITIALIZED;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *found) {
    unsigned room = *count;
    if (!device) return UNINITIALIZED;
    if (!room) next_sample(); /* the first of the two calls of each sample */
    *count = other ? 2 : 1;
    if (room < *count) return INSUFFICIENT_SIZE;
    memset(found, 0, *count * sizeof *found);
    found[0].pid = own_pid();
    if (other) found[1].pid = other;
    return OK;
}

int nvmlDeviceGetProcessUtilization(void *device, use_t *found, unsigned *count, unsigned long long since_us) {
    struct timeval now;
    unsigned room = *count;
    if (!device) return UNINITIALIZED;
    if (used < 0) return NOT_SUPPORTED;
    gettimeofday(&now, NULL);
    *count = other ? 2 : 1;
    if (!found || room < *count) return INSUFFICIENT_SIZE;
    memset(found, 0, *count * sizeof *found);
    for (unsigned i = 0; i < *count; i++) {
        found[i].pid = i ? (unsigned)other : own_pid();
        found[i].stamp_us = now.tv_sec * 1000000ull + now.tv_usec;
        found[i].sm = i ? used : OURS_USED;
    }
    return since_us > found[0].stamp_us ? NOT_FOUND : OK;
}

int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *found) {
    *found = mhz;
    return !device ? UNINITIALIZED : type == 1 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *found) {
    *found = reasons;
    return device ? OK : UNINITIALIZED;
}

const char *nvmlErrorString(int error) {
    (void)error;
    return "a stand-in's error";
}
