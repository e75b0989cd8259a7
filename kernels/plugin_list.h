// Loads the plugins that the environment variable CONVOY_PLUGINS names: paths of shared libraries, separated by colons.
#pragma once

#include <string>

#include "core/kernel.h"

namespace convoy {

/// `ours` with the plugins' kernels in front, those of the library named first ahead. Throws Error(usage), which names
/// the library, for one that cannot be loaded, was compiled with other headers or options, lists no kernel, or one of a
/// name that another library or `ours` has (equal names share packed weights). What is loaded stays loaded.
KernelList with_plugins(KernelList ours);

/// "./libmine.so (mine, mine_too)", the next one behind a comma; empty without plugins. Throws where one cannot be
/// loaded.
std::string plugin_text();
/// The names of their kernels alone, which ranks have in common.
std::string plugin_kernels();

}  // namespace convoy
