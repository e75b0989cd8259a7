// The Chrome trace: one JSON document of all ranks' events.
#include "apps/common/profile.h"
#include "tests/catch.hpp"

using namespace convoy;
using namespace convoy::apps;

namespace {

std::string dumped(int rank, double clock_offset, const std::vector<HostEvent>& host,
                   const std::vector<MessageEvent>& messages) {
  return trace_events({rank, clock_offset, {}, &messages, &host});
}

}  // namespace

TEST_CASE("a trace is JSON with the events of all ranks, from the earliest on", "[apps]") {
  constexpr double hours = 1e11;  // microseconds since the machine was started
  const std::string first =
                        dumped(0, 0, {{"a \"quoted\" \\ name", hours + 5, 1.5}}, {{"bucket0", 4, 4096, hours + 7, 20}}),
                    second = dumped(1, 0.25, {{"input", hours + 250'002.25, 3}}, {});
  const auto trace = nlohmann::json::parse(chrome_trace({first, second}));
  CHECK(trace.at("displayTimeUnit") == "ms");
  const auto& events = trace.at("traceEvents");
  REQUIRE(events.size() == 5);
  const auto event = [&](const std::string& name) {
    for (const auto& e : events)
      if (e.at("name") == name) return e;
    throw std::runtime_error("no event " + name);
  };
  const auto quoted = event("a \"quoted\" \\ name"), message = event("bucket0"), input = event("input");
  CHECK(quoted == nlohmann::json{{"ph", "X"},
                                 {"name", "a \"quoted\" \\ name"},
                                 {"cat", "trainer"},
                                 {"ts", 2.75},
                                 {"dur", 1.5},
                                 {"pid", 0},
                                 {"tid", 0},
                                 {"args", nlohmann::json::object()}});
  CHECK(message == nlohmann::json{{"ph", "X"},
                                  {"name", "bucket0"},
                                  {"cat", "messages"},
                                  {"ts", 4.75},
                                  {"dur", 20.0},
                                  {"pid", 0},
                                  {"tid", 5},
                                  {"args", {{"bytes", 4096}}}});
  CHECK(input.at("ts") == 0.0);  // by rank 0's clock
  CHECK(input.at("pid") == 1);
  CHECK(events.at(2) ==
        nlohmann::json{{"ph", "M"}, {"name", "process_name"}, {"pid", 0}, {"args", {{"name", "rank 0"}}}});
}

TEST_CASE("a trace without events is JSON, too", "[apps]") {
  CHECK(nlohmann::json::parse(chrome_trace({dumped(0, 0, {}, {})})).at("traceEvents").size() == 1);
}
