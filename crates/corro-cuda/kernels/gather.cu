// Copies many pieces in one launch: what packs tensors into one buffer, and unpacks them again.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// What follows is laid out as in src/kernels/table.rs.
#define MOST_ENTRIES 96
#define THREADS 256
#define DEPTH 4
#define CHUNK (THREADS * DEPTH * 16)

struct Entry {
    u64 from;
    u64 to;
    u64 bytes;
    u32 first;  // the number of its first chunk
    u32 width;  // bytes of one access: both addresses are multiples of it
};

struct Work {
    Entry entry[MOST_ENTRIES];
    u32 entries;
    u32 chunks;
};

template <typename T>
__device__ inline void copy(u64 from, u64 to, u32 count) {
    for (u32 i = threadIdx.x; i < count; i += THREADS) ((T*)to)[i] = ((const T*)from)[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) gather(const Work work) {
#pragma unroll 1
    for (u32 chunk = blockIdx.x; chunk < work.chunks; chunk += gridDim.x) {
        u32 e = 0, high = work.entries;
        while (high - e > 1) {
            const u32 middle = (e + high) / 2;
            if (work.entry[middle].first <= chunk) e = middle; else high = middle;
        }
        const u64 begin = (u64)(chunk - work.entry[e].first) * CHUNK;
        const u64 from = work.entry[e].from + begin, to = work.entry[e].to + begin;
        const u64 left = work.entry[e].bytes - begin;
        const u32 bytes = left < CHUNK ? (u32)left : CHUNK;
        const u32 width = work.entry[e].width;
        if (width == 16 && bytes == CHUNK) {
            // All loads before the first store: the compiler can't know that they do not overlap.
            uint4 vector[DEPTH];
#pragma unroll
            for (u32 k = 0; k < DEPTH; k++) vector[k] = ((const uint4*)from)[threadIdx.x + k * THREADS];
#pragma unroll
            for (u32 k = 0; k < DEPTH; k++) ((uint4*)to)[threadIdx.x + k * THREADS] = vector[k];
            continue;
        }
        const u32 whole = bytes / width * width;
        if (width == 16) copy<uint4>(from, to, whole / 16);
        else if (width == 4) copy<u32>(from, to, whole / 4);
        else copy<u8>(from, to, whole);
        copy<u8>(from + whole, to + whole, bytes - whole);
    }
}
