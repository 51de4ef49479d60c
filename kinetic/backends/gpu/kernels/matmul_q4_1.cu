// Product with Q4_1 weights as they lie in the file, in the order of reference/linear.py.
//
// One group owns one output element; a lane computes whole chunks of 256 elements,
// and lane 0 adds the chunks' partial sums in ascending order.

#include "formats.h"

#define MAX_LANES 64
#define BLOCK_BYTES 20 // float16 d, float16 m, 16 bytes of nibbles
#define CHUNK_BLOCKS (CHUNK / BLOCK)

// Partial sum of the blocks first..end-1 of one chunk.
DEVICE float chunk_sum(GLOBAL const schar *q, GLOBAL const float *d, GLOBAL const uchar *weights, int first, int end)
{
    float partial = 0.0f;
    for (int b = first; b < end; b++) {
        GLOBAL const uchar *w = weights + b * BLOCK_BYTES;
        GLOBAL const schar *x = q + b * BLOCK;
        int product = 0, sum = 0;
        for (int i = 0; i < BLOCK / 2; i++) {
            product += (w[4 + i] & 15) * x[i] + (w[4 + i] >> 4) * x[i + BLOCK / 2];
            sum += x[i] + x[i + BLOCK / 2];
        }
        partial = FMA((float)product, f16_at(w) * d[b], partial);
        partial = FMA(f16_at(w + 2), d[b] * (float)sum, partial);
    }
    return partial;
}

// y [T, N]; q int8 [T, blocks, 32] and d [T, blocks] of the activations; weights [N, blocks, 20].
// T * N groups of at most MAX_LANES lanes.
KERNEL void matmul_q4_1(GLOBAL float *y, GLOBAL const schar *q, GLOBAL const float *d, GLOBAL const uchar *weights,
                        int outputs, int blocks)
{
    LOCAL float partials[MAX_LANES];
    q += (size_t)(GROUP / outputs) * blocks * BLOCK;
    d += (size_t)(GROUP / outputs) * blocks;
    weights += (size_t)(GROUP % outputs) * blocks * BLOCK_BYTES;
    int chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    float total = 0.0f;
    for (int start = 0; start < chunks; start += LANES) {
        int chunk = start + LANE, first = chunk * CHUNK_BLOCKS;
        if (chunk < chunks)
            partials[LANE] = chunk_sum(q, d, weights, first, min(first + CHUNK_BLOCKS, blocks));
        BARRIER;
        for (int i = 0; LANE == 0 && i < min(LANES, chunks - start); i++)
            total = total + partials[i];
        BARRIER;
    }
    if (LANE == 0)
        y[GROUP] = total;
}
