// Hopper's asynchronous matrix products (PTX ISA, "Asynchronous warpgroup level matrix instructions"): 64 rows of a
// left operand in registers times columns that stay in shared memory, sums in f32. They exist in machine code for 9.0a
// alone; elsewhere these compile to nothing, and the kernels that use them refuse (runs_wgmma).
//
// The right operand lies in shared memory without swizzle: 16 bytes to a position and eight channels, positions one
// after the other, eight channels further in another plane. Any position is then a legal beginning, so that a
// convolution's tap is an offset.
#pragma once

#include "kernels/device/mma.h"

namespace convoy::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CONVOY_WGMMA 1
#else
#define CONVOY_WGMMA 0
#endif

/// Threads of a warpgroup; its first warp's number is a multiple of four.
constexpr int warpgroup = 128;

/// Warpgroups of one block that do different work share the registers out: what they hold from here on, in multiples of
/// eight.
template <int registers>
__device__ inline void take_registers() {
#if CONVOY_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
template <int registers>
__device__ inline void give_registers() {
#if CONVOY_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

/// One of a block's barriers 1 to 15: complete when `threads` threads have arrived, those that wait among them.
__device__ inline void arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_and_wait(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// A ring of stages in shared memory between threads that fill them and threads that empty them: the barriers that say
/// so, from 1 on, and a slot's neighbours.
template <int stages>
struct Ring {
  static constexpr int count = stages, next_barrier = 1 + 2 * stages;  ///< the first barrier that it leaves
  __host__ __device__ static constexpr int full(int slot) { return 1 + slot; }
  __host__ __device__ static constexpr int empty(int slot) { return 1 + stages + slot; }
  __host__ __device__ static constexpr int after(int slot) { return slot + 1 == stages ? 0 : slot + 1; }
  __host__ __device__ static constexpr int before(int slot) { return slot == 0 ? stages - 1 : slot - 1; }
};

/// What a block of a device of 9.0 may ask for.
constexpr int hopper_shared_bytes = 227 * 1024;

/// Where a right operand lies: `address` of its first position, and the bytes from eight positions or channels to the
/// next eight. With channels as the inner dimension, `leading` goes from plane to plane and `stride` from eight
/// positions to the next; with positions as the inner dimension it is the other way round.
struct Columns {
  uint32_t low, high;
  __device__ Columns(uint32_t address, uint32_t leading, uint32_t stride)
      : low(address >> 4 | leading >> 4 << 16), high(stride >> 4) {}
  /// So many positions (of sixteen bytes) further.
  __device__ Columns operator+(int positions) const {
    Columns moved = *this;
    moved.low += static_cast<uint32_t>(positions);
    return moved;
  }
};

/// Two operands of shared memory whose rows of 128 bytes are 64 channels of a position, turned in sixteens of bytes by
/// the row's last three bits (slot_128): `address` of the first row, which is a multiple of 1024 bytes, and the bytes
/// from 64 channels to the next 64.
struct TurnedRows {
  uint32_t low, high;
  __device__ TurnedRows(uint32_t address, uint32_t leading)
      : low(address >> 4 | leading >> 4 << 16), high(1024 >> 4 | 1u << 30) {}
  /// So many rows further: a channel's place in its row goes by the row's address, so that any row may be the first.
  __device__ TurnedRows operator+(int rows) const {
    TurnedRows moved = *this;
    moved.low += static_cast<uint32_t>(rows * 128 / 16);
    return moved;
  }
  /// Where channels are the inner dimension: so many sixteens of them further, of the same rows.
  __device__ TurnedRows sixteens(int steps) const {
    TurnedRows moved = *this;
    moved.low += static_cast<uint32_t>(steps * 32 / 16);
    return moved;
  }
};

/// The number of the caller's warpgroup, or warp, known to be the same for all threads of a warp: what follows from it
/// stays out of the threads' registers and branches.
__device__ inline int warpgroup_number() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warpgroup, 0);
}
__device__ inline int warp_number() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}

