// What an element is, and what can be done with one: the arithmetic of corro-kernels (src/element.rs), bit for bit except for
// the sign and payload of a NaN. Compiled once for each element type, which is named by the option -DELEMENT.
//
// No header of CUDA is included, so that NVRTC alone can compile this: 16-bit floats are converted by one instruction
// (binary16) or by integers (bfloat16). Multiplications and additions must not be fused: -fmad=false.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

// `x` toward zero, kept within what a T can hold; a NaN is 0. This is Rust's `as`.
template <typename T>
__device__ inline T saturated(double x) {
    const bool is_signed = (T)-1 < (T)0;
    const T least = is_signed ? (T)((u64)1 << (8 * sizeof(T) - 1)) : (T)0;
    const T most = (T)~least;
    if (x != x) return 0;
    if (x <= (double)least) return least;
    if (x >= (double)most) return most;
    return (T)x;
}

// Each element says how many accesses of 16 bytes a thread has under way at a time (DEPTH): what gradients are made of wants
// several; each of them fills registers, and makes the PTX longer.

// Wide is unsigned and no smaller than int, so that nothing is promoted to a type in which overflow is undefined.
template <typename T, typename Wide>
struct Integer {
    enum { DEPTH = 1 };
    typedef T Stored;
    typedef T Number;
    __device__ static Number widen(Stored x) { return x; }
    __device__ static Stored narrow(Number x) { return x; }
    __device__ static Number add(Number a, Number b) { return (T)((Wide)a + (Wide)b); }
    __device__ static Number mul(Number a, Number b) { return (T)((Wide)a * (Wide)b); }
    __device__ static Number min(Number a, Number b) { return b < a ? b : a; }
    __device__ static Number max(Number a, Number b) { return b > a ? b : a; }
    __device__ static Number scale(Number x, double factor) { return saturated<T>(factor * (double)x); }
};

__device__ inline u32 bits_of(float x) { return __float_as_uint(x); }
__device__ inline u64 bits_of(double x) { return (u64)__double_as_longlong(x); }
__device__ inline float of_bits(u32 x) { return __uint_as_float(x); }
__device__ inline double of_bits(u64 x) { return __longlong_as_double((i64)x); }

// In min and max a NaN wins, and -0.0 is less than +0.0; see there why these bits do that.
template <typename T>
struct Real {
    typedef T Number;
    __device__ static T add(T a, T b) { return a + b; }
    __device__ static T mul(T a, T b) { return a * b; }
    __device__ static T min(T a, T b) { return of_bits(bits_of(a < b ? a : b) | bits_of(b < a ? b : a)); }
    __device__ static T max(T a, T b) {
        const T number = of_bits(bits_of(a > b ? a : b) & bits_of(b > a ? b : a));
        return a != a || b != b ? a + b : number;
    }
    __device__ static T scale(T x, double factor) { return x * (T)factor; }
};

template <typename T>
struct Float : Real<T> {
    enum { DEPTH = 4 };
    typedef T Stored;
    __device__ static T widen(Stored x) { return x; }
    __device__ static Stored narrow(T x) { return x; }
};

struct Binary16 : Real<float> {
    enum { DEPTH = 2 };
    typedef u16 Stored;
    __device__ static float widen(Stored bits) {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
    __device__ static Stored narrow(float x) {
        Stored bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return bits;
    }
};

struct Bfloat16 : Real<float> {
    enum { DEPTH = 2 };
    typedef u16 Stored;
    __device__ static float widen(Stored bits) { return of_bits((u32)bits << 16); }
    __device__ static Stored narrow(float x) {
        const u32 bits = bits_of(x);
        // Half of what is cut off, less one where the last bit kept is even: the carry rounds. A NaN must not be carried.
        const u32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        const u32 quiet = (bits >> 16) | 0x40;
        return (Stored)(x != x ? quiet : rounded);
    }
};

// A bool: anything but 0 is true when read, and 0 or 1 is written. It can't be scaled; the host refuses that.
struct Truth {
    enum { DEPTH = 1 };
    typedef u8 Stored;
    typedef u8 Number;
    __device__ static Number widen(Stored x) { return x != 0; }
    __device__ static Stored narrow(Number x) { return x; }
    __device__ static Number add(Number a, Number b) { return a | b; }
    __device__ static Number mul(Number a, Number b) { return a & b; }
    __device__ static Number min(Number a, Number b) { return a & b; }
    __device__ static Number max(Number a, Number b) { return a | b; }
    __device__ static Number scale(Number x, double) { return x; }
};

typedef Integer<u8, u32> Element_uint8;
typedef Integer<i8, u32> Element_int8;
typedef Integer<u16, u32> Element_uint16;
typedef Integer<i16, u32> Element_int16;
typedef Integer<u32, u32> Element_uint32;
typedef Integer<i32, u32> Element_int32;
typedef Integer<u64, u64> Element_uint64;
typedef Integer<i64, u64> Element_int64;
typedef Binary16 Element_float16;
typedef Bfloat16 Element_bfloat16;
typedef Float<float> Element_float32;
typedef Float<double> Element_float64;
typedef Truth Element_bool;

#define JOINED(a, b) a##b
#define NAMED(name) JOINED(Element_, name)
typedef NAMED(ELEMENT) Element;
typedef Element::Stored Stored;
typedef Element::Number Number;

// Threads of a block. The host launches with the same number.
#define THREADS 256
// Elements of one access to memory.
#define LANES ((u32)(16 / sizeof(Stored)))
#define DEPTH ((u32)Element::DEPTH)

// 16 bytes, as they lie in memory.
union Vector {
    uint4 whole;
    Stored element[LANES];
};

// `count` elements, of which there are at most LANES. In one access if `aligned` says that the address allows it.
__device__ inline Vector load(u64 address, u32 count, bool aligned) {
    Vector vector;
    if (aligned && count == LANES) {
        vector.whole = *(const uint4*)address;
    } else {
#pragma unroll
        for (u32 i = 0; i < LANES; i++) vector.element[i] = i < count ? ((const Stored*)address)[i] : (Stored)0;
    }
    return vector;
}

__device__ inline void store(u64 address, Vector vector, u32 count, bool aligned) {
    if (aligned && count == LANES) {
        *(uint4*)address = vector.whole;
    } else {
#pragma unroll
        for (u32 i = 0; i < LANES; i++)
            if (i < count) ((Stored*)address)[i] = vector.element[i];
    }
}

// How many of the elements from `at` on are there, at most LANES.
__device__ inline u32 there(u64 at, u64 end) { return at >= end ? 0 : end - at < LANES ? (u32)(end - at) : LANES; }

// Which entry of a table a chunk belongs to: the last one that begins at or before it. Empty entries own no chunk.
template <typename Table>
__device__ inline u32 entry_of(const Table& table, u32 chunk) {
    u32 low = 0, high = table.entries;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (table.entry[middle].first <= chunk) low = middle; else high = middle;
    }
    return low;
}
