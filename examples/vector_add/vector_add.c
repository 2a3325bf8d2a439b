/* The sum of two vectors, in blocks that are unrolled. It checks the result and prints the time of one sum. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N = 1 << 20 };

static void vector_add(float *c, const float *a, const float *b) {
    for (int block = 0; block < N; block += BLOCK)
        for (int i = block; i < block + BLOCK; i += UNROLL)
            for (int j = 0; j < UNROLL; j++) c[i + j] = a[i + j] + b[i + j];
}

int main(void) {
    float *a = malloc(N * sizeof *a);
    float *b = malloc(N * sizeof *b);
    float *c = malloc(N * sizeof *c);
    for (int i = 0; i < N; i++) {
        a[i] = (float)i;
        b[i] = (float)(2 * i);
        c[i] = 0;
    }
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    vector_add(c, a, b);
    clock_gettime(CLOCK_MONOTONIC, &end);
    for (int i = 0; i < N; i++)
        if (c[i] != a[i] + b[i]) return 1;
    printf("time: %.4f ms\n", (end.tv_sec - begin.tv_sec) * 1e3 + (end.tv_nsec - begin.tv_nsec) / 1e6);
    return 0;
}
