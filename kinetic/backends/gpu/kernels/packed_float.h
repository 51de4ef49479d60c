// Float weights in the packed layout (packed.py): words of 16 bytes of 32 outputs side by side. NUMBER is defined where
// elements have 16 bits, and makes a float of them.

#define TILE 32
#define SPAN 32 // elements that are read at a time
#define PER_WORD (16 / BYTES)
#define CELL (CHUNK * BYTES * TILE)

// The elements of a word of 16 bytes.
DEVICE void elements_of(float *values, uint4 word)
{
    uint parts[4];
    parts[0] = word.x, parts[1] = word.y, parts[2] = word.z, parts[3] = word.w;
    UNROLL
    for (int i = 0; i < 4; i++) {
#ifdef NUMBER
        values[2 * i] = NUMBER(parts[i] & 0xFFFF);
        values[2 * i + 1] = NUMBER(parts[i] >> 16);
#else
        values[i] = FLOAT_OF_BITS(parts[i]);
#endif
    }
}
