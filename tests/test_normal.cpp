#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/normal.h"
#include "tests/catch.hpp"
#include "tests/worse.h"

using namespace convoy;

TEST_CASE("normals drawn together are those drawn one by one", "[random]") {
  const PhiloxStream random(3, hash_name("weights"));
  const uint64_t first = (1ull << 32) - 1000;  // counters whose upper word changes on the way
  std::vector<double> together(100003);
  fill_normal(random, first, together);
  double worst = 0, sum = 0, squares = 0;
  for (size_t i = 0; i < together.size(); ++i) {
    worst = testing::worse(worst, std::abs(together[i] - random.normal(first + i)));
    sum += together[i], squares += together[i] * together[i];
  }
  CHECK(worst < 1e-14);
  // Five standard errors.
  const double n = double(together.size());
  CHECK(std::abs(sum / n) < 5 / std::sqrt(n));
  CHECK(std::abs(squares / n - 1) < 5 * std::sqrt(2 / n));

  // The same bits on every CPU, however wide its vectors are.
  uint64_t digest = 0;
  for (double x : together) digest = digest * 0x100000001b3 ^ std::bit_cast<uint64_t>(x);
  CHECK(digest == 0xd5a0ae664e7010b5);

  SECTION("wherever a part begins") {
    std::vector<double> part(77);
    fill_normal(random, first + 131, part);
    CHECK(std::equal(part.begin(), part.end(), together.begin() + 131));
  }
}
