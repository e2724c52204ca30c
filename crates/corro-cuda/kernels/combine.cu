// Reduces several sources into several destinations, piece by piece: the one kernel behind pack, reduce, scale and unpack.
//
// A piece is a range of elements at the same offset of every source; it goes to the same offset of every destination. Pieces
// are cut into chunks, which blocks take in turn, so that one launch serves pieces of any size. A thread has several
// accesses of 16 bytes under way at a time; all values of a place are read before it is written, so that a destination may be
// a source.

#include "element.cuh"

// What follows is laid out as in src/kernels/table.rs.
#define MOST_ENTRIES 96
#define MOST_PLACES 16

struct Entry {
    u64 from;     // bytes, added to every source
    u64 to;       // bytes, added to every destination
    u64 count;    // elements
    u32 first;    // the number of its first chunk
    u32 aligned;  // whether all its addresses are multiples of 16
};

struct Work {
    u64 source[MOST_PLACES];
    u64 destination[MOST_PLACES];
    Entry entry[MOST_ENTRIES];
    double prescale;   // of each source, rounded before anything is combined
    double postscale;  // of the result
    u32 sources;
    u32 destinations;
    u32 entries;
    u32 chunks;
    u32 op;
    u32 rounds_first;  // whether the result is rounded before it is scaled, and then once more
};

enum Op { SUM = 0, PRODUCT = 1, MIN = 2, MAX = 3, TAKE = 4 };

#define CHUNK (THREADS * DEPTH * LANES)

#define FOR_ALL                                    \
    _Pragma("unroll") for (u32 k = 0; k < DEPTH; k++) \
        _Pragma("unroll") for (u32 i = 0; i < LANES; i++)

__device__ inline void apply(u32 op, Number (&value)[DEPTH][LANES], const Number (&next)[DEPTH][LANES]) {
    switch (op) {
        case SUM: FOR_ALL value[k][i] = Element::add(value[k][i], next[k][i]); break;
        case PRODUCT: FOR_ALL value[k][i] = Element::mul(value[k][i], next[k][i]); break;
        case MIN: FOR_ALL value[k][i] = Element::min(value[k][i], next[k][i]); break;
        case MAX: FOR_ALL value[k][i] = Element::max(value[k][i], next[k][i]); break;
        default: FOR_ALL value[k][i] = next[k][i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) combine(const Work work) {
#pragma unroll 1
    for (u32 chunk = blockIdx.x; chunk < work.chunks; chunk += gridDim.x) {
        const u32 e = entry_of(work, chunk);
        const bool aligned = work.entry[e].aligned != 0;
        const u64 begin = (u64)(chunk - work.entry[e].first) * CHUNK + threadIdx.x * LANES;
        u32 count[DEPTH];
#pragma unroll
        for (u32 k = 0; k < DEPTH; k++) count[k] = there(begin + k * THREADS * LANES, work.entry[e].count);

        Number value[DEPTH][LANES];
#pragma unroll 1
        for (u32 s = 0; s < work.sources; s++) {
            const u64 at = work.source[s] + work.entry[e].from + begin * sizeof(Stored);
            Vector vector[DEPTH];
#pragma unroll
            for (u32 k = 0; k < DEPTH; k++) vector[k] = load(at + k * THREADS * 16, count[k], aligned);
            Number next[DEPTH][LANES];
            FOR_ALL next[k][i] = Element::widen(vector[k].element[i]);
            if (work.prescale != 1.0) {
                FOR_ALL next[k][i] = Element::widen(Element::narrow(Element::scale(next[k][i], work.prescale)));
            }
            apply(s == 0 ? (u32)TAKE : work.op, value, next);
        }

        if (work.rounds_first) {
            FOR_ALL value[k][i] = Element::widen(Element::narrow(value[k][i]));
        }
        if (work.postscale != 1.0) {
            FOR_ALL value[k][i] = Element::scale(value[k][i], work.postscale);
        }
        Vector result[DEPTH];
        FOR_ALL result[k].element[i] = Element::narrow(value[k][i]);
#pragma unroll 1
        for (u32 d = 0; d < work.destinations; d++) {
            const u64 at = work.destination[d] + work.entry[e].to + begin * sizeof(Stored);
#pragma unroll
            for (u32 k = 0; k < DEPTH; k++) store(at + k * THREADS * 16, result[k], count[k], aligned);
        }
    }
}
