/* Kernels that run: images that on_cpu/ made have a library for this CPU. Any other cubin computes nothing. */
#include <stddef.h>

typedef struct {
    int (*run)(void **arguments, const unsigned *grid, const unsigned *block, unsigned dynamic_bytes);
    const size_t *sizes; /* of the arguments in bytes; 0 after the last one */
} kernel_t;

typedef struct library library_t;

library_t *execute_load(const unsigned char *image, size_t size); /* the library in an image; null if there is none */
void execute_unload(library_t *);
const kernel_t *execute_find(const library_t *, const char *name);
/* Runs a kernel; returns the driver's error, which is that of an illegal address where it touched what is not mapped. */
int execute_run(const kernel_t *, void **arguments, const unsigned *grid, const unsigned *block, unsigned dynamic_bytes);
void **execute_copy(const kernel_t *, void **arguments); /* the arguments with their values, in one piece of memory */
double execute_now_ms(void);
