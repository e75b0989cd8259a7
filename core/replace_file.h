// Whole files that take the place of earlier ones, or leave them as they were.
#pragma once

#include <string>
#include <string_view>

namespace convoy {

/// Where a path leads, also to a file that is not there yet.
std::string behind_links(const std::string& path);

/// Writes a temporary file, `path`.tmp, syncs it to disk and renames it: a full disk or a crash leaves what was there.
/// A link stays, and the file that it leads to is replaced; a device or a pipe, which holds nothing, is written to as
/// it is. Throws Error(runtime) naming the file and the system's reason.
void replace_file(const std::string& path, std::string_view text);

}  // namespace convoy
