// The direct convolutions on pairs of a 16-bit type, ready for an engine; included after avx512_begin.inl.

#include "kernels/conv/register_block.inl"
#include "kernels/conv/pool_window.inl"
#include "kernels/conv/unpooled_rows.inl"
#include "kernels/conv/direct_plan.inl"
#include "kernels/conv/direct_pack.inl"
#include "kernels/conv/direct.inl"
#include "kernels/conv/direct_weights.inl"
#include "kernels/conv/pair_words.inl"
#include "kernels/conv/pair_weights.inl"
