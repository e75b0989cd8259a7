// Closes what avx2_begin.inl or avx512_begin.inl opened; what follows is baseline code again.

}  // namespace set
}  // namespace
}  // namespace convoy
#pragma GCC pop_options