/// Before products read registers that other instructions wrote.
__device__ inline void products_begin() {
#if CONVOY_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/// Ends a group of products; wait_products<n> waits for all groups of this warpgroup but the last n.
__device__ inline void commit_products() {
#if CONVOY_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int n>
__device__ inline void wait_products() {
#if CONVOY_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
#endif
}
/// What this thread copied or stored to shared memory is seen by products that start behind the next barrier.
__device__ inline void show_to_products() {
#if CONVOY_WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#define CONVOY_SUMS_8(c, i)                                                                                   \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
      "+f"(c[i + 7])
#define CONVOY_WGMMA_24(type, turned)                                                                            \
  asm volatile("{ .reg .b64 d; mov.b64 d, {%16, %17}; wgmma.mma_async.sync.aligned.m64n24k16.f32." type "." type \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, d, 1, 1, 1, " turned "; }"          \
               : CONVOY_SUMS_8(c, 0), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11])                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high))
#define CONVOY_WGMMA_32(type, turned)                                                                             \
  asm volatile("{ .reg .b64 d; mov.b64 d, {%20, %21}; wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type  \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, d, 1, 1, 1, " turned \
               "; }"                                                                                              \
               : CONVOY_SUMS_8(c, 0), CONVOY_SUMS_8(c, 8)                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high))
#define CONVOY_WGMMA_64(type, turned)                                                                             \
  asm volatile("{ .reg .b64 d; mov.b64 d, {%36, %37}; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type  \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
               "%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, d, 1, 1, 1, " turned "; }"                           \
               : CONVOY_SUMS_8(c, 0), CONVOY_SUMS_8(c, 8), CONVOY_SUMS_8(c, 16), CONVOY_SUMS_8(c, 24)             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high))

#define CONVOY_TURNED_32(type)                                                         \
  asm volatile(                                                                        \
      "{ .reg .b64 d, e; mov.b64 d, {%16, %17}; mov.b64 e, {%18, %19}; "               \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                      \
      " {"                                                                             \
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, d, e, 1, 1, 1, 1, 1; }" \
      : CONVOY_SUMS_8(c, 0), CONVOY_SUMS_8(c, 8)                                       \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high))
#define CONVOY_TURNED_64(type)                                                                   \
  asm volatile(                                                                                  \
      "{ .reg .b64 d, e; mov.b64 d, {%32, %33}; mov.b64 e, {%34, %35}; "                         \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                \
      " {"                                                                                       \
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                   \
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, d, e, 1, 1, 1, 1, 1; }" \
      : CONVOY_SUMS_8(c, 0), CONVOY_SUMS_8(c, 8), CONVOY_SUMS_8(c, 16), CONVOY_SUMS_8(c, 24)     \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high))
#define CONVOY_TURNED_128(type)                                                                                     \
  asm volatile(                                                                                                     \
      "{ .reg .b64 d, e; mov.b64 d, {%64, %65}; mov.b64 e, {%66, %67}; "                                            \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                                  \
      " {"                                                                                                          \
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                      \
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"                                            \
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                                            \
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, d, e, 1, 1, 1, 1, 1; }"                    \
      : CONVOY_SUMS_8(c, 0), CONVOY_SUMS_8(c, 8), CONVOY_SUMS_8(c, 16), CONVOY_SUMS_8(c, 24), CONVOY_SUMS_8(c, 32), \
        CONVOY_SUMS_8(c, 40), CONVOY_SUMS_8(c, 48), CONVOY_SUMS_8(c, 56)                                            \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high))
#define CONVOY_TURNED_256(type)                                                                                       \
  asm volatile(                                                                                                       \
      "{ .reg .b64 d, e; mov.b64 d, {%128, %129}; mov.b64 e, {%130, %131}; "                                          \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                                    \
      " {"                                                                                                            \
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                                        \
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"                                              \
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                                              \
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"                                              \
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"                                              \
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"                                              \
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"                                  \
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, d, e, 1, 1, 1, 1, 1; }"      \
      : CONVOY_SUMS_8(c, 0), CONVOY_SUMS_8(c, 8), CONVOY_SUMS_8(c, 16), CONVOY_SUMS_8(c, 24), CONVOY_SUMS_8(c, 32),   \
        CONVOY_SUMS_8(c, 40), CONVOY_SUMS_8(c, 48), CONVOY_SUMS_8(c, 56), CONVOY_SUMS_8(c, 64), CONVOY_SUMS_8(c, 72), \
        CONVOY_SUMS_8(c, 80), CONVOY_SUMS_8(c, 88), CONVOY_SUMS_8(c, 96), CONVOY_SUMS_8(c, 104),                      \
        CONVOY_SUMS_8(c, 112), CONVOY_SUMS_8(c, 120)                                                                  \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high))

