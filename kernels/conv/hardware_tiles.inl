// The tile registers of the CPU, for tile_direct.inl and tile_weights.inl. Included for AMX-BF16.

/// The tile registers themselves; configured for the time a kernel runs on a thread.
struct HardwareTiles : TileLines {
  struct Scope {
    Scope() { _tile_loadconfig(&tile_config); }
    ~Scope() { _tile_release(); }
    Scope(const Scope&) = delete;
  };
  // The instructions name their registers: no way around spelling them out.
  template <int tile>
  static void load(const void* from, int64_t pitch) {
    if constexpr (tile == 0)
      _tile_loadd(0, from, pitch);
    else if constexpr (tile == 1)
      _tile_loadd(1, from, pitch);
    else if constexpr (tile == 2)
      _tile_loadd(2, from, pitch);
    else if constexpr (tile == 3)
      _tile_loadd(3, from, pitch);
    else if constexpr (tile == 4)
      _tile_loadd(4, from, pitch);
    else if constexpr (tile == 5)
      _tile_loadd(5, from, pitch);
    else if constexpr (tile == 6)
      _tile_loadd(6, from, pitch);
    else
      _tile_loadd(7, from, pitch);
  }
  /// The same without a place in the first cache for what will not be read again soon.
  template <int tile>
  static void stream(const void* from, int64_t pitch) {
    if constexpr (tile == 4)
      _tile_stream_loadd(4, from, pitch);
    else if constexpr (tile == 5)
      _tile_stream_loadd(5, from, pitch);
    else if constexpr (tile == 6)
      _tile_stream_loadd(6, from, pitch);
    else
      _tile_stream_loadd(7, from, pitch);
  }
  template <int tile>
  static void store(void* to, int64_t pitch) {
    if constexpr (tile == 0)
      _tile_stored(0, to, pitch);
    else if constexpr (tile == 1)
      _tile_stored(1, to, pitch);
    else if constexpr (tile == 2)
      _tile_stored(2, to, pitch);
    else if constexpr (tile == 3)
      _tile_stored(3, to, pitch);
    else
      _tile_stored(4, to, pitch);
  }
  template <int sum, int a, int b>
  static void multiply_add() {
    if constexpr (sum == 0)
      _tile_dpbf16ps(0, 4, 6);
    else if constexpr (sum == 1)
      _tile_dpbf16ps(1, 4, 7);
    else if constexpr (sum == 2)
      _tile_dpbf16ps(2, 5, 6);
    else
      _tile_dpbf16ps(3, 5, 7);
  }
};
