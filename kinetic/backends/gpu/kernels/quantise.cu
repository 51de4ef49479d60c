// Activations as blocks of 32 int8 with one scale, step by step those of reference/quantise.py.

#include "functions.h"

#define SMALLEST 0x12800000 // bits of 2^-90
#define INFINITE_BITS 0x7F800000
#define MAX_LANES 64
#define PARTS 8 // lanes that own a block, four elements each, so that a group reads and writes without a gap

// q int8 [n, 32] of x [n, 32]. d [n, 2]: the scale, then 16 bits each the sums of the two halves of q, the first one below.
// (n / (LANES / PARTS), rounded up) groups of at most MAX_LANES lanes, a multiple of PARTS.
KERNEL void quantise(GLOBAL schar *q, GLOBAL float *d, GLOBAL const float *x, int n)
{
    LOCAL uint maximums[MAX_LANES];
    LOCAL int sums[MAX_LANES];
    int b = GROUP * (LANES / PARTS) + LANE / PARTS, part = LANE % PARTS, own = LANE - part;
    float values[4];
    values[0] = values[1] = values[2] = values[3] = 0.0f;
    if (b < n) {
        float4 four = ((GLOBAL const float4 *)x)[(size_t)b * PARTS + part];
        values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
    }
    uint largest = 0;
    for (int i = 0; i < 4; i++) {
        uint bits = BITS_OF_FLOAT(values[i]) & 0x7FFFFFFF;
        largest = bits > largest ? bits : largest;
    }
    maximums[LANE] = largest;
    BARRIER;
    for (int i = 0; i < PARTS; i++)
        largest = maximums[own + i] > largest ? maximums[own + i] : largest;
    bool usable = largest >= SMALLEST && largest < INFINITE_BITS;
    float amax = usable ? FLOAT_OF_BITS(largest) : 1.0f, inverse = 127.0f / amax;
    uint word = 0;
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        int value = (int)BITS_OF_FLOAT(FMA(usable ? values[i] : 0.0f, inverse, MAGIC)) - MAGIC_BITS;
        word |= (uint)(value & 255) << 8 * i;
        sum += value;
    }
    sums[LANE] = sum;
    if (b < n)
        ((GLOBAL uint *)q)[(size_t)b * PARTS + part] = word;
    BARRIER;
    if (part == 0 && b < n) {
        int low = 0, high = 0;
        for (int i = 0; i < PARTS / 2; i++) {
            low += sums[own + i];
            high += sums[own + PARTS / 2 + i];
        }
        d[(size_t)b * 2] = usable ? amax / 127.0f : FLOAT_OF_BITS(largest >= INFINITE_BITS ? 0x7FC00000 : 0);
        ((GLOBAL int *)d)[(size_t)b * 2 + 1] = (low & 0xFFFF) | (int)((uint)high << 16);
    }
}
