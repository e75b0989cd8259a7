// Tables with one entry for each value of a tape or plan.
#pragma once

#include <ranges>
#include <vector>

#include "core/op.h"

namespace convoy {

/// The ids of all values in a list that is indexed by them.
template <class List>
auto ids_of(const List& values) {
  return std::views::iota(ValueId{0}, static_cast<ValueId>(values.size()));
}

/// A vector that is indexed by ValueId. Ids that are none of its values are not checked; `at` throws
/// std::out_of_range for them.
template <class T>
class ByValue {
 public:
  using reference = typename std::vector<T>::reference;
  using const_reference = typename std::vector<T>::const_reference;

  ByValue() = default;
  explicit ByValue(size_t values, const T& each = T()) : entries_(values, each) {}

  reference operator[](ValueId id) { return entries_[static_cast<size_t>(id)]; }
  const_reference operator[](ValueId id) const { return entries_[static_cast<size_t>(id)]; }
  reference at(ValueId id) { return entries_.at(static_cast<size_t>(id)); }
  const_reference at(ValueId id) const { return entries_.at(static_cast<size_t>(id)); }

  bool empty() const { return entries_.empty(); }
  /// Room for values that were added behind; entries that are there stay.
  void grow(size_t values, const T& each = T()) { entries_.resize(values, each); }

 private:
  std::vector<T> entries_;
};

}  // namespace convoy
