/* What the two libraries of the stand-in share: a GPU with faults on demand.
 *
 * The folder named by AUTOTUNE_CUDA_STAND_IN tells it what to be:
 *   devices.csv  one line for each GPU, as nvidia-smi prints them: bus id, uuid, name, compute capability
 *   fault        one word, if something is to go wrong: illegal, hang, slow, memory, lost, cold (the
 *                first module of each process takes five seconds to load), far (to launch a kernel or a
 *                graph takes 50 us of the device's clock, and to run a kernel one)
 *   victim       written by the stand-in: the one module whose launches are illegal, hang or are slow
 *   launches     if it is there, the stand-in adds a line for each kernel that runs: its name, grid, block, bytes of dynamic
 *                shared memory, and of each argument `*` with the size of the memory that it points to, or its bytes in
 *                hexadecimal
 *   graphs       written by the stand-in: process and number of kernels of every CUDA graph that was launched
 *   loads        written by the stand-in: uuid, architecture and process of every module that was loaded
 * Memory is the host's; what lies beyond an allocation cannot be touched. With AUTOTUNE_CUDA_COMPUTES it is full of NaN
 * at first, else of zeros. Kernels run where the module has them for this CPU (execute.h) and take the time that they
 * take. Other kernels compute nothing, and pass some time on the device's clock.
 * It fails with too many threads, or with more shared memory than was asked for.
 */
#include <stddef.h>

typedef struct {
    char bus[32], uuid[64], name[64];
    int major, minor;
} device_t;

typedef struct graph graph_t;

int stand_in_begin_capture(void *);             /* from now on launches in a stream are recorded and pass no time */
int stand_in_end_capture(graph_t **);           /* what was recorded; an error if something broke it */
graph_t *stand_in_share_graph(graph_t *);       /* one owner more */
void stand_in_drop_graph(graph_t *);            /* one owner less */
int stand_in_copy(void *, const void *, size_t); /* copies memory, or records that */
int stand_in_breaks_capture(void);              /* whether something is recorded, which the caller breaks off */
int stand_in_launch_graph(const graph_t *);     /* runs what was recorded, and logs it */

void stand_in_allocated(void *, size_t); /* memory that kernels may be given; of size 0: no longer */

int stand_in_count(void);             /* the GPUs that CUDA_VISIBLE_DEVICES shows */
const device_t *stand_in_device(int); /* the nth of these; null if there is none */
int stand_in_error(void);             /* what every call returns now: 0, the sticky error, or that of a lost GPU */
int stand_in_full(void);              /* whether its memory is taken */
double stand_in_clock_ms(void);       /* the device's own clock */
void stand_in_finish(void);           /* waits for the launches; for ever, if one hangs */
