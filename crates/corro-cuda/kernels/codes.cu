// Codes of values: blocks of small integers with a scale each, to the bit as `levels` of corro-kernels makes them.
//
// A code is the scales of all blocks, then the integers of all blocks (8, 4 or 2 bits each, the first in the lowest bits). A warp takes
// a block at a time and holds it in registers: what is read is read once, and what is owed is added, what has arrived is added
// up, the code is made and what it leaves out is kept, all in one pass. A lane has four values that lie side by side, every 128.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define WARPS (THREADS / 32)
#define ALL 0xffffffffu
// Fours of values a lane holds at most: more would be registers that others need.
#define GROUPS 2

// What follows is laid out as in src/kernels/codes.rs.
#define MOST_ENTRIES 40
#define MOST_ARRIVED 15

struct Entry {
    u64 values;
    u64 rest;     // added to the values; what the code leaves out goes there. 0: nothing is kept
    u64 also;     // added to the values, and zero then. 0: there is none
    u64 code;
    u64 arrived;  // bytes, added to the address of every arrived code
    u64 key;      // of the noise
    u64 place;    // of the first value in the noise
    u64 count;    // values
    u32 first;    // the number of its first chunk
    u32 aligned;  // whether values, rest and also are multiples of 16
};

struct Work {
    u64 arrived[MOST_ARRIVED];  // codes of the same values, which are added
    u32 codes;                  // how many
    u32 entries;
    Entry entry[MOST_ENTRIES];
    u32 chunks;
    u32 block;  // values of a scale: a multiple of 32, at most 256
    u32 bits;
    u32 noisy;  // whether rounding is by chance
};

// Adding and taking away this number rounds to a whole one; in between, the low bits are that number in two's complement.
#define ROUND 12582912.0f
#define TINY 1e-30f
#define NOT_FINITE 0x7f800000u

// Which entry a chunk belongs to: the last one that begins at or before it.
__device__ inline u32 entry_of(const Work& work, u32 chunk) {
    u32 low = 0, high = work.entries;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (work.entry[middle].first <= chunk) low = middle; else high = middle;
    }
    return low;
}

// Four values, of which the first `count` are there.
__device__ inline void load(u64 address, u32 count, bool aligned, float (&value)[4]) {
    if (aligned && count == 4) {
        const float4 all = *(const float4*)address;
        value[0] = all.x, value[1] = all.y, value[2] = all.z, value[3] = all.w;
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) value[i] = i < count ? ((const float*)address)[i] : 0.0f;
    }
}

__device__ inline void store(u64 address, u32 count, bool aligned, const float (&value)[4]) {
    if (aligned && count == 4) {
        *(float4*)address = make_float4(value[0], value[1], value[2], value[3]);
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (i < count) ((float*)address)[i] = value[i];
    }
}

// The integers of four values, as bytes, from the place `at` on. Integers begin at a multiple of 4 bytes, and `at` is one of 4.
__device__ inline u32 read_integers(u64 integers, u64 at, u32 bits, u32 count) {
    if (bits == 8) {
        if (count == 4) return *(const u32*)(integers + at);
        u32 all = 0;
        for (u32 i = 0; i < count; i++) all |= (u32)((const u8*)integers)[at + i] << (8 * i);
        return all;
    }
    // Each to the top of its byte and down again, so that the sign comes along.
    u32 packed = 0, all = 0;
    if (bits == 2) packed = count ? ((const u8*)integers)[at / 4] : 0;
    else if (count > 2) packed = *(const u16*)(integers + at / 2);
    else if (count) packed = ((const u8*)integers)[at / 2];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const int top = (int)(packed << (32 - bits - i * bits));
        all |= ((u32)(top >> (32 - bits)) & 0xff) << (8 * i);
    }
    return all;
}

__device__ inline void write_integers(u64 integers, u64 at, u32 bits, u32 count, u32 all) {
    if (bits == 8) {
        if (count == 4) *(u32*)(integers + at) = all;
        else for (u32 i = 0; i < count; i++) ((u8*)integers)[at + i] = (u8)(all >> (8 * i));
        return;
    }
    u32 packed = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) packed |= (i < count ? all >> (8 * i) & ((1u << bits) - 1) : 0) << (i * bits);
    if (bits == 2) { if (count) ((u8*)integers)[at / 4] = (u8)packed; }
    else if (count > 2) *(u16*)(integers + at / 2) = (u16)packed;
    else if (count) ((u8*)integers)[at / 2] = (u8)packed;
}

__device__ inline float integer(u32 all, u32 i) { return (float)(signed char)(all >> (8 * i)); }

