// What was built, with what.
#pragma once

#include <string>

namespace convoy::apps {

/// "convoy 0.1.0 (commit 1d602d5a93, g++ 12.2.0, oneDNN 2.6.3, HDF5 1.10.8)"; "-dirty" behind the commit where files
/// differ from it, "unknown" where the sources are no repository.
std::string build_text();
/// build_text() and, in lines below it, what the configure step found: libraries, MPI, CUDA and its architectures.
std::string long_version_text();
/// build_text() without the commit: what runs are compared by, since most commits change no number.
std::string version_text();
/// "1d602d5a93-dirty", or "unknown".
std::string commit_text();

}  // namespace convoy::apps
