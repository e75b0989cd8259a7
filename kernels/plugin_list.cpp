#include "kernels/plugin_list.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/text.h"
#include "kernels/plugin.h"

namespace convoy {
namespace {

struct LoadedPlugin {
  std::string path;
  std::vector<KernelPtr> kernels;
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  fail_usage("CONVOY_PLUGINS: " + path + ": " + why);
}

/// The text of the loader's latest error, without the path that it may begin with.
std::string loader_error(const std::string& path) {
  const char* said = dlerror();
  std::string text = said ? said : "cannot be loaded";
  if (text.starts_with(path + ": ")) text.erase(0, path.size() + 2);
  return text;
}

LoadedPlugin load(const std::string& path) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::absolute(path, error);  // else the system's folders are searched
  if (error || !std::filesystem::exists(file, error)) refuse(path, "no such file");
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse(path, loader_error(file.string()));
  const auto entry = reinterpret_cast<const Plugin* (*)()>(dlsym(library, "convoy_plugin"));
  if (!entry) refuse(path, "has no convoy_plugin, which CONVOY_PLUGIN of kernels/plugin.h defines");
  const Plugin& plugin = *entry();
  if (std::string_view(plugin.headers) != CONVOY_HEADERS_DIGEST)
    refuse(path, "expected a library compiled with the headers of this build, " CONVOY_HEADERS_DIGEST
                 ", found one of " +
                     std::string(plugin.headers) + ": compile it again");
  LoadedPlugin loaded{path, {}};
  try {
    loaded.kernels = plugin.kernels();
  } catch (const std::exception& thrown) {
    refuse(path, thrown.what());
  }
  for (const KernelPtr& kernel : loaded.kernels)
    if (!kernel) refuse(path, "lists a kernel that is null");
  if (loaded.kernels.empty()) refuse(path, "lists no kernels");
  return loaded;
}

std::vector<LoadedPlugin> load_plugins() {
  std::vector<LoadedPlugin> plugins;
  const char* text = std::getenv("CONVOY_PLUGINS");
  if (!text || !*text) return plugins;
  for (const std::string_view path : split(text, ':')) {
    if (path.empty())
      fail_usage("CONVOY_PLUGINS: expected paths separated by colons, found \"" + std::string(text) + "\"");
    plugins.push_back(load(std::string(path)));
  }
  return plugins;
}

}  // namespace

KernelList with_plugins(KernelList ours) {
  std::set<std::string, std::less<>> taken;
  for (const auto& kernel : ours) taken.emplace(kernel->name());
  KernelList list;
  for (LoadedPlugin& plugin : load_plugins()) {
    for (const KernelPtr& kernel : plugin.kernels)
      if (taken.contains(kernel->name()))
        refuse(plugin.path, "its kernel \"" + std::string(kernel->name()) + "\" has a name that is taken");
    for (KernelPtr& kernel : plugin.kernels) {
      taken.emplace(kernel->name());
      list.push_back(std::move(kernel));
    }
  }
  for (auto& kernel : ours) list.push_back(std::move(kernel));
  return list;
}

std::string plugin_text() {
  std::string text;
  for (const LoadedPlugin& plugin : load_plugins()) {
    std::string names;
    std::set<std::string_view> said;  // a kernel to each op
    for (const KernelPtr& kernel : plugin.kernels)
      if (said.insert(kernel->name()).second) names += (names.empty() ? "" : ", ") + std::string(kernel->name());
    text += (text.empty() ? "" : ", ") + plugin.path + " (" + names + ")";
  }
  return text;
}

}  // namespace convoy