__device__ inline u32 mix(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

// Between -1/2 and 1/2, for the value `index` places after `first`.
__device__ inline float shift(u64 key, u64 first, u32 index) {
    const u32 high = (u32)(key >> 32) ^ (u32)(first >> 32);
    const u32 bits = mix(mix(((u32)first + index) ^ (u32)key) ^ high);
    return ((float)(bits >> 16) - 32767.5f) * (1.0f / 65536.0f);
}

__device__ inline u32 there(u32 at, u32 count) { return at >= count ? 0 : count - at < 4 ? count - at : 4; }

// The address of a block's scale, and that of the integers of all blocks.
__device__ inline u64 scale_at(u64 code, u64 begin, u32 block) { return code + begin / block * 4; }
__device__ inline u64 integers_at(u64 code, u64 count, u32 block) { return code + (count + block - 1) / block * 4; }

// Encodes the block that begins at `begin`.
__device__ inline void encode_block(const Work& work, const Entry& entry, u64 begin) {
    const u32 lane = threadIdx.x % 32;
    const u64 left = entry.count - begin;
    const u32 count = left < work.block ? (u32)left : work.block;
    const bool aligned = entry.aligned != 0;
    float value[GROUPS][4];
#pragma unroll
    for (u32 k = 0; k < GROUPS; k++) {
        const u32 at = (k * 32 + lane) * 4, n = there(at, count);
        load(entry.values + (begin + at) * 4, n, aligned, value[k]);
    }
    if (entry.also) {
#pragma unroll
        for (u32 k = 0; k < GROUPS; k++) {
            const u32 at = (k * 32 + lane) * 4, n = there(at, count);
            const u64 address = entry.also + (begin + at) * 4;
            float more[4];
            const float none[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            load(address, n, aligned, more);
#pragma unroll
            for (u32 i = 0; i < 4; i++) value[k][i] += more[i];
            store(address, n, aligned, none);
        }
    }
    if (entry.rest) {
#pragma unroll
        for (u32 k = 0; k < GROUPS; k++) {
            const u32 at = (k * 32 + lane) * 4, n = there(at, count);
            float more[4];
            load(entry.rest + (begin + at) * 4, n, aligned, more);
#pragma unroll
            for (u32 i = 0; i < 4; i++) value[k][i] += more[i];
        }
    }
#pragma unroll 1
    for (u32 c = 0; c < work.codes; c++) {
        const u64 code = work.arrived[c] + entry.arrived;
        const u64 integers = integers_at(code, entry.count, work.block);
        const float step = *(const float*)scale_at(code, begin, work.block);
#pragma unroll
        for (u32 k = 0; k < GROUPS; k++) {
            const u32 at = (k * 32 + lane) * 4, n = there(at, count);
            const u32 all = read_integers(integers, begin + at, work.bits, n);
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (i < n) value[k][i] += integer(all, i) * step;
        }
    }

    u32 largest = 0;
#pragma unroll
    for (u32 k = 0; k < GROUPS; k++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) largest = max(largest, __float_as_uint(value[k][i]) & 0x7fffffffu);
#pragma unroll
    for (u32 far = 16; far; far /= 2) largest = max(largest, __shfl_xor_sync(ALL, largest, far));

    const float norm = __uint_as_float(largest), top = (float)((1u << (work.bits - 1)) - 1);
    const bool poisoned = largest >= NOT_FINITE, empty = poisoned || norm < TINY;
    const float step = poisoned ? __uint_as_float(0x7fc00000u) : empty ? 0.0f : norm / top;
    const float inverse = empty ? 0.0f : top / norm;
    if (lane == 0) *(float*)scale_at(entry.code, begin, work.block) = step;
    const u64 integers = integers_at(entry.code, entry.count, work.block);
#pragma unroll
    for (u32 k = 0; k < GROUPS; k++) {
        const u32 at = (k * 32 + lane) * 4, n = there(at, count);
        u32 all = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float noise = work.noisy ? shift(entry.key, entry.place + begin, at + i) : 0.0f;
            const float rounded = fminf(fmaxf(value[k][i] * inverse + noise, -top), top) + ROUND;
            if (!empty) all |= (__float_as_uint(rounded) & 0xff) << (8 * i);
            if (poisoned) value[k][i] = 0.0f;
            else if (!empty) value[k][i] -= (rounded - ROUND) * step;
        }
        write_integers(integers, begin + at, work.bits, n, all);
        if (entry.rest) store(entry.rest + (begin + at) * 4, n, aligned, value[k]);
    }
}

// The values that a code says.
__device__ inline void decode_block(const Work& work, const Entry& entry, u64 begin) {
    const u32 lane = threadIdx.x % 32;
    const u64 left = entry.count - begin;
    const u32 count = left < work.block ? (u32)left : work.block;
    const u64 integers = integers_at(entry.code, entry.count, work.block);
    const float step = *(const float*)scale_at(entry.code, begin, work.block);
    u32 all[GROUPS];
#pragma unroll
    for (u32 k = 0; k < GROUPS; k++) {
        const u32 at = (k * 32 + lane) * 4;
        all[k] = read_integers(integers, begin + at, work.bits, there(at, count));
    }
#pragma unroll
    for (u32 k = 0; k < GROUPS; k++) {
        const u32 at = (k * 32 + lane) * 4;
        float value[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) value[i] = integer(all[k], i) * step;
        store(entry.values + (begin + at) * 4, there(at, count), entry.aligned != 0, value);
    }
}

// All warps of all blocks take the blocks of all entries in turn.
#define FOR_BLOCKS(function)                                                                            \
    _Pragma("unroll 1") for (u32 chunk = blockIdx.x; chunk < work.chunks; chunk += gridDim.x) {         \
        const Entry& entry = work.entry[entry_of(work, chunk)];                                         \
        const u64 begin = ((u64)(chunk - entry.first) * WARPS + threadIdx.x / 32) * work.block;         \
        if (begin >= entry.count) continue;                                                             \
        function(work, entry, begin);                                                                   \
    }

extern "C" __global__ void __launch_bounds__(THREADS) encode(const Work work) { FOR_BLOCKS(encode_block) }

extern "C" __global__ void __launch_bounds__(THREADS) decode(const Work work) { FOR_BLOCKS(decode_block) }
