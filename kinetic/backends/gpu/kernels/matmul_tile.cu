// Product of many rows with a quantised weight, in the order of reference/linear.py: packed where CELL is defined, else as
// it lies in the file.
//
// A group owns TILE rows of TILE outputs, and a lane EACH of either. Half a chunk of weights, as int8 words, and of
// activations lies in local memory; sums stay in registers.

#define STEP (CHUNK_BLOCKS / 2)
#define PITCH (2 * STEP + 1) // of 16 bytes, odd, so that lanes read from different banks
#define SIDE 8
#define EACH (TILE / SIDE)

// Integers, four a word, of block b of an output, and what they are multiplied by.
DEVICE Factors read_block(uint *words, GLOBAL const uchar *weights, int output, int blocks, int b)
{
#ifdef CELL
    int chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS, lane = output % TILE;
    GLOBAL const uchar *cell = weights + ((size_t)(output / TILE) * chunks + b / CHUNK_BLOCKS) * CELL;
    packed_codes(words, cell, lane, b % CHUNK_BLOCKS);
#ifdef SPACING // in each byte; the highest bit keeps borrows from crossing
    UNROLL
    for (int j = 0; j < WORDS; j++)
        words[j] = ((words[j] * SPACING | 0x80808080) - ZERO * 0x01010101) ^ 0x80808080;
#endif
    return packed_factors(cell, lane, b % CHUNK_BLOCKS);
#else
    GLOBAL const uchar *w = weights + ((size_t)output * blocks + b) * BLOCK / VALUES * BYTES;
    int at = b * BLOCK % VALUES;
    Factors f;
    for (int j = 0; j < WORDS; j++) {
        words[j] = 0;
        for (int k = 0; k < 4; k++)
            words[j] |= (uint)(Q(w, at + 4 * j + k) & 255) << 8 * k;
    }
#ifdef PAIRS
    f.scale = SCALE(w, 2 * at / BLOCK);
    f.high_scale = SCALE(w, 2 * at / BLOCK + 1);
#else
    f.scale = SCALE(w, at / BLOCK);
#endif
#ifdef SUB
    f.low = SUB(w, 2 * at / BLOCK);
    f.high = SUB(w, 2 * at / BLOCK + 1);
#endif
#ifdef MINIMUM
    f.minimum = MINIMUM(w, at / BLOCK);
#endif
#ifdef SUB_MINIMUM
    f.low_minimum = SUB_MINIMUM(w, 2 * at / BLOCK);
    f.high_minimum = SUB_MINIMUM(w, 2 * at / BLOCK + 1);
#endif
    return f;
#endif
}

// As matmul of matmul_packed.cu. (outputs / TILE, rounded up) * (rows / TILE, rounded up) groups of SIDE * SIDE lanes.
KERNEL void matmul_tile(GLOBAL float *y, GLOBAL const schar *q, GLOBAL const float *d, GLOBAL const uchar *weights,
                        int rows, int outputs, int blocks)
{
    LOCAL uint4 w[TILE * PITCH], x[TILE * PITCH];
    LOCAL Factors factors[STEP * TILE];
    LOCAL float2 about[STEP * TILE];
    int row_tiles = (rows + TILE - 1) / TILE, first_output = GROUP / row_tiles * TILE;
    int first = GROUP % row_tiles * TILE, count = min(TILE, rows - first);
    int column = LANE % SIDE, line = LANE / SIDE;
    GLOBAL const uint4 *x_of = (GLOBAL const uint4 *)q + (size_t)first * blocks * 2;
    GLOBAL const float2 *about_of = (GLOBAL const float2 *)d + (size_t)first * blocks;
    float partial[EACH * EACH], total[EACH * EACH];
    UNROLL
    for (int i = 0; i < EACH * EACH; i++)
        partial[i] = total[i] = 0.0f;
    for (int start = 0; start < blocks; start += STEP) {
        int steps = min(STEP, blocks - start);
        BARRIER;
        for (int i = LANE; i < steps * TILE; i += LANES) {
            int output = first_output + i % TILE, b = i / TILE;
            if (output < outputs) {
                uint words[WORDS];
                factors[i] = read_block(words, weights, output, blocks, start + b);
                uint4 low, high;
                low.x = words[0], low.y = words[1], low.z = words[2], low.w = words[3];
                high.x = words[4], high.y = words[5], high.z = words[6], high.w = words[7];
                w[i % TILE * PITCH + 2 * b] = low;
                w[i % TILE * PITCH + 2 * b + 1] = high;
            }
        }
        for (int i = LANE; i < count * STEP * 2; i += LANES) {
            int r = i / (STEP * 2), word = i % (STEP * 2);
            if (word < steps * 2)
                x[r * PITCH + word] = x_of[((size_t)r * blocks + start) * 2 + word];
        }
        for (int i = LANE; i < count * STEP; i += LANES) {
            int r = i / STEP, b = i % STEP;
            if (b < steps)
                about[b * TILE + r] = about_of[(size_t)r * blocks + start + b];
        }
        BARRIER;
        for (int b = 0; b < steps; b++) {
            uint4 low[EACH], high[EACH];
            float2 beside[EACH];
            UNROLL
            for (int j = 0; j < EACH; j++) {
                int r = min(line + SIDE * j, count - 1); // rows behind the last are computed as that, and left out
                low[j] = x[r * PITCH + 2 * b];
                high[j] = x[r * PITCH + 2 * b + 1];
                beside[j] = about[b * TILE + r];
            }
            UNROLL
            for (int i = 0; i < EACH; i++) {
                int output = min(column + SIDE * i, outputs - 1 - first_output);
                uint4 low_words = w[output * PITCH + 2 * b], high_words = w[output * PITCH + 2 * b + 1];
                Factors f = factors[b * TILE + output];
                UNROLL
                for (int j = 0; j < EACH; j++)
                    if (SIDE * j < count) {
                        int left = dot16(low_words, low[j], 0), right = dot16(high_words, high[j], 0);
                        partial[j * EACH + i] = with_block(partial[j * EACH + i], left, right, beside[j], f);
                    }
            }
        }
        if ((start + STEP) % CHUNK_BLOCKS == 0 || start + STEP >= blocks) {
            UNROLL
            for (int i = 0; i < EACH * EACH; i++) {
                total[i] = total[i] + partial[i];
                partial[i] = 0.0f;
            }
        }
    }
    UNROLL
    for (int i = 0; i < EACH * EACH; i++) {
        int r = line + SIDE * (i / EACH), output = first_output + column + SIDE * (i % EACH);
        if (r < count && output < outputs)
            y[(size_t)(first + r) * outputs + output] = total[i];
    }
}