#define CONVOY_INNER_144(type)                                                                                         \
  asm volatile(                                                                                                        \
      "{ .reg .b64 d, e; mov.b64 d, {%72, %73}; mov.b64 e, {%74, %75}; "                                               \
      "wgmma.mma_async.sync.aligned.m64n144k16.f32." type "." type                                                     \
      " {"                                                                                                             \
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"                         \
      "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"               \
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71}, d, e, 1, 1, " \
      "1, 0, 0; }"                                                                                                     \
      : CONVOY_SUMS_8(c, 0), CONVOY_SUMS_8(c, 8), CONVOY_SUMS_8(c, 16), CONVOY_SUMS_8(c, 24), CONVOY_SUMS_8(c, 32),    \
        CONVOY_SUMS_8(c, 40), CONVOY_SUMS_8(c, 48), CONVOY_SUMS_8(c, 56), CONVOY_SUMS_8(c, 64)                         \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high))

/// c += a * b. Left: 16 rows to each of four warps, as in multiply_add (mma.h); c: rows lane/4 (c[4*j], c[4*j + 1]) and
/// lane/4 + 8 of them, columns 8*j + 2*(lane%4) and the next. 64 positions as columns, channels as the inner dimension:
template <class T>
__device__ inline void multiply_positions(float (&c)[32], const uint32_t (&a)[4], const Columns& b) {
#if CONVOY_WGMMA
  if constexpr (std::is_same_v<T, bfloat>)
    CONVOY_WGMMA_64("bf16", "0");
  else
    CONVOY_WGMMA_64("f16", "0");
#endif
}
/// 32 channels as columns, positions as the inner dimension.
template <class T>
__device__ inline void multiply_channels(float (&c)[16], const uint32_t (&a)[4], const Columns& b) {
#if CONVOY_WGMMA
  if constexpr (std::is_same_v<T, bfloat>)
    CONVOY_WGMMA_32("bf16", "1");
  else
    CONVOY_WGMMA_32("f16", "1");
#endif
}
/// The same with 24 columns.
template <class T>
__device__ inline void multiply_rows(float (&c)[12], const uint32_t (&a)[4], const Columns& b) {
#if CONVOY_WGMMA
  if constexpr (std::is_same_v<T, bfloat>)
    CONVOY_WGMMA_24("bf16", "1");
  else
    CONVOY_WGMMA_24("f16", "1");
#endif
}

/// 64 channels of a as rows, so many of b as columns (twice as many as there are sums to a thread), sixteen positions
/// as the inner dimension.
template <class T, int sums>
__device__ inline void multiply_turned(float (&c)[sums], const TurnedRows& a, const TurnedRows& b) {
  static_assert(sums == 16 || sums == 32 || sums == 64 || sums == 128);
#if CONVOY_WGMMA
  constexpr bool bf16 = std::is_same_v<T, bfloat>;
  if constexpr (sums == 16 && bf16)
    CONVOY_TURNED_32("bf16");
  else if constexpr (sums == 16)
    CONVOY_TURNED_32("f16");
  else if constexpr (sums == 32 && bf16)
    CONVOY_TURNED_64("bf16");
  else if constexpr (sums == 32)
    CONVOY_TURNED_64("f16");
  else if constexpr (sums == 64 && bf16)
    CONVOY_TURNED_128("bf16");
  else if constexpr (sums == 64)
    CONVOY_TURNED_128("f16");
  else if constexpr (bf16)
    CONVOY_TURNED_256("bf16");
  else
    CONVOY_TURNED_256("f16");
#endif
}

/// 64 rows of a, 144 rows of b as columns, sixteen channels as the inner dimension.
template <class T>
__device__ inline void multiply_inner(float (&c)[72], const TurnedRows& a, const TurnedRows& b) {
#if CONVOY_WGMMA
  if constexpr (std::is_same_v<T, bfloat>)
    CONVOY_INNER_144("bf16");
  else
    CONVOY_INNER_144("f16");
#endif
}

#undef CONVOY_SUMS_8
#undef CONVOY_WGMMA_24
#undef CONVOY_WGMMA_32
#undef CONVOY_WGMMA_64
#undef CONVOY_TURNED_32
#undef CONVOY_TURNED_64
#undef CONVOY_TURNED_128
#undef CONVOY_TURNED_256
#undef CONVOY_INNER_144

}  // namespace convoy::cuda
