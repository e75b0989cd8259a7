// Running means and variances of batch norm taken again from whole images.
#pragma once

#include <memory>

#include "apps/common/interruption.h"
#include "core/communicator.h"
#include "io/loader.h"
#include "models/program.h"

namespace convoy::apps {

/// Training's running statistics are moving averages over weights that have changed since, and over crops, half of
/// which may be chosen for what is on them; evaluation sees whole images and the weights as they are. This replaces
/// them by the means and variances over `count` samples of `images`, the first of the shuffled order of order.seed's
/// epoch 0: the same ones whenever and on however many ranks it runs. Each layer sees its predecessors normalised by
/// the moments of one image, whose means and mean squares are then averaged ("precise" statistics: Wu and Johnson,
/// "Rethinking 'Batch' in BatchNorm", arXiv:2105.07576, section 3; there variances are averaged, which leaves out what
/// differs between images, all there is behind a global pool). With `ranks` each takes order.rank's share of the
/// samples, and all get the same statistics. Of a channel, images without finite moments are left out; where none is
/// left, training's statistics stay in f16, with a warning, and Error(diverged) is thrown in other types. The program
/// needs a statistics_pass(). Where `stop` or anything else throws, training's statistics stay.
void renew_statistics(Program& program, const std::shared_ptr<const SampleSource>& images, int64_t count,
                      const LoaderOptions& order, Communicator* ranks, const StopPoint& stop = {});

}  // namespace convoy::apps
