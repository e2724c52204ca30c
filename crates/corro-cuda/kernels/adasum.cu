// Adasum of two vectors: their dot products, and their combination. For floats.
//
// The order of additions depends on a vector's length alone: not on the GPU, not on addresses, not on chance. So two ranks that
// hold the same two vectors compute the same bits. Dot products take two launches: `dots` leaves three sums for each
// chunk, `fold` adds those of each pair of vectors.

#include "element.cuh"

// What follows is laid out as in src/kernels/table.rs.
#define MOST_ENTRIES 96

struct Entry {
    u64 mine;
    u64 theirs;
    u64 count;    // elements
    u32 first;    // the number of its first chunk
    u32 aligned;  // whether both addresses are multiples of 16
};

struct Work {
    Entry entry[MOST_ENTRIES];
    u64 partial;  // address: three doubles for each chunk
    u64 sums;     // address: a.b, a.a and b.b for each entry
    u32 entries;
    u32 chunks;
    u32 lower;    // whether "mine" is a; otherwise it is b
};

// Accesses of each thread to a vector in one chunk, and how many of them are under way at a time.
#define ROUNDS 16
#define BESIDE (sizeof(Stored) == 2 ? 1 : 2)
#define CHUNK ((u64)ROUNDS * THREADS * LANES)

// Adds up what the threads of a block have; thread 0 stores the three sums.
__device__ inline void add_up(double (&sum)[3], u64 address) {
    __shared__ double shared[3][THREADS];
#pragma unroll
    for (u32 j = 0; j < 3; j++) shared[j][threadIdx.x] = sum[j];
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
#pragma unroll
            for (u32 j = 0; j < 3; j++) shared[j][threadIdx.x] += shared[j][threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x < 3) ((double*)address)[threadIdx.x] = shared[threadIdx.x][0];
    // The next chunk writes here again.
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) dots(const Work work) {
#pragma unroll 1
    for (u32 chunk = blockIdx.x; chunk < work.chunks; chunk += gridDim.x) {
        const u32 e = entry_of(work, chunk);
        const bool aligned = work.entry[e].aligned != 0;
        const u64 count = work.entry[e].count;
        const u64 a = work.lower ? work.entry[e].mine : work.entry[e].theirs;
        const u64 b = work.lower ? work.entry[e].theirs : work.entry[e].mine;
        u64 at = (u64)(chunk - work.entry[e].first) * CHUNK + threadIdx.x * LANES;
        double sum[3] = {0.0, 0.0, 0.0};
#pragma unroll 1
        for (u32 round = 0; round < ROUNDS; round += BESIDE) {
            Vector x[BESIDE], y[BESIDE];
#pragma unroll
            for (u32 k = 0; k < BESIDE; k++) {
                const u64 place = at + k * THREADS * LANES;
                const u32 n = there(place, count);
                x[k] = load(a + place * sizeof(Stored), n, aligned);
                y[k] = load(b + place * sizeof(Stored), n, aligned);
            }
#pragma unroll
            for (u32 k = 0; k < BESIDE; k++) {
#pragma unroll
                for (u32 i = 0; i < LANES; i++) {
                    // What is not there was loaded as 0, and adds nothing.
                    const double p = (double)Element::widen(x[k].element[i]), q = (double)Element::widen(y[k].element[i]);
                    sum[0] += p * q;
                    sum[1] += p * p;
                    sum[2] += q * q;
                }
            }
            at += BESIDE * THREADS * LANES;
        }
        add_up(sum, work.partial + (u64)chunk * 3 * sizeof(double));
    }
}

// One block for each entry.
extern "C" __global__ void __launch_bounds__(THREADS) fold(const Work work) {
    const u32 e = blockIdx.x;
    const u32 end = e + 1 < work.entries ? work.entry[e + 1].first : work.chunks;
    double sum[3] = {0.0, 0.0, 0.0};
    for (u32 chunk = work.entry[e].first + threadIdx.x; chunk < end; chunk += THREADS) {
#pragma unroll
        for (u32 j = 0; j < 3; j++) sum[j] += ((const double*)work.partial)[(u64)chunk * 3 + j];
    }
    add_up(sum, work.sums + (u64)e * 3 * sizeof(double));
}

// 1 where the vector is (nearly) zero: there is no direction to correct then. The limit is the root of the least normal number.
__device__ inline double coefficient(double dot, double norm) {
    return norm < __longlong_as_double(0x2000000000000000LL) ? 1.0 : 1.0 - dot / (2.0 * norm);
}

// mine = (1 - a.b / 2|mine|^2) mine + (1 - a.b / 2|theirs|^2) theirs
extern "C" __global__ void __launch_bounds__(THREADS) adasum(const Work work) {
#pragma unroll 1
    for (u32 chunk = blockIdx.x; chunk < work.chunks; chunk += gridDim.x) {
        const u32 e = entry_of(work, chunk);
        const bool aligned = work.entry[e].aligned != 0;
        const double* sums = (const double*)work.sums + (u64)e * 3;
        const double mine_norm = work.lower ? sums[1] : sums[2], their_norm = work.lower ? sums[2] : sums[1];
        const Number m = (Number)coefficient(sums[0], mine_norm), t = (Number)coefficient(sums[0], their_norm);
        u64 at = (u64)(chunk - work.entry[e].first) * CHUNK + threadIdx.x * LANES;
#pragma unroll 1
        for (u32 round = 0; round < ROUNDS; round += BESIDE) {
            Vector x[BESIDE], y[BESIDE];
            u32 n[BESIDE];
#pragma unroll
            for (u32 k = 0; k < BESIDE; k++) {
                const u64 place = at + k * THREADS * LANES;
                n[k] = there(place, work.entry[e].count);
                x[k] = load(work.entry[e].mine + place * sizeof(Stored), n[k], aligned);
                y[k] = load(work.entry[e].theirs + place * sizeof(Stored), n[k], aligned);
            }
#pragma unroll
            for (u32 k = 0; k < BESIDE; k++) {
#pragma unroll
                for (u32 i = 0; i < LANES; i++) {
                    const Number p = Element::widen(x[k].element[i]), q = Element::widen(y[k].element[i]);
                    x[k].element[i] = Element::narrow(m * p + t * q);
                }
                store(work.entry[e].mine + (at + k * THREADS * LANES) * sizeof(Stored), x[k], n[k], aligned);
            }
            at += BESIDE * THREADS * LANES;
        }
    }
}
