// What a file of measurements says of the run that made it.
#pragma once

#include <string>

namespace convoy::bench {

/// Version and commit, and what the configure step found, line by line.
std::string long_version_text();
/// Members of a JSON object: version and commit of this build, the date, the processes that wanted a core in the last
/// minute (the load), and the variables that decide how threads run and, empty where there is no limit, up to which
/// instruction set.
std::string provenance();

}  // namespace convoy::bench
