/* The product of two square matrices, in tiles. It prints the sum of the result and the time of a product. */
#include <stdio.h>
#include <time.h>

#ifndef N
#define N 256
#endif

static float a[N][N], b[N][N], c[N][N];

static void multiply(void) {
    for (int ii = 0; ii < N; ii += TILE_I)
        for (int kk = 0; kk < N; kk += TILE_K)
            for (int i = ii; i < ii + TILE_I; i++)
                for (int k = kk; k < kk + TILE_K; k++)
                    for (int j = 0; j < N; j++)
                        c[i][j] += a[i][k] * b[k][j];
}

int main(void) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            a[i][j] = (float)((i + j) % 7);
            b[i][j] = (float)((i * j) % 5);
        }
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    multiply();
    clock_gettime(CLOCK_MONOTONIC, &end);
    double sum = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) sum += c[i][j];
    printf("sum %.0f\n", sum);
    printf("took %.4f ms\n", (end.tv_sec - begin.tv_sec) * 1e3 + (end.tv_nsec - begin.tv_nsec) / 1e6);
    return 0;
}
