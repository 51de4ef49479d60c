// Attention over a float16 cache (pages.h), in the order of reference/attention.py.
//
// tables [sequences, table_width] says which page holds a chunk of a sequence. rows [T, 3] has each row's position, the
// number of its sequence in tables, and how long that is. tiles [., 2]: first row and number of rows that follow one
// another in one sequence.
//
// A group owns one chunk of 256 keys of one key head, for up to QUERIES queries: heads that share the key head, of one
// row or of the rows of a tile. Each key and value is read once for all of them. What a query sees and how its sums are
// formed does not depend on its neighbours.

#include "pages.h"

#ifndef QUERIES
#define QUERIES 16 // a multiple of 4
#endif

#define FOURS (QUERIES / 4)
#define KEYS (QUERIES < 16 ? 2 : 4) // that a lane scores at once
#define KEY_LANES (CHUNK / KEYS)
#define SLAB 64    // elements of the queries in local memory at once
#define STAGE 1024 // pieces of values in local memory at once
#define STRIDES 16
#define WORD(v, i) ((i) == 0 ? (v).x : (i) == 1 ? (v).y : (i) == 2 ? (v).z : (v).w)
#define HALF(v, e) f16_to_f32(WORD(v, (e) / 2) >> 16 * ((e) % 2) & 0xFFFF)
#define ROW_OF(s, size) ((size_t)((s) / own_heads * heads + (s) % own_heads) * (size)) // of query s of a tile

// acc + p * v for those of four queries whose bits `seen` has.
DEVICE float4 weighted(float4 acc, float4 p, float v, int seen)
{
    acc.x = seen & 1 ? FMA(p.x, v, acc.x) : acc.x;
    acc.y = seen & 2 ? FMA(p.y, v, acc.y) : acc.y;
    acc.z = seen & 4 ? FMA(p.z, v, acc.z) : acc.z;
    acc.w = seen & 8 ? FMA(p.w, v, acc.w) : acc.w;
    return acc;
}

// Which of four queries see key j of the chunk.
DEVICE int seen_by(LOCAL_POINTER const int *lows, LOCAL_POINTER const int *highs, int j)
{
    int seen = 0;
    for (int s = 0; s < 4; s++)
        seen |= (j >= lows[s] && j < highs[s]) << s;
    return seen;
}

// The first key that all of four queries see, of those that see any, and the one behind the last.
DEVICE int seen_from(LOCAL_POINTER const int *lows, LOCAL_POINTER const int *highs)
{
    int from = 0;
    for (int s = 0; s < 4; s++)
        from = lows[s] < highs[s] ? max(from, lows[s]) : from;
    return from;
}

DEVICE int seen_until(LOCAL_POINTER const int *lows, LOCAL_POINTER const int *highs)
{
    int until = CHUNK;
    for (int s = 0; s < 4; s++)
        until = lows[s] < highs[s] ? min(until, highs[s]) : until;
    return until;
}

