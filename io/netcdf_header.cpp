#include "io/netcdf_header.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/error.h"

namespace convoy {
namespace {

/// Reads the header's grammar; everything is big-endian, and names and values fill whole words of four bytes.
class Header {
 public:
  explicit Header(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    char magic[4] = {};
    file_.read(magic, 4);
    version_ = magic[3];
    if (std::memcmp(magic, "CDF", 3) != 0 || (version_ != 1 && version_ != 2 && version_ != 5)) damaged_ = true;
  }

  std::optional<ClassicLayout> layout() {
    if (damaged_) return std::nullopt;
    count();  // records
    std::vector<int64_t> extents;
    list([&] {
      skip_text();
      extents.push_back(count());
    });
    attributes();
    ClassicLayout layout;
    list([&] { layout.variables.push_back(variable(extents)); });
    if (!file_) fail_data(path_ + ": ends inside of its header: truncated");
    if (damaged_) return std::nullopt;
    const auto recorded =
        std::count_if(layout.variables.begin(), layout.variables.end(), [](const Variable& v) { return v.recorded; });
    // A lone variable's records are not padded.
    for (const Variable& v : layout.variables)
      if (v.recorded) layout.record_bytes += recorded == 1 ? v.bytes : padded(v.bytes);
    return layout;
  }

 private:
  using Variable = ClassicLayout::Variable;
  static constexpr int64_t most_elements = 1 << 20, most_rank = 1024;  ///< of lists and variables that are meant

  static double padded(double bytes) { return 4 * std::ceil(bytes / 4); }
  int64_t number(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(file_.get());
    return static_cast<int64_t>(value);
  }
  int64_t count() { return number(version_ == 5 ? 8 : 4); }
  void skip(double bytes) {
    if (!(bytes >= 0 && bytes < 0x1p40)) damaged_ = true;
    if (!damaged_) file_.seekg(static_cast<std::streamoff>(padded(bytes)), std::ios::cur);
  }
  void skip_text() { skip(double(count())); }
  /// Elements behind a tag; an absent list has none.
  template <class F>
  void list(F&& element) {
    number(4);
    const int64_t elements = count();
    if (elements > most_elements) damaged_ = true;
    for (int64_t left = elements; left > 0 && file_ && !damaged_; --left) element();
  }
  void attributes() {
    list([&] {
      skip_text();
      const double width = width_of(number(4));
      skip(width * double(count()));
    });
  }
  /// Bytes of a value of an external type.
  double width_of(int64_t type) {
    constexpr int widths[] = {0, 1, 1, 2, 4, 4, 8, 1, 2, 4, 8, 8};
    if (type < 1 || type >= std::ssize(widths)) damaged_ = true;
    return damaged_ ? 0 : widths[type];
  }
  Variable variable(const std::vector<int64_t>& extents) {
    Variable v;
    double elements = 1;
    skip_text();
    const int64_t rank = count();
    if (rank > most_rank) damaged_ = true;
    for (int64_t i = 0; i < rank && file_ && !damaged_; ++i) {
      const int64_t dimension = count();
      if (dimension < 0 || dimension >= std::ssize(extents)) {
        damaged_ = true;
        break;
      }
      const int64_t extent = extents[static_cast<size_t>(dimension)];
      if (i == 0 && extent == 0)
        v.recorded = true;
      else
        elements *= double(extent);
    }
    attributes();
    v.bytes = width_of(number(4)) * elements;
    count();  // the same, padded, where it fits
    v.begin = double(number(version_ == 1 ? 4 : 8));
    return v;
  }

  const std::string& path_;
  std::ifstream file_;
  int version_ = 0;
  bool damaged_ = false;
};

}  // namespace

std::optional<ClassicLayout> classic_netcdf_layout(const std::string& path) {
  return Header(path).layout();
}

}  // namespace convoy
