/* Calls the pool from some threads with loops of many lengths, for ThreadSanitizer: stress ROUNDS CALLERS. */
#include "pool.c" /* the first, for it asks for what only GNU systems have */

#include <stdio.h>
#include <string.h>

enum { LONGEST = 500, MOST_CALLERS = 16 };

static int rounds;

static int count(int32_t piece, group_t *group, void *data) {
  int *counts = data;
  int extent = counts[0];
  int size = (extent + group->num_task - 1) / group->num_task;
  for (int index = piece * size; index < extent && index < (piece + 1) * size; ++index) ++counts[1 + index];
  return 0;
}

static void *call(void *argument) {
  uint32_t state = (uint32_t)(intptr_t)argument;
  int counts[LONGEST + 1];
  for (int round = 0; round < rounds; ++round) {
    state = state * 1103515245 + 12345; /* as in the example of the C standard */
    memset(counts, 0, sizeof counts);
    counts[0] = 1 + (state >> 16) % LONGEST;
    if (state & 64) atomic_store(&autotune_next_extent, counts[0]);
    if (__TVMBackendParallelLaunch(count, counts, 0) != 0) exit(1);
    for (int index = 0; index < counts[0]; ++index) {
      if (counts[1 + index] != 1) exit(2);
    }
    if (round % 100 == 0) usleep(300); /* the workers fall asleep */
  }
  return NULL;
}

int main(int count_of_arguments, char **arguments) {
  if (count_of_arguments != 3) return 2;
  rounds = atoi(arguments[1]);
  int number = least(atoi(arguments[2]), MOST_CALLERS);
  pthread_t callers[MOST_CALLERS];
  for (intptr_t index = 0; index < number; ++index) pthread_create(&callers[index], NULL, call, (void *)(index + 1));
  for (int index = 0; index < number; ++index) pthread_join(callers[index], NULL);
  puts("computed");
  return 0;
}
