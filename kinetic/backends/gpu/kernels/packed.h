// Quantised weights in the packed layout (packed.py), read by 32 lanes of which each has an output of its own.
//
// source.py defines CELL, the bytes of a chunk of 32 outputs, and where its parts begin: WIDE_AT or NIBBLES_AT, TWO_AT,
// ONE_AT, SCALES_AT; TWO_PLACE and ONE_PLACE, the lowest bit of a code that these two hold; LEVELS, what codes stand for
// in place of code * SPACING - ZERO; in the bytes of scales, FACTORS_AT and MINIMUMS_AT.

// Four levels for four codes, one in each byte. The levels of codes 0-3 are the bytes of t0, and so on.
DEVICE uint look_up(uint codes, uint t0, uint t1, uint t2, uint t3)
{
    uint s = (codes | codes >> 4) & 0x00FF00FF, upper = (codes >> 3 & 0x01010101) * 255;
    s = (s | s >> 8) & 0x7777;
    return (BYTE_PERM(t0, t1, s) & ~upper) | (BYTE_PERM(t2, t3, s) & upper);
}

// Words of codes of block b, an element in each byte; levels where there are any.
DEVICE void packed_codes(uint *words, GLOBAL const uchar *cell, int lane, int b)
{
#ifdef WIDE_AT
    uint4 first = ((GLOBAL const uint4 *)(cell + WIDE_AT))[2 * b * TILE + lane];
    uint4 second = ((GLOBAL const uint4 *)(cell + WIDE_AT))[(2 * b + 1) * TILE + lane];
    words[0] = first.x, words[1] = first.y, words[2] = first.z, words[3] = first.w;
    words[4] = second.x, words[5] = second.y, words[6] = second.z, words[7] = second.w;
#else
#ifdef NIBBLES_AT
    uint4 first = ((GLOBAL const uint4 *)(cell + NIBBLES_AT))[b * TILE + lane];
    words[0] = first.x, words[1] = first.y, words[2] = first.z, words[3] = first.w;
    UNROLL
    for (int j = 0; j < WORDS / 2; j++) {
        words[WORDS / 2 + j] = words[j] >> 4 & 0x0F0F0F0F;
        words[j] = words[j] & 0x0F0F0F0F;
    }
#else
    UNROLL
    for (int j = 0; j < WORDS; j++)
        words[j] = 0;
#endif
#ifdef TWO_AT
    uint2 two = ((GLOBAL const uint2 *)(cell + TWO_AT))[b * TILE + lane];
    UNROLL
    for (int j = 0; j < WORDS / 2; j++) {
        words[j] |= (two.x >> 2 * j & 0x03030303) << TWO_PLACE;
        words[WORDS / 2 + j] |= (two.y >> 2 * j & 0x03030303) << TWO_PLACE;
    }
#endif
#ifdef ONE_AT
    uint one = ((GLOBAL const uint *)(cell + ONE_AT))[b * TILE + lane];
    UNROLL
    for (int j = 0; j < WORDS; j++)
        words[j] |= (one >> j & 0x01010101) << ONE_PLACE;
#endif
#ifdef LEVELS
    UNROLL
    for (int j = 0; j < WORDS; j++)
        words[j] = look_up(words[j], LEVELS);
#endif
#endif
}

// Word i of the scales of a lane.
#define SCALE_WORD(i) (((GLOBAL const uint *)(cell + SCALES_AT))[(i) * TILE + lane])
#define STORED_FLOAT(i) stored_float(SCALE_WORD((i) >> 1) >> 16 * ((i) & 1) & 0xFFFF)
#define STORED_BYTE(i) (SCALE_WORD((i) >> 2) >> 8 * ((i) & 3) & 255)

DEVICE float stored_float(uint bits)
{
#ifdef BF16_SCALES
    return FLOAT_OF_BITS(bits << 16);
#else
    return f16_to_f32(bits);
#endif
}

DEVICE Factors packed_factors(GLOBAL const uchar *cell, int lane, int b)
{
    Factors f;
#ifdef PAIRS
    f.scale = STORED_FLOAT(2 * b) * UNIT;
    f.high_scale = STORED_FLOAT(2 * b + 1) * UNIT;
#elif defined(FACTORS_AT) && !defined(SUB)
    f.scale = STORED_FLOAT(0) * UNIT * (float)(schar)STORED_BYTE(FACTORS_AT + b);
#else
    f.scale = STORED_FLOAT(b * BLOCK / VALUES) * UNIT; // in superblocks 0
#endif
#ifdef SUB
    f.low = (schar)STORED_BYTE(FACTORS_AT + 2 * b);
    f.high = (schar)STORED_BYTE(FACTORS_AT + 2 * b + 1);
#endif
#ifdef SUB_MINIMUM
    f.minimum = -STORED_FLOAT(1);
    f.low_minimum = (schar)STORED_BYTE(MINIMUMS_AT + 2 * b);
    f.high_minimum = (schar)STORED_BYTE(MINIMUMS_AT + 2 * b + 1);
#elif defined(MINIMUMS_AT)
    f.minimum = -(STORED_FLOAT(1) * (float)STORED_BYTE(MINIMUMS_AT + b));
#elif defined(MINIMUM)
    f.minimum = STORED_FLOAT(CHUNK / VALUES + b * BLOCK / VALUES);
#endif
    return f;
}
