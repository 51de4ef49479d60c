// Product of a few rows with a packed float weight, in the order of reference/linear.py, divided as in matmul_packed.cu.

// y [rows, outputs]; x [rows, width], width a multiple of SPAN; weights packed.
KERNEL_OF(256, 2) void matmul(GLOBAL float *y, GLOBAL const float *x, GLOBAL const uchar *weights, int rows,
                              int outputs, int width ROUTES)
{
    LOCAL float partials[HELD * TILE], totals[ROWS * TILE];
    int row_groups = (rows + ROWS - 1) / ROWS, tile = GROUP / row_groups, first = GROUP % row_groups * ROWS;
    int count = min(ROWS, rows - first), chunks = (width + CHUNK - 1) / CHUNK;
    int lane = LANE % TILE, at_once = HELD / count;
#ifdef EXPERTS
    x += (size_t)SOURCE(first) * width;
    weights += (size_t)EXPERT(first) * ((outputs + TILE - 1) / TILE) * chunks * CELL;
#else
    x += (size_t)first * width;
#endif
    weights += (size_t)tile * chunks * CELL;
    for (int item = LANE; item < count * TILE; item += LANES)
        totals[item] = 0.0f;
    for (int start = 0; start < chunks; start += at_once) {
        int end = min(start + at_once, chunks);
        for (int c = start + LANE / TILE; c < end; c += LANES / TILE) {
            GLOBAL const uint4 *cell = (GLOBAL const uint4 *)(weights + (size_t)c * CELL) + lane;
            int spans = min(CHUNK, width - c * CHUNK) / SPAN;
            float sums[ROWS];
            uint4 words[SPAN / PER_WORD];
            UNROLL
            for (int r = 0; r < ROWS; r++)
                sums[r] = 0.0f;
            UNROLL
            for (int i = 0; i < SPAN / PER_WORD; i++)
                words[i] = cell[i * TILE];
            for (int s = 0; s < spans; s++) {
                float values[SPAN];
                UNROLL
                for (int i = 0; i < SPAN / PER_WORD; i++)
                    elements_of(values + i * PER_WORD, words[i]);
                if (s + 1 < spans) { // asked for before the last ones are used
                    UNROLL
                    for (int i = 0; i < SPAN / PER_WORD; i++)
                        words[i] = cell[((s + 1) * (SPAN / PER_WORD) + i) * TILE];
                }
                UNROLL
                for (int r = 0; r < ROWS; r++)
                    if (r < count) {
                        GLOBAL const float4 *from = (GLOBAL const float4 *)(x + (size_t)r * width + c * CHUNK + s * SPAN);
                        UNROLL
                        for (int k = 0; k < SPAN / 4; k++) {
                            float4 four = from[k];
                            sums[r] = FMA(four.x, values[4 * k], sums[r]);
                            sums[r] = FMA(four.y, values[4 * k + 1], sums[r]);
                            sums[r] = FMA(four.z, values[4 * k + 2], sums[r]);
                            sums[r] = FMA(four.w, values[4 * k + 3], sums[r]);
                        }
                    }
            }
            UNROLL
            for (int r = 0; r < ROWS; r++)
                if (r < count)
                    partials[((c - start) * count + r) * TILE + lane] = sums[r];
        }
        BARRIER;
        add_chunks(totals, partials, end - start, count);
        BARRIER;
    }
    for (int item = LANE; item < count * TILE; item += LANES) {
        int output = tile * TILE + item % TILE;
        if (output < outputs)
            y[(size_t)(first + item / TILE) * outputs + output] = totals[item];
    }
}
