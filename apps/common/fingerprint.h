// By what a resumed run recognises the samples that it was trained with.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace convoy::apps {

/// Throws Error(data) where a file's name is not UTF-8: checkpoints and logs, which tell it, are.
void expect_text(const std::string& path);

/// Of the files of samples, in their order: a digest of all names, and size and a digest of 4 KiB from the middle of up
/// to 64 files, evenly spread. Null where there are no files (dummy data). Throws what expect_text throws.
nlohmann::json fingerprint(const std::vector<std::string>& paths);

/// Throws Error(data), beginning with `where`, for fingerprints of different data sets: other names, or other contents
/// of more than half of the files. Fewer are taken for repairs, and named on standard error. An empty `saved`, of a
/// checkpoint that is older than fingerprints, equals anything.
void expect_same_samples(const nlohmann::json& saved, const nlohmann::json& found, const std::string& where);

}  // namespace convoy::apps
