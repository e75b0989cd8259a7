#include "apps/common/simulation_record.h"

#include <nlohmann/json.hpp>

#include "apps/common/version.h"
#include "io/file.h"

namespace convoy::apps {

void write_simulation(const std::string& folder, const std::string& program, const OptionTable& o) {
  nlohmann::json made{{"program", program}, {"version", build_text()}};
  for (const Option& option : o.all()) made["settings"][option.flag] = option.value;
  // A path that is no UTF-8 is no reason to lose a set behind hours of work.
  write_text(folder + "/" + simulation_file, made.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace convoy::apps
