// One block of 32 of a product with a quantised weight: what the kernels of matmul_packed.cu and matmul_tile.cu share.
//
// source.py defines which parts a format has: PAIRS, SUB, MINIMUM, SUB_MINIMUM.

#define TILE 32 // outputs that lie side by side in packed weights
#define CHUNK_BLOCKS (CHUNK / BLOCK)
#define WORDS (BLOCK / 4)

// What the integers of a block are multiplied by. low and high: those of the two halves.
typedef struct {
    float scale;
#ifdef PAIRS
    float high_scale;
#endif
#ifdef SUB
    int low, high;
#endif
#ifdef MINIMUM
    float minimum;
#endif
#ifdef SUB_MINIMUM
    int low_minimum, high_minimum;
#endif
} Factors;

DEVICE int dot16(uint4 w, uint4 x, int sum)
{
    return DOT4(w.x, x.x, DOT4(w.y, x.y, DOT4(w.z, x.z, DOT4(w.w, x.w, sum))));
}

// Sums of the two halves of a block of activations, as quantise.cu puts them beside the scale.
DEVICE int low_sum(float2 about)
{
    return (short)(BITS_OF_FLOAT(about.y) & 0xFFFF);
}

DEVICE int high_sum(float2 about)
{
    return (int)BITS_OF_FLOAT(about.y) >> 16;
}

// An integer below 2^22 in magnitude. Conversions are slow on some devices.
DEVICE float small_float(int i)
{
    return FLOAT_OF_BITS((uint)(i + MAGIC_BITS)) - MAGIC;
}

// partial, with a block added to it: dots of its halves, scale and sums of the activations, factors of the weight.
DEVICE float with_block(float partial, int left, int right, float2 about, Factors f)
{
#ifdef SUB
    partial = FMA((float)(left * f.low + right * f.high), f.scale * about.x, partial); // up to 2^24
#elif defined(PAIRS)
    partial = FMA(small_float(left), f.scale * about.x, partial);
    partial = FMA(small_float(right), f.high_scale * about.x, partial);
#else
    partial = FMA(small_float(left + right), f.scale * about.x, partial);
#endif
#ifdef SUB_MINIMUM
    int sum = low_sum(about) * f.low_minimum + high_sum(about) * f.high_minimum;
    partial = FMA(f.minimum, about.x * small_float(sum), partial);
#elif defined(MINIMUM)
    partial = FMA(f.minimum, about.x * small_float(low_sum(about) + high_sum(about)), partial);
#endif
    return partial;
}
