// What a segmentation network must beat: always background, and a logistic regression of each pixel's own channels.
#pragma once

#include "apps/common/climate_setup.h"

namespace convoy::apps {

struct ClimateBaselines {
  SegmentationScore background, regression;
};

/// Fits on pixels of the training images (all storm pixels drawn more often, weighted back) under the class weights of
/// `loss`, scores on the validation images.
ClimateBaselines climate_baselines(const ClimateSource& train, const ClimateSource& validation,
                                   const PixelLossAttrs& loss);

}  // namespace convoy::apps
