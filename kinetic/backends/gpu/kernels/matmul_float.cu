// Product with a float weight, in the order of reference/linear.py. source.py puts VALUE and BYTES before this.
//
// One group owns one output of up to ROWS rows. A lane computes whole chunks of 256 elements, others add the chunks.

#ifdef EXPERTS // as in matmul.cu
#define ROWS 1
#define ROUTES , GLOBAL const float *routes, int used, int kind
#else
#define ROWS 8
#define ROUTES
#endif
#define MAX_LANES 64

// y [rows, outputs]; x [rows, width]; weights [outputs, width * BYTES]. outputs * (rows / ROWS, rounded up) groups of at
// most MAX_LANES lanes.
KERNEL void matmul(GLOBAL float *y, GLOBAL const float *x, GLOBAL const uchar *weights, int rows, int outputs, int width
                   ROUTES)
{
    LOCAL float partials[ROWS * MAX_LANES], totals[ROWS];
    int output = GROUP % outputs, first = GROUP / outputs * ROWS, count = min(ROWS, rows - first);
    int chunks = (width + CHUNK - 1) / CHUNK;
    weights += (size_t)output * width * BYTES;
#ifdef EXPERTS
    weights += (size_t)EXPERT(first) * outputs * width * BYTES;
    x += (size_t)SOURCE(first) * width;
#else
    x += (size_t)first * width;
#endif
    for (int r = LANE; r < count; r += LANES)
        totals[r] = 0.0f;
    for (int start = 0; start < chunks; start += LANES) {
        int from = (start + LANE) * CHUNK, end = min(from + CHUNK, width);
        float sums[ROWS];
        for (int r = 0; r < ROWS; r++)
            sums[r] = 0.0f;
        for (int k = from; k < end; k++) {
            float w = VALUE(weights, k);
            for (int r = 0; r < ROWS; r++)
                if (r < count)
                    sums[r] = FMA(x[(size_t)r * width + k], w, sums[r]);
        }
        for (int r = 0; r < count; r++)
            partials[r * MAX_LANES + LANE] = sums[r];
        BARRIER;
        for (int r = LANE; r < count; r += LANES)
            for (int c = 0; c < min(LANES, chunks - start); c++)
                totals[r] = totals[r] + partials[r * MAX_LANES + c];
        BARRIER;
    }
    for (int r = LANE; r < count; r += LANES)
        y[(size_t)(first + r) * outputs + output] = totals[r];
}
