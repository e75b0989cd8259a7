// Opens the part of a file that is compiled for AVX2, FMA and F16C: target, namespaces, vector type. set_end.inl closes
// it. A pragma, not -m flags for the file: one binary runs on all x86-64, so what stands outside of the part, the list
// of kernels that asks the CPU, and what headers bring along, which the linker shares between files, must be baseline
// code. So all headers are included ahead of this file, and none inside of the part. tests/isa_rules.sh reads the
// machine code of the files named *_avx2*, and knows ours by the namespace.

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx2.inl"
#include "kernels/simd/common.inl"
