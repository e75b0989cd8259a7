// Tensor-core instructions of compute capability 8.0 and later, for 16-bit types with sums in f32: the fragments of
// mma.m16n8k16, ldmatrix that fills them from shared memory, and copies into shared memory that the thread need not
// wait for (PTX ISA, "Warp level matrix instructions", "cp.async"). On older devices they compile to nothing, and the
// kernels that use them refuse (runs_mma).
#pragma once

#include "kernels/device/cuda.h"

namespace convoy::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define CONVOY_MMA 1
#else
#define CONVOY_MMA 0
#endif

/// Address of shared memory as these instructions want it.
__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Four 8x8 matrices of 16-bit elements. Lane l names row l%8 of matrix l/8 (16 bytes, aligned); r[i] holds matrix i:
/// row lane/4, columns 2*(lane%4) and the next.
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t row) {
#if CONVOY_MMA
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
#endif
}
/// The same, each matrix transposed.
__device__ inline void load_transposed(uint32_t (&r)[4], uint32_t row) {
#if CONVOY_MMA
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
#endif
}

/// c += a * b; a: 16 x 16 as four matrices (rows 0-7 and 8-15 of columns 0-7, then of 8-15), b: 16 x 8 as two (rows
/// 0-7, 8-15, each stored by columns), c: rows lane/4 (c[0], c[1]) and lane/4 + 8, columns 2*(lane%4) and the next.
template <class T>
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if CONVOY_MMA
  if constexpr (std::is_same_v<T, bfloat>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/// Starts copying 16 (8) bytes to shared memory; zeros where not `valid`, and `from` is not read.
__device__ inline void copy_16(uint32_t to, const void* from, bool valid) {
#if CONVOY_MMA
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
#endif
}
__device__ inline void copy_8(uint32_t to, const void* from, bool valid) {
#if CONVOY_MMA
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0) : "memory");
#endif
}
/// Ends a group of copies; wait_copies<n> waits for all groups of this thread but the last n.
__device__ inline void commit_copies() {
#if CONVOY_MMA
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int n>
__device__ inline void wait_copies() {
#if CONVOY_MMA
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
}

/// 16 bytes to shared memory.
__device__ inline void store_16(uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ inline uint4 load_16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline void store_4(uint32_t to, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ inline uint32_t load_4(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ inline void store_8(uint32_t to, const uint2& v) {
  asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
__device__ inline uint2 load_8(uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}

}  // namespace convoy::cuda
