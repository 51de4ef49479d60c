// How the kernels of few rows add chunks: a group owns TILE outputs of up to ROWS rows.

#define ROWS 8
#define HELD 64 // chunks of one row whose sums are held at once

// Chunks of ``count`` rows, in ascending order. totals [count, TILE]; partials [chunks, count, TILE].
DEVICE void add_chunks(LOCAL_POINTER float *totals, LOCAL_POINTER const float *partials, int chunks, int count)
{
    for (int item = LANE; item < count * TILE; item += LANES) {
        float total = totals[item];
        for (int c = 0; c < chunks; c++)
            total = total + partials[c * count * TILE + item];
        totals[item] = total;
    }
}