// partials [rows of tiles from first_tile on, heads, chunks, value_width + 2]: weighted values, maximum, sum of
// weights; q [T, heads, width]. Tiles, key heads * parts of their query heads, chunks from `begin` on: so many groups. A
// chunk without a visible key is left as it is. softcap 0: none.
KERNEL void attention_chunks(GLOBAL float *partials, GLOBAL const float *q, GLOBAL const uint4 *pages,
                             GLOBAL const int *rows, GLOBAL const int *tables, GLOBAL const int *tiles, int first_tile,
                             int heads, int kv_heads, int width, int value_width, int table_width, int begin, int chunks,
                             int window, int causal, float scale, float softcap)
{
    LOCAL float4 scores[CHUNK * FOURS], slab[SLAB * FOURS];
    LOCAL float maxima[STRIDES * QUERIES], sums[STRIDES * QUERIES], maximum[QUERIES];
    LOCAL int lows[QUERIES], highs[QUERIES];
    LOCAL_POINTER float *flat = (LOCAL_POINTER float *)scores, *flat_slab = (LOCAL_POINTER float *)slab;

    int shared = heads / kv_heads, at_once = min(shared, QUERIES), parts = (shared + at_once - 1) / at_once;
    int chunk = begin + GROUP % chunks, part = GROUP / chunks % parts, kv = GROUP / chunks / parts % kv_heads;
    GLOBAL const int *tile = tiles + 2 * (first_tile + GROUP / chunks / parts / kv_heads);
    int head = kv * shared + part * at_once, own_heads = min(at_once, shared - part * at_once);
    int slots = tile[1] * own_heads, start = chunk * CHUNK;
    rows += 3 * tile[0];
    for (int s = LANE; s < QUERIES; s += LANES) {
        int low = CHUNK, high = 0;
        if (s < slots) {
            GLOBAL const int *row = rows + 3 * (s / own_heads);
            low = max(first_key(row[0], window, causal) - start, 0);
            high = min(end_of_keys(row[0], row[2], window, causal) - start, CHUNK);
        }
        lows[s] = low < high ? low : CHUNK;
        highs[s] = low < high ? high : 0;
    }
    BARRIER;
    int lowest = CHUNK, highest = 0;
    for (int s = 0; s < QUERIES; s++) {
        lowest = min(lowest, lows[s]);
        highest = max(highest, highs[s]);
    }
    if (lowest >= highest)
        return;

    int pieces = PIECES(width), value_pieces = PIECES(value_width);
    size_t page = tables[rows[1] * table_width + chunk];
    pages += page * kv_heads * (pieces + value_pieces) * CHUNK;
    GLOBAL const uint4 *keys = pages + (size_t)kv * pieces * CHUNK;
    GLOBAL const uint4 *values = pages + ((size_t)kv_heads * pieces + (size_t)kv * value_pieces) * CHUNK;
    q += ((size_t)tile[0] * heads + head) * width;
    partials += (((size_t)(tile[0] - tiles[2 * first_tile]) * heads + head) * chunks + chunk - begin) * (value_width + 2);

    // Scores. What pads a head to whole pieces are zeros on both sides: they could make a -0 a +0, which have equal weights.
    for (int base = 0; base < KEY_LANES; base += LANES) {
        float made[KEYS][QUERIES];
        int is_seen[KEYS], is_any = 0, key = base + LANE;
        UNROLL
        for (int n = 0; n < KEYS; n++) {
            is_seen[n] = key < KEY_LANES && key + n * KEY_LANES >= lowest && key + n * KEY_LANES < highest;
            is_any |= is_seen[n];
            UNROLL
            for (int s = 0; s < QUERIES; s++)
                made[n][s] = 0.0f;
        }
        for (int first = 0; first < width; first += SLAB) {
            BARRIER;
            for (int e = LANE; e < SLAB * QUERIES; e += LANES) {
                int s = e % QUERIES, i = first + e / QUERIES;
                flat_slab[e] = s < slots && i < width ? q[ROW_OF(s, width) + i] * scale : 0.0f;
            }
            BARRIER;
            int end = is_any ? min(pieces, (first + SLAB) / 8) : 0;
#if QUERIES < 16
            UNROLL_BY(4)
#endif
            for (int piece = first / 8; piece < end; piece++) {
                LOCAL_POINTER const float4 *x = slab + (8 * piece - first) * FOURS;
                uint4 words[KEYS];
                UNROLL
                for (int n = 0; n < KEYS; n++) {
                    words[n].x = words[n].y = words[n].z = words[n].w = 0;
                    if (is_seen[n])
                        words[n] = keys[piece * CHUNK + key + n * KEY_LANES];
                }
                UNROLL
                for (int e = 0; e < 8; e++)
                    UNROLL
                    for (int four = 0; four < FOURS; four++) {
                        float4 queries = x[e * FOURS + four];
                        UNROLL
                        for (int n = 0; n < KEYS; n++) {
                            float k = HALF(words[n], e);
                            made[n][4 * four] = FMA(queries.x, k, made[n][4 * four]);
                            made[n][4 * four + 1] = FMA(queries.y, k, made[n][4 * four + 1]);
                            made[n][4 * four + 2] = FMA(queries.z, k, made[n][4 * four + 2]);
                            made[n][4 * four + 3] = FMA(queries.w, k, made[n][4 * four + 3]);
                        }
                    }
            }
        }
        UNROLL
        for (int n = 0; n < KEYS; n++)
            if (is_seen[n])
                UNROLL
                for (int s = 0; s < QUERIES; s++)
                    flat[(key + n * KEY_LANES) * QUERIES + s] = softcap == 0.0f ? made[n][s] : softcap32(made[n][s], softcap);
    }
    BARRIER;

    // Weights. A query's maximum is exact in any order; NaN is never larger.
    for (int u = LANE; u < STRIDES * QUERIES; u += LANES) {
        int s = u % QUERIES, low = lows[s], j = low + ((u / QUERIES - low) & (STRIDES - 1));
        float largest = -INFINITE;
        for (; j < highs[s]; j += STRIDES)
            largest = flat[j * QUERIES + s] > largest ? flat[j * QUERIES + s] : largest;
        maxima[u] = largest;
    }
    BARRIER;
    for (int s = LANE; s < QUERIES; s += LANES) {
        float largest = maxima[s];
        for (int u = s; u < STRIDES * QUERIES; u += QUERIES)
            largest = maxima[u] > largest ? maxima[u] : largest;
        maximum[s] = largest;
    }
    BARRIER;
    for (int e = lowest * QUERIES + LANE; e < highest * QUERIES; e += LANES)
        if (e % QUERIES < slots)
            flat[e] = softmax_weight(flat[e] - maximum[e % QUERIES]);
    BARRIER;
    for (int u = LANE; u < STRIDES * QUERIES; u += LANES) {
        int s = u % QUERIES, low = lows[s], j = low + ((u / QUERIES - low) & (STRIDES - 1));
        float sum = 0.0f;
        for (; j < highs[s]; j += STRIDES)
            sum = sum + flat[j * QUERIES + s];
        sums[u] = sum;
    }
    BARRIER;
    for (int s = LANE; s < slots; s += LANES) {
        for (int distance = STRIDES / 2; distance > 0; distance /= 2)
            for (int i = 0; i < distance; i++)
                sums[i * QUERIES + s] = sums[i * QUERIES + s] + sums[(i + distance) * QUERIES + s];
        if (lows[s] < highs[s]) {
            GLOBAL float *out = partials + ROW_OF(s, (size_t)chunks * (value_width + 2));
            out[value_width] = maximum[s];
            out[value_width + 1] = sums[s];
        }
    }

    // Weighted values, four queries to a lane: keys that some of them see, that all see, that some see.
#if QUERIES < 16 // few: a lane owns a pair of elements, and all lanes fetch values
    LOCAL uint4 stage[STAGE];
    LOCAL_POINTER const uint *pairs = (LOCAL_POINTER const uint *)stage;
    int keys_at_once = STAGE / value_pieces, half_width = (value_width + 1) / 2;
    for (int base = 0; base < half_width * FOURS; base += LANES) {
        int four = (base + LANE) / half_width, pair = (base + LANE) % half_width, is_used = 4 * four < slots;
        int from = is_used ? seen_from(lows + 4 * four, highs + 4 * four) : 0;
        int until = is_used ? seen_until(lows + 4 * four, highs + 4 * four) : 0;
        float4 even, odd;
        even.x = even.y = even.z = even.w = odd.x = odd.y = odd.z = odd.w = 0.0f;
        for (int first = lowest; first < highest; first += keys_at_once) {
            int last = min(first + keys_at_once, highest);
            BARRIER;
            for (int e = LANE; e < (last - first) * value_pieces; e += LANES)
                stage[e] = values[first * value_pieces + e];
            BARRIER;
            int j = is_used ? first : last;
            for (int turn = 0; turn < 3; turn++) {
                int end = turn == 0 ? min(from, last) : turn == 1 ? min(until, last) : last;
                if (turn == 1)
                    UNROLL_BY(8)
                    for (; j < end; j++) {
                        uint both = pairs[(j - first) * 4 * value_pieces + pair];
                        float4 p = scores[j * FOURS + four];
                        even = weighted(even, p, f16_to_f32(both & 0xFFFF), 15);
                        odd = weighted(odd, p, f16_to_f32(both >> 16), 15);
                    }
                else
                    for (; j < end; j++) {
                        uint both = pairs[(j - first) * 4 * value_pieces + pair];
                        int seen = seen_by(lows + 4 * four, highs + 4 * four, j);
                        even = weighted(even, scores[j * FOURS + four], f16_to_f32(both & 0xFFFF), seen);
                        odd = weighted(odd, scores[j * FOURS + four], f16_to_f32(both >> 16), seen);
                    }
            }
        }
        for (int n = 0; n < 4 && is_used; n++) {
            int s = 4 * four + n, i = 2 * pair;
            if (lows[s] >= highs[s])
                continue;
            GLOBAL float *out = partials + ROW_OF(s, (size_t)chunks * (value_width + 2));
            out[i] = WORD(even, n);
            if (i + 1 < value_width)
                out[i + 1] = WORD(odd, n);
        }
    }
#else // many: a lane owns a piece of eight elements
    for (int u = LANE; u < value_pieces * FOURS; u += LANES) {
        int four = u / value_pieces, piece = u % value_pieces;
        if (4 * four >= slots)
            break;
        int from = seen_from(lows + 4 * four, highs + 4 * four), until = seen_until(lows + 4 * four, highs + 4 * four);
        float4 acc[8];
        UNROLL
        for (int e = 0; e < 8; e++)
            acc[e].x = acc[e].y = acc[e].z = acc[e].w = 0.0f;
        int j = lowest;
        for (int turn = 0; turn < 3; turn++) {
            int end = turn == 0 ? min(from, highest) : turn == 1 ? min(until, highest) : highest;
            if (turn == 1)
                UNROLL_BY(2)
                for (; j < end; j++) {
                    uint4 words = values[j * value_pieces + piece];
                    float4 p = scores[j * FOURS + four];
                    UNROLL
                    for (int e = 0; e < 8; e++)
                        acc[e] = weighted(acc[e], p, HALF(words, e), 15);
                }
            else
                for (; j < end; j++) {
                    uint4 words = values[j * value_pieces + piece];
                    int seen = seen_by(lows + 4 * four, highs + 4 * four, j);
                    UNROLL
                    for (int e = 0; e < 8; e++)
                        acc[e] = weighted(acc[e], scores[j * FOURS + four], HALF(words, e), seen);
                }
        }
        for (int n = 0; n < 4; n++) {
            int s = 4 * four + n;
            if (lows[s] >= highs[s])
                continue;
            GLOBAL float *out = partials + ROW_OF(s, (size_t)chunks * (value_width + 2)) + 8 * piece;
            UNROLL
            for (int e = 0; e < 8; e++)
                if (8 * piece + e < value_width)
                    out[e] = WORD(acc[e], n);
        }
    }
#endif
}
