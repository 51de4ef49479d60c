// Products with a packed float weight, in the order of reference/linear.py: ``matmul`` of a few rows, divided as in
// matmul_packed.cu, and ``matmul_tile`` of many, divided as in matmul_tile.cu.

// y [rows, outputs]; x [rows, width], width a multiple of SPAN; weights packed.
KERNEL void matmul(GLOBAL float *y, GLOBAL const float *x, GLOBAL const uchar *weights, int rows, int outputs, int width)
{
    LOCAL float partials[HELD * TILE], totals[ROWS * TILE];
    int row_groups = (rows + ROWS - 1) / ROWS, tile = GROUP / row_groups, first = GROUP % row_groups * ROWS;
    int count = min(ROWS, rows - first), chunks = (width + CHUNK - 1) / CHUNK;
    int lane = LANE % TILE, at_once = HELD / count;
    x += (size_t)first * width;
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

#define PITCH (SPAN / 4 + 1) // of 16 bytes
#define SIDE 8
#define EACH (TILE / SIDE)

KERNEL void matmul_tile(GLOBAL float *y, GLOBAL const float *x, GLOBAL const uchar *weights, int rows, int outputs,
                        int width)
{
    LOCAL float4 w[TILE * PITCH], x_part[TILE * PITCH];
    int row_tiles = (rows + TILE - 1) / TILE, tile = GROUP / row_tiles, first = GROUP % row_tiles * TILE;
    int count = min(TILE, rows - first), chunks = (width + CHUNK - 1) / CHUNK;
    int column = LANE % SIDE, line = LANE / SIDE;
    x += (size_t)first * width;
    weights += (size_t)tile * chunks * CELL;
    float partial[EACH * EACH], total[EACH * EACH];
    UNROLL
    for (int i = 0; i < EACH * EACH; i++)
        partial[i] = total[i] = 0.0f;
    for (int start = 0; start < width; start += SPAN) {
        GLOBAL const uint4 *cell = (GLOBAL const uint4 *)(weights + (size_t)(start / CHUNK) * CELL);
        BARRIER;
        for (int i = LANE; i < TILE * (SPAN / PER_WORD); i += LANES) {
            int word = i / TILE;
            float values[PER_WORD];
            elements_of(values, cell[start % CHUNK / PER_WORD * TILE + i]);
            UNROLL
            for (int k = 0; k < PER_WORD / 4; k++) {
                float4 four;
                four.x = values[4 * k], four.y = values[4 * k + 1], four.z = values[4 * k + 2], four.w = values[4 * k + 3];
                w[i % TILE * PITCH + word * (PER_WORD / 4) + k] = four;
            }
        }
        for (int i = LANE; i < count * (SPAN / 4); i += LANES) {
            int r = i / (SPAN / 4), part = i % (SPAN / 4);
            x_part[r * PITCH + part] = ((GLOBAL const float4 *)(x + (size_t)r * width + start))[part];
        }
        BARRIER;
        for (int k = 0; k < SPAN / 4; k++) {
            float4 rows_of[EACH];
            UNROLL
            for (int j = 0; j < EACH; j++)
                rows_of[j] = x_part[min(line + SIDE * j, count - 1) * PITCH + k];
            UNROLL
            for (int i = 0; i < EACH; i++) {
                float4 of = w[(column + SIDE * i) * PITCH + k];
                UNROLL
                for (int j = 0; j < EACH; j++)
                    if (SIDE * j < count) {
                        float sum = partial[j * EACH + i];
                        sum = FMA(rows_of[j].x, of.x, sum);
                        sum = FMA(rows_of[j].y, of.y, sum);
                        sum = FMA(rows_of[j].z, of.z, sum);
                        partial[j * EACH + i] = FMA(rows_of[j].w, of.w, sum);
                    }
            }
        }
        if ((start + SPAN) % CHUNK == 0 || start + SPAN >= width) {
            UNROLL
            for (int i = 0; i < EACH * EACH; i++) {
                total[i] = total[i] + partial[i];
                partial[i] = 0.0f;
            }
        }
    }
    UNROLL
    for (int i = 0; i < EACH * EACH; i++) {
        int r = line + SIDE * (i / EACH), output = tile * TILE + column + SIDE * (i % EACH);
        if (r < count && output < outputs)
            y[(size_t)(first + r) * outputs + output] = total[i];
    }
}
