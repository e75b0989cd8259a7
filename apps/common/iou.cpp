#include "apps/common/iou.h"

#include <algorithm>

namespace convoy::apps {

void Confusion::add(std::span<const uint8_t> truth, std::span<const uint8_t> predicted) {
  for (size_t i = 0; i < truth.size(); ++i)
    if (truth[i] < classes && predicted[i] < classes) ++counts_[truth[i]][predicted[i]];
}

void Confusion::add(const Confusion& other) {
  for (size_t t = 0; t < classes; ++t)
    for (size_t p = 0; p < classes; ++p) counts_[t][p] += other.counts_[t][p];
}

double Confusion::iou(int k) const {
  int64_t all = 0;
  for (int other = 0; other < classes; ++other) all += count(k, other) + (other == k ? 0 : count(other, k));
  return all == 0 ? 1.0 : double(count(k, k)) / double(all);
}

double Confusion::mean_iou() const {
  return (iou(0) + iou(1) + iou(2)) / 3;
}

void SegmentationScore::add(std::span<const uint8_t> truth, std::span<const uint8_t> predicted) {
  // 0/0 is 1 for a class, not for an image that says nothing of any.
  if (std::none_of(truth.begin(), truth.end(), [](uint8_t k) { return k < Confusion::classes; })) return;
  Confusion own;
  own.add(truth, predicted);
  pooled.add(own);
  for (int k = 0; k < Confusion::classes; ++k) sum[static_cast<size_t>(k)] += own.iou(k);
  ++samples;
}

void SegmentationScore::add(const SegmentationScore& other) {
  pooled.add(other.pooled);
  for (size_t k = 0; k < sum.size(); ++k) sum[k] += other.sum[k];
  samples += other.samples;
}

void Confusion::add_ranks(Communicator& ranks) {
  std::array<double, classes * classes> counts{};  // exact to 2^53 pixels
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = double(counts_[i / classes][i % classes]);
  ranks.all_reduce_sum(std::span<double>(counts));
  for (size_t i = 0; i < counts.size(); ++i) counts_[i / classes][i % classes] = static_cast<int64_t>(counts[i]);
}

void SegmentationScore::add_ranks(Communicator& ranks) {
  pooled.add_ranks(ranks);
  std::array<double, Confusion::classes + 1> sums{};
  std::copy(sum.begin(), sum.end(), sums.begin());
  sums.back() = double(samples);
  ranks.all_reduce_sum(std::span<double>(sums));
  std::copy_n(sums.begin(), sum.size(), sum.begin());
  samples = static_cast<int64_t>(sums.back());
}

}  // namespace convoy::apps
