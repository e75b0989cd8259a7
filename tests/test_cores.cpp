// Which cores a process may run on.
#include <sched.h>

#include <cerrno>
#include <iterator>
#include <vector>

#include "apps/common/cores.h"
#include "tests/catch.hpp"

using namespace convoy::apps;

namespace {

/// A kernel for 4096 cores, of which this process may run on two.
int large_machine(pid_t, size_t bytes, cpu_set_t* set) {
  if (bytes < 4096 / 8) return errno = EINVAL, -1;
  CPU_SET_S(3, bytes, set);
  CPU_SET_S(3000, bytes, set);
  return 0;
}
int forbidden(pid_t, size_t, cpu_set_t*) {
  return errno = EPERM, -1;
}
int never_enough(pid_t, size_t, cpu_set_t*) {
  return errno = EINVAL, -1;
}

}  // namespace

TEST_CASE("cores are found on machines with more than a fixed set holds", "[apps]") {
  CHECK(allowed_cores(large_machine) == std::vector<int>{3, 3000});
  CHECK(allowed_cores(forbidden).empty());
  CHECK(allowed_cores(never_enough).empty());
  cpu_set_t fixed;
  CHECK_FALSE(allowed_cores().empty());
  if (sched_getaffinity(0, sizeof fixed, &fixed) == 0) CHECK(std::ssize(allowed_cores()) == CPU_COUNT(&fixed));
}

TEST_CASE("who knows no cores has no NUMA domain in common with others", "[apps]") {
  CHECK(numa_domain({}) == -1);
  CHECK(core_text({}).empty());
  CHECK(core_text({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11");
}
