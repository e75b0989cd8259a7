#include "kernels/plugin_list.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/node_failure.h"
#include "core/text.h"
#include "kernels/plugin.h"

namespace convoy {
namespace {

struct Library {
  std::string path;
  std::vector<std::shared_ptr<const Kernel>> kernels;
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  fail_usage("CONVOY_PLUGINS: " + path + ": " + why);
}

/// A plugin's kernel, which lists share. What it throws says whose it is.
class PluginKernel final : public Kernel {
 public:
  PluginKernel(std::shared_ptr<const Kernel> kernel, std::string path)
      : kernel_(std::move(kernel)), path_(std::move(path)) {}
  std::string_view name() const override { return kernel_->name(); }
  Support supports(const Problem& p) const override {
    return naming("supports", p, [&] { return kernel_->supports(p); });
  }
  bool preferred(const Problem& p) const override {
    return naming("preferred", p, [&] { return kernel_->preferred(p); });
  }
  std::unique_ptr<Prepared> prepare(const Problem& p) const override {
    return naming("prepare", p, [&] {
      std::unique_ptr<Prepared> prepared = kernel_->prepare(p);
      if (!prepared) throw std::runtime_error("returns null");
      for (const PackRequest& request : prepared->packed_weights())
        if (request.input < 0 || request.input >= std::ssize(p.in))
          throw std::runtime_error("asks for packed input " + std::to_string(request.input) + " of " +
                                   std::to_string(p.in.size()));
      return prepared;
    });
  }

 private:
  template <class F>
  auto naming(const char* what, const Problem& p, F&& f) const -> decltype(f()) {
    try {
      return f();
    } catch (const std::exception& error) {
      fail(what, error.what(), p);
    } catch (...) {
      fail(what, no_exception, p);
    }
  }
  [[noreturn]] void fail(const char* what, const std::string& why, const Problem& p) const {
    fail_runtime(path_ + ": " + std::string(name()) + ", " + what + ": " + why + ": " + p.text());
  }
  std::shared_ptr<const Kernel> kernel_;
  std::string path_;
};

/// The text of the loader's latest error, without the path that it may begin with.
std::string loader_error(const std::string& path) {
  const char* said = dlerror();
  std::string text = said ? said : "cannot be loaded";
  if (text.starts_with(path + ": ")) text.erase(0, path.size() + 2);
  return text;
}

/// Names stand in flags, tables and reports, some of which know the libraries' rows by how they begin.
void expect_name(const std::string& path, std::string_view name) {
  const bool plain = !name.empty() &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
  if (!plain || name.starts_with("onednn") || name.starts_with("cudnn"))
    refuse(path,
           "expected kernels whose names are letters, digits and _, and do not begin with onednn or cudnn, found \"" +
               std::string(name) + "\"");
}

Library load(const std::string& path) {
  if (!is_utf8(path)) refuse(path, "expected a path in UTF-8, found other bytes");  // it stands in JSON
  std::error_code error;
  const std::filesystem::path file = std::filesystem::absolute(path, error);  // else the system's folders are searched
  if (error || !std::filesystem::exists(file, error)) refuse(path, "no such file");
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) refuse(path, loader_error(file.string()));
  const auto entry = reinterpret_cast<const Plugin* (*)()>(dlsym(handle, "convoy_plugin"));
  if (!entry) refuse(path, "has no convoy_plugin, which CONVOY_PLUGIN of kernels/plugin.h defines");
  const Plugin& plugin = *entry();
  if (const std::string_view ours = CONVOY_PLUGIN_INTERFACE; plugin.interface != ours)
    refuse(path, "expected a library compiled with the headers and options of this program (" + std::string(ours) +
                     "), found " + plugin.interface + ": compile it again");
  Library library{path, {}};
  try {
    for (KernelPtr& kernel : plugin.kernels()) library.kernels.push_back(std::move(kernel));
  } catch (const std::exception& thrown) {
    refuse(path, thrown.what());
  } catch (...) {
    refuse(path, no_exception);
  }
  if (library.kernels.empty()) refuse(path, "lists no kernels");
  for (const auto& kernel : library.kernels) {
    if (!kernel) refuse(path, "lists a kernel that is null");
    expect_name(path, kernel->name());
  }
  return library;
}

const std::vector<Library>& libraries() {
  static const std::vector<Library> loaded = [] {
    std::vector<Library> list;
    const char* text = std::getenv("CONVOY_PLUGINS");
    if (!text || !*text) return list;
    for (const std::string_view path : split(text, ':')) {
      if (path.empty())
        fail_usage("CONVOY_PLUGINS: expected paths separated by colons, found \"" + std::string(text) + "\"");
      list.push_back(load(std::string(path)));
    }
    return list;
  }();
  return loaded;
}

/// Without those that are there already: a kernel to each op.
std::string names_of(const Library& library) {
  std::string text;
  std::set<std::string_view> said;
  for (const auto& kernel : library.kernels)
    if (said.insert(kernel->name()).second) text += (text.empty() ? "" : ", ") + std::string(kernel->name());
  return text;
}

}  // namespace

KernelList with_plugins(KernelList ours) {
  std::set<std::string, std::less<>> taken;
  for (const auto& kernel : ours) taken.emplace(kernel->name());
  KernelList list;
  for (const Library& library : libraries()) {
    for (const auto& kernel : library.kernels) {
      if (taken.contains(kernel->name()))
        refuse(library.path, "its kernel \"" + std::string(kernel->name()) + "\" has a name that is taken");
      list.push_back(std::make_unique<PluginKernel>(kernel, library.path));
    }
    for (const auto& kernel : library.kernels) taken.emplace(kernel->name());
  }
  for (auto& kernel : ours) list.push_back(std::move(kernel));
  return list;
}

std::string plugin_text() {
  std::string text;
  for (const Library& library : libraries())
    text += (text.empty() ? "" : ", ") + library.path + " (" + names_of(library) + ")";
  return text;
}

std::string plugin_kernels() {
  std::string text;
  for (const Library& library : libraries()) text += (text.empty() ? "" : ", ") + names_of(library);
  return text;
}

}  // namespace convoy
