/* libcuda.so.1: the calls that TVM makes to the driver, and the state of the stand-in. */
#define _GNU_SOURCE
#include "execute.h"
#include "stand_in.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, LOST = 46, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_IMPLICIT = 906 };
enum { MOST_DEVICES = 8, COLD_S = 5 };
static const double FAR_LAUNCH_MS = 0.05, FAR_KERNEL_MS = 0.001;
enum { MAX_DYNAMIC_SHARED = 8, USUAL_SHARED = 48 << 10, MOST_SHARED = 227 << 10, MOST_THREADS = 1024 };

typedef struct {
    uint32_t hash;
    size_t size;
    unsigned char *image;
    library_t *library; /* of kernels that run; null if they compute nothing */
} module_t;

typedef struct allocation {
    void *memory;
    size_t size;
    struct allocation *next;
} allocation_t;

typedef struct {
    module_t *module;
    int is_probe;
    unsigned shared; /* bytes that a launch may give it */
    const kernel_t *kernel;
    char *name;
} function_t;

typedef struct {
    unsigned grid[3], block[3], shared; /* what CUlaunchConfig begins with */
    void *stream;
} launch_t;

/* What a graph repeats: a launch, or a copy of memory. */
typedef struct {
    function_t *function;
    launch_t launch;
    void **arguments;
    void *to;
    const void *from;
    size_t size;
} node_t;

enum { MOST_NODES = 4096 };
struct graph {
    int owners, kernels, count;
    node_t nodes[MOST_NODES];
};

static int sticky, hangs, broken, warm;
static allocation_t *allocations;
static graph_t *capture; /* the graph that is recorded now, if any, and the stream that it is recorded from */
static void *captured_stream;
static void carry_out(const function_t *, const launch_t *, void **arguments);
static double clock_ms;

static char *path_of(const char *name, char *buffer) {
    const char *folder = getenv("AUTOTUNE_CUDA_STAND_IN");
    snprintf(buffer, 4096, "%s/%s", folder ? folder : "/nonexistent", name);
    return buffer;
}

static int fault_is(const char *kind) {
    char path[4096], word[32] = "";
    FILE *file = fopen(path_of("fault", path), "r");
    if (!file) return 0;
    int read = fscanf(file, "%31s", word);
    fclose(file);
    return read == 1 && !strcmp(word, kind);
}

static int all_devices(device_t *found) {
    char path[4096];
    int count = 0;
    FILE *file = fopen(path_of("devices.csv", path), "r");
    if (!file) return 0;
    while (count < MOST_DEVICES) {
        device_t *it = &found[count];
        if (fscanf(file, " %31[^,], %63[^,], %63[^,], %d.%d", it->bus, it->uuid, it->name, &it->major, &it->minor) != 5) break;
        count++;
    }
    fclose(file);
    return count;
}

static int visible_devices(device_t *visible) {
    device_t all[MOST_DEVICES];
    int count = all_devices(all), shown = 0;
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) {
        memcpy(visible, all, sizeof all);
        return count;
    }
    char words[1024], *rest = words, *word;
    snprintf(words, sizeof words, "%s", wanted);
    while ((word = strsep(&rest, ","))) {
        int chosen = -1;
        for (int i = 0; i < count; i++)
            if (!strncmp(word, "GPU-", 4) ? !strncmp(all[i].uuid, word, strlen(word)) : *word && atoi(word) == i) chosen = i;
        if (chosen < 0) break; /* what comes after an unknown device is not shown either */
        visible[shown++] = all[chosen];
    }
    return shown;
}

int stand_in_count(void) {
    device_t visible[MOST_DEVICES];
    return visible_devices(visible);
}

const device_t *stand_in_device(int index) {
    static device_t visible[MOST_DEVICES];
    return index >= 0 && index < visible_devices(visible) ? &visible[index] : NULL;
}

int stand_in_error(void) { return fault_is("lost") ? LOST : sticky; }
int stand_in_full(void) { return fault_is("memory"); }
double stand_in_clock_ms(void) { return clock_ms; }

void stand_in_finish(void) {
    while (hangs) pause();
}

