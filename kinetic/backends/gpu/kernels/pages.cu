// What a pass stores, and what a branch begins with: pages.h says how they lie.

#include "pages.h"

// Elements i and i + 1 of x [width] as float16, zeros behind its end.
DEVICE uint pair_of(GLOBAL const float *x, int i, int width)
{
    uint low = i < width ? f32_to_f16(x[i]) : 0, high = i + 1 < width ? f32_to_f16(x[i + 1]) : 0;
    return low | high << 16;
}

// k [T, kv_heads, width] and v [T, kv_heads, value_width] as float16 into their pages. stores [., 2]: a row, and a place,
// 256 * page + position in it; a row may have several. A lane owns a piece of n: those of keys, then of values, by head.
KERNEL void store_rows(GLOBAL uint4 *pages, GLOBAL const float *k, GLOBAL const float *v, GLOBAL const int *stores,
                       int kv_heads, int width, int value_width, int n)
{
    int i = GROUP * LANES + LANE;
    if (i >= n)
        return;
    int pieces = PIECES(width), value_pieces = PIECES(value_width), both = pieces + value_pieces;
    int store = i / (both * kv_heads), head = i / both % kv_heads, piece = i % both, row = stores[2 * store];
    int place = stores[2 * store + 1], key = place % CHUNK, is_key = piece < pieces;
    GLOBAL uint4 *page = pages + (size_t)(place / CHUNK) * kv_heads * both * CHUNK;
    int own = is_key ? width : value_width, at = 8 * (is_key ? piece : piece - pieces);
    GLOBAL const float *x = (is_key ? k : v) + ((size_t)row * kv_heads + head) * own;
    size_t target = is_key ? (size_t)(head * pieces + piece) * CHUNK + key
                           : (size_t)kv_heads * pieces * CHUNK + (size_t)(head * CHUNK + key) * value_pieces + piece - pieces;
    uint4 made;
    made.x = pair_of(x, at, own);
    made.y = pair_of(x, at + 2, own);
    made.z = pair_of(x, at + 4, own);
    made.w = pair_of(x, at + 6, own);
    page[target] = made;
}

// One page becomes another, each n pieces long.
KERNEL void copy_page(GLOBAL uint4 *pages, int source, int target, int n)
{
    int i = GROUP * LANES + LANE;
    if (i < n)
        pages[(size_t)target * n + i] = pages[(size_t)source * n + i];
}
