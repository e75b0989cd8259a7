#include "apps/common/iou.h"

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
  Confusion own;
  own.add(truth, predicted);
  pooled.add(own);
  for (int k = 0; k < Confusion::classes; ++k) sum[static_cast<size_t>(k)] += own.iou(k);
  ++samples;
}

}  // namespace convoy::apps
