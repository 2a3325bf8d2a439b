#define _GNU_SOURCE
#include "execute.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const char MARK[] = "CUDA on a CPU:"; /* as in on_cpu/image.py */
enum { ILLEGAL_ADDRESS = 700, SIGNAL_STACK = 64 << 10 };

static sigjmp_buf faulted;

struct library {
    void *handle;
    int file; /* open as long as the library is: dlopen takes two libraries of the same path for one */
};

library_t *execute_load(const unsigned char *image, size_t size) {
    const unsigned char *mark = memmem(image, size, MARK, strlen(MARK));
    uint64_t length;
    char path[64];
    if (!mark) return NULL;
    mark += strlen(MARK);
    memcpy(&length, mark, sizeof length);
    int file = memfd_create("kernels", MFD_CLOEXEC);
    if (file < 0 || write(file, mark + sizeof length, length) != (ssize_t)length) return NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    library_t *library = malloc(sizeof *library);
    *library = (library_t){dlopen(path, RTLD_NOW | RTLD_LOCAL), file};
    if (library->handle) return library;
    fprintf(stderr, "a kernel's library does not load: %s\n", dlerror());
    execute_unload(library);
    return NULL;
}

void execute_unload(library_t *library) {
    if (!library) return;
    if (library->handle) dlclose(library->handle);
    close(library->file);
    free(library);
}

const kernel_t *execute_find(const library_t *library, const char *name) {
    char symbol[256];
    snprintf(symbol, sizeof symbol, "cuda_on_cpu_%s", name);
    return library ? dlsym(library->handle, symbol) : NULL;
}

static void on_fault(int number) {
    (void)number;
    siglongjmp(faulted, 1); /* out of the fiber: no other one runs any more, since the error is sticky */
}

int execute_run(const kernel_t *kernel, void **arguments, const unsigned *grid, const unsigned *block, unsigned dynamic_bytes) {
    static char stack[SIGNAL_STACK]; /* a fiber's own may be what has run out */
    stack_t ours = {.ss_sp = stack, .ss_size = sizeof stack}, theirs;
    struct sigaction caught = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK}, segv, bus;
    sigaltstack(&ours, &theirs);
    sigaction(SIGSEGV, &caught, &segv);
    sigaction(SIGBUS, &caught, &bus);
    int error = sigsetjmp(faulted, 1) ? ILLEGAL_ADDRESS : kernel->run(arguments, grid, block, dynamic_bytes);
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
    sigaltstack(&theirs, NULL);
    return error;
}

void **execute_copy(const kernel_t *kernel, void **arguments) {
    size_t count = 0, bytes = 0;
    for (; kernel->sizes[count]; count++) bytes += (kernel->sizes[count] + 15) / 16 * 16;
    void **copy = malloc(count * sizeof *copy + 16 + bytes);
    char *value = (char *)(copy + count) + count % 2 * 8;
    for (size_t i = 0; i < count; i++) {
        copy[i] = memcpy(value, arguments[i], kernel->sizes[i]);
        value += (kernel->sizes[i] + 15) / 16 * 16;
    }
    return copy;
}

double execute_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}
