// The same as avx2_begin.inl for AVX-512 F; tests/isa_rules.sh holds files named *_avx512* to Foundation. A file that
// needs more instructions says so in a pragma of its own around this part, which adds to it.

#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma,f16c")
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/avx512.inl"
#include "kernels/simd/common.inl"
