/* One block of threads on one CPU: each thread of CUDA is a fiber, which gives way where it has to wait for others.
 *
 * Kernels see these names through device.h. block.cc is linked into every kernel's library.
 */
#pragma once
#include <cstddef>
#include <cstdint>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

#define SHARED_SECTION "cuda_shared"  // of the library: the variables that a kernel declares as __shared__

namespace cuda_on_cpu {

constexpr unsigned WARP = 32;

/* What a launch returns: the driver's numbers. */
enum Result { FINE = 0, LAUNCH_FAILED = 719 };

/* Waits until every thread of the block that has not ended is here. */
void wait_for_block();

/* Waits until all lanes of the warp are here; the last one calls `act` once for all of them.
 *
 * own:   what this lane brings along and takes away
 * kind:  what it takes part in; a launch fails if lanes of a warp meet for different things
 * act:   is given what each lane brought, by its number in the warp; null for a lane that does not exist
 */
void meet(void *own, const void *kind, void (*act)(void **lanes));

/* Makes the launch that runs fail, with a line on standard error. */
void fail(const char *problem);

unsigned lane();
unsigned lanes_of_warp();  // a bit for each thread of the warp that has not ended

/* The block's dynamic shared memory, of exactly the size that the launch gives. */
void *dynamic_shared();

/* Addresses of shared memory as PTX has them: 32 bits, which say how far from the beginning. */
unsigned shared_address(const void *);
void *shared_pointer(unsigned address);

/* cp.async: a copy that happens at the last moment, when its group is waited for. With CUDA_ON_CPU_SEED in the
 * environment some happen at once. To ThreadSanitizer it happens at any time up to then: no barrier comes after it. */
void copy_async(void *to, const void *from, size_t size, size_t zeros = 0);
void commit_group();
void wait_group(size_t pending);

/* Runs a kernel: the blocks in turn, the threads of each as fibers. */
int launch(void (*kernel)(void **arguments), void **arguments, const unsigned *grid, const unsigned *block,
           unsigned dynamic_bytes);

/* What a library has for each of its kernels, under the name cuda_on_cpu_NAME. */
struct Entry {
  int (*run)(void **arguments, const unsigned *grid, const unsigned *block, unsigned dynamic_bytes);
  const size_t *sizes;  // of the arguments in bytes; 0 after the last one
};

/* c += a b, all row by row, in the order of the inner dimension. */
void multiply_add(const float *a, const float *b, float *c, int rows, int columns, int inner);
void multiply_add(const int *a, const int *b, int *c, int rows, int columns, int inner);

}  // namespace cuda_on_cpu
