// The same as avx512_begin.inl without an instruction set.

#pragma GCC push_options
namespace convoy {
namespace {
namespace set {
#include "kernels/simd/portable.inl"
#include "kernels/simd/common.inl"
