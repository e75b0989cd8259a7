#include <cmath>

#include "apps/common/svg.h"
#include "tests/catch.hpp"

using namespace convoy::apps;

TEST_CASE("plots of values that differ in their last bits, or not at all, end and stay finite", "[apps]") {
  for (const double value : {0.0, 0.3287, 1.0, 1e20, -4e-300})
    for (const double other : {value, std::nextafter(value, 1e300)})
      for (const auto scale : {Plot::Scale::linear, Plot::Scale::log}) {
        INFO(value << " " << (other == value));
        const std::string svg =
            render_svg({{"t", "x", "y", {{"s", {0, 1}, {value, other}}}, Plot::Scale::linear, scale}});
        CHECK(svg.size() < 20'000);
        CHECK(svg.find("nan") == std::string::npos);
        CHECK(svg.find("inf") == std::string::npos);
      }
}

TEST_CASE("an axis within a decade has round numbers, too", "[apps]") {
  const std::string svg =
      render_svg({{"t", "x", "y", {{"s", {2.3, 4.5}, {230, 450}}}, Plot::Scale::log, Plot::Scale::log}});
  for (const char* tick : {">3<", ">4<", ">300<", ">400<"}) {
    INFO(tick);
    CHECK(svg.find(tick) != std::string::npos);
  }
}
