// What a simulated data set says of its making.
#pragma once

#include <string>

#include "apps/common/options.h"

namespace convoy::apps {

inline constexpr const char* simulation_file = "simulation.json";

/// Into a simulated set's folder: simulation_file with the program, its version and all settings.
void write_simulation(const std::string& folder, const std::string& program, const OptionTable& options);

}  // namespace convoy::apps
