/* libcudart.so.13: the calls that TVM makes to the CUDA runtime. */
#define _GNU_SOURCE
#include "stand_in.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, CAPTURE_UNSUPPORTED = 900 };
enum { MAJOR = 75, MINOR = 76, WARP = 10, THREADS = 1, SHARED = 8, PROCESSORS = 16, REGISTERS = 12, CLOCK = 13, L2 = 38 };
enum { TOTAL_MEMORY_AT = 288, MEMORY = 1 << 30 };
/* A runtime of that version writes more than a kilobyte; its caller has room for it. */

static _Thread_local int current;

typedef struct {
    double ms;
} event_t;

int cudaGetDeviceCount(int *count) {
    *count = stand_in_count();
    return stand_in_error() ? stand_in_error() : *count ? 0 : NO_DEVICE;
}

int cudaSetDevice(int device) {
    if (!stand_in_device(device)) return INVALID_DEVICE;
    current = device;
    return stand_in_error();
}

int cudaGetDevice(int *device) {
    *device = current;
    return stand_in_error();
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    const device_t *found = stand_in_device(device);
    if (!found) return INVALID_DEVICE;
    switch (attribute) {
    case MAJOR: *value = found->major; break;
    case MINOR: *value = found->minor; break;
    case WARP: *value = 32; break;
    case THREADS: *value = 1024; break;
    case SHARED: *value = 49152; break;
    case PROCESSORS: *value = 4; break;
    case REGISTERS: *value = 65536; break;
    case CLOCK: *value = 1000000; break;
    case L2: *value = 1 << 20; break;
    default: *value = 0;
    }
    return stand_in_error();
}

int cudaGetDeviceProperties(void *properties, int device) {
    const device_t *found = stand_in_device(device);
    size_t memory = MEMORY;
    if (!found) return INVALID_DEVICE;
    memset(properties, 0, 512);
    snprintf(properties, 256, "%s", found->name);
    memcpy((char *)properties + TOTAL_MEMORY_AT, &memory, sizeof memory);
    return stand_in_error();
}

int cudaMemGetInfo(size_t *available, size_t *total) {
    *total = MEMORY;
    *available = stand_in_full() ? 0 : MEMORY;
    return stand_in_error();
}

/* An allocation is a mapping of its own: the page before it and the page after it cannot be touched. It ends as near to
 * the latter as its alignment allows. The first of them keeps the length of the mapping. */
enum { PAGE = 4096, ALIGNMENT = 256, NEVER_WRITTEN = 0xff };

int cudaMalloc(void **memory, size_t size) {
    if (stand_in_error()) return stand_in_error();
    if (stand_in_breaks_capture()) return CAPTURE_UNSUPPORTED;
    if (stand_in_full()) return OUT_OF_MEMORY;
    size_t room = (size + !size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, pages = (room + PAGE - 1) / PAGE * PAGE;
    char *mapped = mmap(NULL, pages + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return OUT_OF_MEMORY;
    memcpy(mapped, &pages, sizeof pages);
    mprotect(mapped, PAGE, PROT_READ);
    mprotect(mapped + PAGE + pages, PAGE, PROT_NONE);
    *memory = mapped + PAGE + pages - room;
    if (getenv("AUTOTUNE_CUDA_COMPUTES")) memset(*memory, NEVER_WRITTEN, room);
    stand_in_allocated(*memory, size);
    return 0;
}

int cudaFree(void *memory) {
    if (!memory) return stand_in_error();
    /* The first page of the mapping is the one before that with the first byte. */
    char *first = (char *)((size_t)memory / PAGE * PAGE) - PAGE;
    size_t pages;
    memcpy(&pages, first, sizeof pages);
    stand_in_allocated(memory, 0);
    munmap(first, pages + 2 * PAGE);
    return stand_in_error();
}

int cudaMallocHost(void **memory, size_t size) { return cudaMalloc(memory, size); }
int cudaFreeHost(void *memory) { return cudaFree(memory); }

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    (void)kind, (void)stream;
    stand_in_finish();
    if (stand_in_error()) return stand_in_error();
    return stand_in_copy(to, from, size);
}

int cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size, void *stream) {
    (void)there, (void)here;
    return cudaMemcpyAsync(to, from, size, 0, stream);
}

int cudaEventCreate(void **event) {
    *event = calloc(1, sizeof(event_t));
    return stand_in_error();
}

int cudaEventRecord(void *event, void *stream) {
    (void)stream;
    ((event_t *)event)->ms = stand_in_clock_ms();
    return stand_in_error();
}

int cudaEventElapsedTime(float *ms, void *from, void *to) {
    *ms = (float)(((event_t *)to)->ms - ((event_t *)from)->ms);
    return stand_in_error();
}

int cudaEventSynchronize(void *event) {
    (void)event;
    if (stand_in_breaks_capture()) return CAPTURE_UNSUPPORTED;
    stand_in_finish();
    return stand_in_error();
}

int cudaEventDestroy(void *event) {
    free(event);
    return stand_in_error();
}

int cudaStreamSynchronize(void *stream) {
    (void)stream;
    if (stand_in_breaks_capture()) return CAPTURE_UNSUPPORTED;
    stand_in_finish();
    return stand_in_error();
}

int cudaStreamCreate(void **stream) {
    *stream = malloc(1); /* all that is asked of it is to differ from others */
    return stand_in_error();
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    (void)flags;
    return cudaStreamCreate(stream);
}

int cudaStreamDestroy(void *stream) {
    free(stream);
    return stand_in_error();
}

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)stream, (void)event, (void)flags;
    return stand_in_error();
}

int cudaGetLastError(void) { return stand_in_error(); }
int cudaPeekAtLastError(void) { return stand_in_error(); }

const char *cudaGetErrorName(int error) {
    switch (error) {
    case 0: return "cudaSuccess";
    case OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
    case 46: return "cudaErrorDevicesUnavailable";
    case 700: return "cudaErrorIllegalAddress";
    default: return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(int error) {
    switch (error) {
    case 0: return "no error";
    case OUT_OF_MEMORY: return "out of memory";
    case 46: return "CUDA-capable device(s) is/are busy or unavailable";
    case 700: return "an illegal memory access was encountered";
    default: return "unknown error";
    }
}

int cudaStreamBeginCapture(void *stream, int mode) {
    (void)mode;
    return stand_in_begin_capture(stream);
}

int cudaStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    return stand_in_end_capture((graph_t **)graph);
}

int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) {
    (void)flags;
    *exec = stand_in_share_graph(graph);
    return stand_in_error();
}

int cudaGraphLaunch(void *exec, void *stream) {
    (void)stream;
    return stand_in_launch_graph(exec);
}

int cudaGraphDestroy(void *graph) {
    stand_in_drop_graph(graph);
    return stand_in_error();
}

int cudaGraphExecDestroy(void *exec) {
    stand_in_drop_graph(exec);
    return stand_in_error();
}
