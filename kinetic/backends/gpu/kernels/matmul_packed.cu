// Product of a few rows with a packed quantised weight, in the order of reference/linear.py.
//
// A group owns TILE outputs of up to ROWS rows. A lane computes whole chunks of one output, beside lanes that have the same
// chunk of the outputs next to it: together they read weights without a gap, and all of them the same activations. Others
// add the chunks.

// The sum of a chunk of ``count`` blocks of a row.
DEVICE float chunk_of(const uint *words, const Factors *factors, GLOBAL const uint4 *x, GLOBAL const float2 *about,
                      int count)
{
    float partial = 0.0f;
    UNROLL
    for (int b = 0; b < CHUNK_BLOCKS; b++)
        if (b < count) {
            const uint *w = words + b * WORDS;
            uint4 low = x[2 * b], high = x[2 * b + 1];
            int left = DOT4(w[0], low.x, DOT4(w[1], low.y, DOT4(w[2], low.z, DOT4(w[3], low.w, 0))));
            int right = DOT4(w[4], high.x, DOT4(w[5], high.y, DOT4(w[6], high.z, DOT4(w[7], high.w, 0))));
#ifdef SPACING // codes, not the integers themselves
            left = SPACING * left - ZERO * low_sum(about[b]);
            right = SPACING * right - ZERO * high_sum(about[b]);
#endif
            partial = with_block(partial, left, right, about[b], factors[b]);
        }
    return partial;
}

// y [rows, outputs]; q int8 [rows, blocks, 32]; d [rows, blocks] of the activations, each with the sums of two halves;
// weights packed. (outputs / TILE, rounded up) * (rows / ROWS, rounded up) groups of TILE lanes or a multiple of that.
KERNEL void matmul(GLOBAL float *y, GLOBAL const schar *q, GLOBAL const float *d, GLOBAL const uchar *weights, int rows,
                   int outputs, int blocks)
{
    LOCAL float partials[HELD * TILE], totals[ROWS * TILE];
    int row_groups = (rows + ROWS - 1) / ROWS, tile = GROUP / row_groups, first = GROUP % row_groups * ROWS;
    int count = min(ROWS, rows - first), chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    int lane = LANE % TILE, at_once = HELD / count;
    GLOBAL const uint4 *x = (GLOBAL const uint4 *)q + (size_t)first * blocks * 2;
    GLOBAL const float2 *about = (GLOBAL const float2 *)d + (size_t)first * blocks;
    weights += (size_t)tile * chunks * CELL;
    for (int item = LANE; item < count * TILE; item += LANES)
        totals[item] = 0.0f;
    for (int start = 0; start < chunks; start += at_once) {
        int end = min(start + at_once, chunks);
        for (int c = start + LANE / TILE; c < end; c += LANES / TILE) {
            GLOBAL const uchar *cell = weights + (size_t)c * CELL;
            int from = c * CHUNK_BLOCKS, left_over = blocks - from;
            uint words[CHUNK_BLOCKS * WORDS];
            Factors factors[CHUNK_BLOCKS];
            UNROLL
            for (int b = 0; b < CHUNK_BLOCKS; b++) { // also those behind the last: there are zeros
                packed_codes(words + b * WORDS, cell, lane, b);
                factors[b] = packed_factors(cell, lane, b);
            }
            for (int r = 0; r < count; r++) {
                size_t place = (size_t)r * blocks + from;
                float partial = left_over >= CHUNK_BLOCKS
                                    ? chunk_of(words, factors, x + 2 * place, about + place, CHUNK_BLOCKS)
                                    : chunk_of(words, factors, x + 2 * place, about + place, left_over);
                partials[((c - start) * count + r) * TILE + lane] = partial;
            }
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