static int is_victim(const module_t *module) {
    char path[4096], text[16] = "", own[16];
    snprintf(own, sizeof own, "%08x", module->hash);
    int file = open(path_of("victim", path), O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (file >= 0) {
        int written = write(file, own, 8) == 8;
        close(file);
        return written;
    }
    file = open(path, O_RDONLY);
    if (file < 0 || read(file, text, 8) < 0) return 0;
    close(file);
    return !strcmp(text, own);
}

static size_t image_size(const unsigned char *image) {
    uint64_t table;
    uint16_t size, count;
    memcpy(&table, image + 40, 8);
    memcpy(&size, image + 58, 2);
    memcpy(&count, image + 60, 2);
    return table + (size_t)size * count;
}

int cuInit(unsigned flags) { return flags ? 1 : stand_in_error(); }

int cuDeviceGetName(char *name, int length, int device) {
    const device_t *found = stand_in_device(device);
    if (!found) return 101;
    snprintf(name, length, "%s", found->name);
    return OK;
}

int cuModuleLoadData(void **module, const void *data) {
    const unsigned char *image = data;
    const device_t *device = stand_in_device(0);
    char path[4096];
    uint32_t flags;
    if (stand_in_error()) return stand_in_error();
    if (fault_is("cold") && !warm) sleep(COLD_S);
    warm = 1;
    if (!device || memcmp(image, "\177ELF", 4) || image[18] != 190) return INVALID_IMAGE; /* source, say */
    memcpy(&flags, image + 48, 4);
    int arch = image[8] <= 7 ? flags & 0xff : flags >> 8 & 0xff, own = device->major * 10 + device->minor;
    if (arch / 10 != device->major || arch > own) return NO_BINARY_FOR_GPU;
    module_t *made = calloc(1, sizeof *made);
    made->size = image_size(image);
    made->image = malloc(made->size);
    memcpy(made->image, image, made->size);
    made->hash = 2166136261u;
    made->library = execute_load(image, made->size);
    for (size_t i = 0; i < made->size; i++) made->hash = (made->hash ^ image[i]) * 16777619u;
    FILE *log = fopen(path_of("loads", path), "a");
    if (log) {
        fprintf(log, "%s sm_%d %d\n", device->uuid, arch, (int)getpid());
        fclose(log);
    }
    *module = made;
    return OK;
}

int cuModuleUnload(void *module) {
    execute_unload(((module_t *)module)->library);
    free(((module_t *)module)->image);
    free(module);
    return stand_in_error();
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    module_t *owner = module;
    if (stand_in_error()) return stand_in_error();
    if (!memmem(owner->image, owner->size, name, strlen(name) + 1)) return NOT_FOUND;
    function_t *made = calloc(1, sizeof *made);
    made->module = owner;
    made->is_probe = !strncmp(name, "autotune_probe", 14);
    made->shared = USUAL_SHARED;
    made->name = strdup(name);
    made->kernel = execute_find(owner->library, name);
    *function = made;
    return OK;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    if (attribute == MAX_DYNAMIC_SHARED) {
        if (value < 0 || value > MOST_SHARED) return INVALID_VALUE;
        ((function_t *)function)->shared = value;
    }
    return stand_in_error();
}

int stand_in_begin_capture(void *stream) {
    if (capture || !stream) return CAPTURE_UNSUPPORTED;
    captured_stream = stream;
    capture = calloc(1, sizeof *capture);
    broken = 0;
    return stand_in_error();
}

int stand_in_end_capture(graph_t **graph) {
    if (!capture) return CAPTURE_UNSUPPORTED;
    *graph = capture;
    capture->owners = 1;
    capture = NULL;
    return broken ? CAPTURE_INVALIDATED : stand_in_error();
}

graph_t *stand_in_share_graph(graph_t *graph) {
    graph->owners++;
    return graph;
}

void stand_in_drop_graph(graph_t *graph) {
    if (--graph->owners) return;
    for (int i = 0; i < graph->count; i++) free(graph->nodes[i].arguments);
    free(graph);
}

/* Adds a node to the graph that is recorded; null if there is none, or no room. */
static node_t *next_node(void) {
    if (!capture) return NULL;
    if (capture->count == MOST_NODES) {
        broken = 1;
        return NULL;
    }
    return &capture->nodes[capture->count++];
}

int stand_in_copy(void *to, const void *from, size_t size) {
    node_t *node = next_node();
    if (capture && !node) return CAPTURE_INVALIDATED;
    if (node) *node = (node_t){.to = to, .from = from, .size = size};
    else memcpy(to, from, size);
    return OK;
}

int stand_in_breaks_capture(void) {
    if (capture) broken = 1;
    return capture != NULL;
}

int stand_in_launch_graph(const graph_t *graph) {
    char path[4096];
    if (stand_in_error()) return stand_in_error();
    if (fault_is("far")) clock_ms += FAR_LAUNCH_MS;
    FILE *log = fopen(path_of("graphs", path), "a");
    if (log) {
        fprintf(log, "%d %d\n", (int)getpid(), graph->kernels);
        fclose(log);
    }
    for (int i = 0; i < graph->count; i++) {
        const node_t *node = &graph->nodes[i];
        if (node->function) carry_out(node->function, &node->launch, node->arguments);
        else memcpy(node->to, node->from, node->size);
    }
    return OK;
}

void stand_in_allocated(void *memory, size_t size) {
    if (size) {
        allocation_t *made = malloc(sizeof *made);
        *made = (allocation_t){memory, size, allocations};
        allocations = made;
        return;
    }
    for (allocation_t **it = &allocations; *it; it = &(*it)->next) {
        if ((*it)->memory != memory) continue;
        allocation_t *gone = *it;
        *it = gone->next;
        free(gone);
        return;
    }
}

static void log_argument(FILE *log, const void *value, size_t size) {
    for (allocation_t *it = allocations; it && size == sizeof it->memory; it = it->next)
        if (!memcmp(value, &it->memory, size)) {
            fprintf(log, " *%zu", it->size);
            return;
        }
    fputc(' ', log);
    for (size_t i = 0; i < size; i++) fprintf(log, "%02x", ((const unsigned char *)value)[i]);
}

static void log_launch(const function_t *function, const launch_t *launch, void **arguments) {
    char path[4096];
    FILE *log = fopen(path_of("launches", path), "r+");
    if (!log) return;
    fseek(log, 0, SEEK_END);
    const unsigned *grid = launch->grid, *block = launch->block;
    fprintf(log, "%s %u %u %u %u %u %u %u", function->name, grid[0], grid[1], grid[2], block[0], block[1], block[2], launch->shared);
    for (size_t i = 0; function->kernel->sizes[i]; i++) log_argument(log, arguments[i], function->kernel->sizes[i]);
    fputc('\n', log);
    fclose(log);
}

/* What goes wrong with a kernel that has run, if something is to. */
static void go_wrong(const function_t *function) {
    int illegal = fault_is("illegal"), hang = fault_is("hang"), slow = fault_is("slow");
    if (!(illegal || hang || slow) || function->is_probe || !is_victim(function->module)) return;
    if (illegal) sticky = ILLEGAL_ADDRESS; /* noticed by the next call, as launches are asynchronous */
    if (hang) hangs = 1;
    if (slow) {
        clock_ms += 20;
        usleep(20000);
    }
}

/* Runs a kernel and lets its time pass: what it took, or something made up. What failed is noticed by the next call. */
static void carry_out(const function_t *function, const launch_t *launch, void **arguments) {
    double begun = execute_now_ms(), made_up = 0.004 + function->module->hash % 64 / 1000.0;
    if (function->kernel) {
        log_launch(function, launch, arguments);
        if (!sticky) sticky = execute_run(function->kernel, arguments, launch->grid, launch->block, launch->shared);
        made_up = execute_now_ms() - begun;
    }
    clock_ms += fault_is("far") ? FAR_KERNEL_MS : made_up;
    go_wrong(function);
}

int cuLaunchKernelEx(const void *config, void *function, void **arguments, void **extra) {
    function_t *called = function;
    const launch_t *launch = config;
    (void)extra;
    if (stand_in_error()) return stand_in_error();
    if (launch->shared > called->shared || launch->block[0] * launch->block[1] * launch->block[2] > MOST_THREADS) return INVALID_VALUE;
    if (!capture) {
        if (fault_is("far")) clock_ms += FAR_LAUNCH_MS;
        carry_out(called, launch, arguments);
        return OK;
    }
    if (launch->stream != captured_stream) {
        broken = 1;
        return CAPTURE_IMPLICIT;
    }
    node_t *node = next_node();
    if (!node) return CAPTURE_INVALIDATED;
    *node = (node_t){.function = called, .launch = *launch};
    if (called->kernel) node->arguments = execute_copy(called->kernel, arguments);
    capture->kernels++;
    return OK;
}

int cuGetErrorName(int error, const char **name) {
    *name = error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : error == LOST ? "CUDA_ERROR_DEVICE_UNAVAILABLE" : "CUDA_ERROR";
    return OK;
}

int cuGetErrorString(int error, const char **text) {
    static char words[64];
    snprintf(words, sizeof words, "stand-in error %d", error);
    *text = words;
    return OK;
}

int cuTensorMapEncodeTiled(void) { return 801; }
