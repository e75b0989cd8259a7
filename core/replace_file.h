// Whole files that take the place of earlier ones, or leave them as they were.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace convoy {

/// Throws Error(runtime) where what was written there cannot reach the disk.
void sync_file(const std::string& path);
/// The same of a folder's names, where its file system can be asked for that.
void sync_folder(const std::string& folder);

/// That a file lies in; "." of a name alone.
std::string folder_of(const std::string& path);

/// Where a path leads, also to a file that is not there yet.
std::string behind_links(const std::string& path);

/// Calls write(temporary name), syncs that file to disk where `synced`, then renames it to `path`: a crash or a full
/// disk leaves what was there. On failure the temporary file is removed and Error(runtime) names the file. A link
/// stays, and the file that it leads to is replaced.
void replace_by(const std::string& path, bool synced, const std::function<void(const std::string&)>& write);

/// The same for a text; a device or a pipe, which holds nothing, is written to as it is.
void replace_file(const std::string& path, std::string_view text);

/// Why a file could not be replaced; empty where it could.
std::string why_not_replaceable(const std::string& path);

}  // namespace convoy
