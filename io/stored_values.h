// Values of an HDF5 data set read from where they lie in the file, without the library, which lets one thread at a time
// do anything: many threads then read and inflate at once. Covers what most files hold: values in one piece, or chunks
// that are plain, deflated, or shuffled and deflated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace convoy {

/// Where values lie. Extents are in elements, outermost dimension first.
struct StoredValues {
  struct Piece {
    std::vector<int64_t> first;               ///< its first element
    int64_t offset = 0, bytes = 0;            ///< in the file, as stored
    bool shuffled = false, deflated = false;  ///< HDF5's filters, in the order of writing
  };
  std::vector<int64_t> piece;  ///< of every piece; those at the end may lie beyond the data set in part
  int64_t element = 0;         ///< bytes
  std::vector<Piece> pieces;   ///< all that the box meets
};

/// Reads the box of `count` elements from `start` into `out`, row-major. `file` is a descriptor open for reading; any
/// number of threads may read from it. `what` names file and data set. Throws Error(data) where the file ends early or
/// a piece does not inflate to its extents.
void read_stored(int file, const std::string& what, const StoredValues& stored, std::span<const int64_t> start,
                 std::span<const int64_t> count, std::span<std::byte> out);

}  // namespace convoy
