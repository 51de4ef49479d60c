// Product of many rows with a packed float weight, in the order of reference/linear.py, divided as in matmul_tile.cu.

#define PITCH (SPAN / 4 + 1) // of 16 bytes
#define SIDE 8
#define EACH (TILE / SIDE)

// y [rows, outputs]; x [rows, width], width a multiple of SPAN; weights packed.
KERNEL_OF(64, 8) void matmul_tile(GLOBAL float *y, GLOBAL const float *x, GLOBAL const uchar *weights, int rows,
                                  int outputs, int width)
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
