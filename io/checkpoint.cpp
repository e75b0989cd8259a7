#include "io/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "core/text.h"
#include "io/crc32c.h"
#include "io/file.h"
#include "io/hdf5.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr const char* format_name = "convoy-checkpoint-1";
constexpr const char* meta_name = "__meta__";

struct Stored {
  std::vector<int64_t> extents;
  DType dtype;
  std::vector<std::byte> data;
};
using States = std::map<std::string, Stored>;  // sorted: the CRC does not depend on the order of writing

std::string digest(const States& states, const std::string& meta) {
  uint32_t crc = crc32c(std::as_bytes(std::span(meta)));
  for (const auto& [name, state] : states) {
    crc = crc32c(std::as_bytes(std::span(name)), crc);
    crc = crc32c(std::as_bytes(std::span(state.extents)), crc);
    crc = crc32c(state.data, crc);
  }
  char text[16];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

}  // namespace

std::string save_checkpoint(const std::string& folder, int64_t step, const StateStore& store, const std::string& meta,
                            int keep, std::string* undeleted) {
  char name[64];
  std::snprintf(name, sizeof name, "checkpoint-%09lld.h5", static_cast<long long>(step));
  const std::string path = (fs::path(folder) / name).string();
  States states;
  for (const auto& [key, tensor] : store.entries()) {
    const auto& e = tensor.shape().extent;
    states.emplace(
        key, Stored{{e.begin(), e.end()}, tensor.dtype(), {tensor.bytes(), tensor.bytes() + tensor.desc().bytes()}});
  }
  write_atomically(path, [&](const std::string& temporary) {
    Hdf5File file(temporary, Hdf5File::Mode::create);
    for (const auto& [key, state] : states) file.write(key, state.dtype, state.extents, state.data);
    file.write_text("format", format_name);
    // A data set, not an attribute: HDF5 limits attributes to 64 KiB, and a long history is longer.
    const int64_t length[] = {static_cast<int64_t>(meta.size())};
    file.write(meta_name, DType::u8, length, std::as_bytes(std::span(meta)));
    file.write_text("crc32c", digest(states, meta));
    file.close();
  });
  // Files of later steps are none of this run's, such as damaged ones that could not be set aside: they must not crowd
  // out new saves.
  std::vector<CheckpointFile> all = list_checkpoints(folder);
  std::erase_if(all, [step](const CheckpointFile& file) { return file.step > step; });
  for (size_t i = static_cast<size_t>(std::max(1, keep)); i < all.size(); ++i) {
    std::error_code failed;
    fs::remove(all[i].path, failed);
    if (failed && undeleted) *undeleted = all[i].path + ": cannot be deleted: " + failed.message();
  }
  return path;
}

bool named_like_checkpoint(std::string_view name) {
  return name.starts_with("checkpoint-") && name.ends_with(".h5");
}

std::vector<CheckpointFile> list_checkpoints(const std::string& folder) {
  std::vector<CheckpointFile> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!named_like_checkpoint(name) || name.size() < 15) continue;
    const std::string_view digits = std::string_view(name).substr(11, name.size() - 14);
    if (digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string_view::npos) continue;
    if (entry.is_other()) fail_data(entry.path().string() + ": expected a file, found a device or a pipe");
    found.push_back({entry.path(), parse_number<int64_t>(digits, name)});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

struct Checkpoint::Content {
  std::string meta;
  States states;
};

Checkpoint::Content Checkpoint::read(const std::string& path) {
  const Hdf5File file(path, Hdf5File::Mode::read);
  const auto format = file.read_text("format"), crc = file.read_text("crc32c");
  if (format != format_name)
    fail_data(path + ": attribute format: expected " + format_name + ", found " + format.value_or("none"));
  if (!crc) fail_data(path + ": expected attribute crc32c, found none");
  Content content;
  for (const std::string& name : file.datasets()) {
    Stored state{file.extents(name), file.dtype(name), {}};
    // States are stored uncompressed: none can be larger than the file.
    const auto most = static_cast<int64_t>(fs::file_size(path));
    const auto elements = checked_elements(state.extents, most / size_of(state.dtype));
    if (!elements)
      fail_data(path + ": data set " + name + " is " + extents_text(state.extents) + ", expected at most the file's " +
                std::to_string(most) + " bytes");
    state.data.resize(static_cast<size_t>(*elements * size_of(state.dtype)));
    file.read(name, state.dtype, state.data);
    if (name == meta_name)
      content.meta.assign(reinterpret_cast<const char*>(state.data.data()), state.data.size());
    else
      content.states.emplace(name, std::move(state));
  }
  const std::string found = digest(content.states, content.meta);
  if (found != *crc) fail_data(path + ": CRC: expected " + *crc + ", found " + found);
  return content;
}

Checkpoint::Checkpoint(const std::string& path) : path_(path), content_(std::make_shared<const Content>(read(path))) {}

const std::string& Checkpoint::meta() const {
  return content_->meta;
}

void Checkpoint::restore(const StateStore& store) const {
  const States& states = content_->states;
  for (const auto& [name, tensor] : store.entries()) {
    const auto found = states.find(name);
    if (found == states.end()) fail_data(path_ + ": expected state " + name + ", found none");
    const auto& e = tensor.shape().extent;
    if (!std::equal(e.begin(), e.end(), found->second.extents.begin(), found->second.extents.end()) ||
        found->second.dtype != tensor.dtype())
      fail_data(path_ + ": state " + name + ": expected " + tensor.desc().str() + ", found " +
                std::string(name_of(found->second.dtype)) + ":" + extents_text(found->second.extents));
  }
  for (const auto& [name, tensor] : store.entries()) {
    const std::vector<std::byte>& data = states.at(name).data;
    std::copy(data.begin(), data.end(), tensor.bytes());
  }
}

}  // namespace convoy
