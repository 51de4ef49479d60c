// Product with a quantised weight as it lies in the file, in the order of reference/linear.py.
//
// source.py puts the format before this: Q, SCALE and, where it has them, MINIMUM, SUB and SUB_MINIMUM, and PAIRS where
// 16 elements share a scale. One group owns one output of up to ROWS rows, which share what is read of the weight. A
// lane makes the exact integers of a block, then others add those of a chunk in the order of its blocks.

// With EXPERTS the weight is several matrices, and a row is one of them for one row of activations: EXPERT tells which,
// SOURCE which row that is. A group then owns one output of one such row.

#ifdef EXPERTS
#define ROWS 1
#define ROUTES , GLOBAL const float *routes, int used, int kind
#else
#define ROWS 8
#define ROUTES
#endif
#define MAX_LANES 64
#define CHUNK_BLOCKS (CHUNK / BLOCK)
#define HALF (BLOCK / 2)

#ifdef PAIRS
#define PARTS 2
#else
#define PARTS 1
#endif

// y [rows, outputs]; q int8 [rows, blocks, 32] and d [rows, blocks, 2] of the activations, as quantise.cu makes them;
// weights [outputs, row bytes].
// outputs * (rows / ROWS, rounded up) groups of at most MAX_LANES lanes, a multiple of CHUNK_BLOCKS.
KERNEL void matmul(GLOBAL float *y, GLOBAL const schar *q, GLOBAL const float *d, GLOBAL const uchar *weights, int rows,
                   int outputs, int blocks ROUTES)
{
    LOCAL float dots[ROWS * PARTS * MAX_LANES], factors[ROWS * PARTS * MAX_LANES];
    LOCAL float partials[ROWS * MAX_LANES / CHUNK_BLOCKS], totals[ROWS];
#ifdef MINIMUM
    LOCAL float sums[ROWS * MAX_LANES], minimums[MAX_LANES];
#endif
    int output = GROUP % outputs, first = GROUP / outputs * ROWS, count = min(ROWS, rows - first);
    weights += (size_t)output * (blocks * BLOCK / VALUES) * BYTES;
#ifdef EXPERTS
    weights += (size_t)EXPERT(first) * outputs * (blocks * BLOCK / VALUES) * BYTES;
    q += (size_t)SOURCE(first) * blocks * BLOCK;
    d += (size_t)SOURCE(first) * blocks * 2;
#else
    q += (size_t)first * blocks * BLOCK;
    d += (size_t)first * blocks * 2;
#endif
    for (int r = LANE; r < count; r += LANES)
        totals[r] = 0.0f;
    for (int start = 0; start < blocks; start += LANES) {
        int b = start + LANE;
        if (b < blocks) {
            GLOBAL const uchar *w = weights + (size_t)(b * BLOCK / VALUES) * BYTES;
            int at = b * BLOCK % VALUES, values[BLOCK];
            for (int i = 0; i < BLOCK; i++)
                values[i] = Q(w, at + i);
#ifdef SUB
            int low = SUB(w, at / HALF), high = SUB(w, at / HALF + 1);
            for (int i = 0; i < HALF; i++) {
                values[i] *= low;
                values[HALF + i] *= high;
            }
#endif
#ifdef SUB_MINIMUM
            int low_minimum = SUB_MINIMUM(w, at / HALF), high_minimum = SUB_MINIMUM(w, at / HALF + 1);
#endif
#ifdef MINIMUM
            minimums[LANE] = MINIMUM(w, at / BLOCK);
#endif
            for (int r = 0; r < count; r++) {
                GLOBAL const schar *x = q + ((size_t)r * blocks + b) * BLOCK;
                float scale = d[((size_t)r * blocks + b) * 2];
                int left = 0, right = 0;
                for (int i = 0; i < HALF; i++) {
                    left += values[i] * x[i];
                    right += values[HALF + i] * x[HALF + i];
                }
                int place = r * PARTS * MAX_LANES + LANE;
#ifdef PAIRS
                dots[place] = (float)left;
                factors[place] = SCALE(w, at / HALF) * scale;
                dots[place + MAX_LANES] = (float)right;
                factors[place + MAX_LANES] = SCALE(w, at / HALF + 1) * scale;
#else
                dots[place] = (float)(left + right);
                factors[place] = SCALE(w, at / BLOCK) * scale;
#endif
#ifdef MINIMUM
                int both = ((GLOBAL const int *)d)[((size_t)r * blocks + b) * 2 + 1];
                int low_sum = (short)(both & 0xFFFF), high_sum = both >> 16;
#ifdef SUB_MINIMUM
                low_sum *= low_minimum;
                high_sum *= high_minimum;
#endif
                sums[r * MAX_LANES + LANE] = scale * (float)(low_sum + high_sum);
#endif
            }
        }
        BARRIER;
        int chunks = LANES / CHUNK_BLOCKS;
        for (int item = LANE; item < count * chunks; item += LANES) {
            int r = item / chunks, from = item % chunks * CHUNK_BLOCKS;
            float partial = 0.0f;
            for (int i = from; i < min(from + CHUNK_BLOCKS, blocks - start); i++) {
                for (int part = 0; part < PARTS; part++) {
                    int place = (r * PARTS + part) * MAX_LANES + i;
                    partial = FMA(dots[place], factors[place], partial);
                }
#ifdef MINIMUM
                partial = FMA(minimums[i], sums[r * MAX_LANES + i], partial);
#endif
            }
            partials[item] = partial;
        }
        BARRIER;
        int filled = min(chunks, (blocks - start + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS);
        for (int r = LANE; r < count; r += LANES)
            for (int c = 0; c < filled; c++)
                totals[r] = totals[r] + partials[r * chunks + c];
    }
    for (int r = LANE; r < count; r += LANES)
        y[(size_t)(first + r) * outputs + output] = totals[r];
}
