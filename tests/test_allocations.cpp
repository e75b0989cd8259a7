// Memory that runs out in a thread of a team ends the program, which cannot tell of it then: simulators ask for theirs
// ahead of their threads.
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "apps/simulate/atmosphere.h"
#include "apps/simulate/universe.h"
#include "tests/catch.hpp"

namespace {

const std::thread::id main_thread = std::this_thread::get_id();
std::atomic<bool> refused_elsewhere{false};

/// Meanwhile threads but the main one get no memory.
class NoMemoryElsewhere {
 public:
  NoMemoryElsewhere() { refused_elsewhere = true; }
  ~NoMemoryElsewhere() { refused_elsewhere = false; }
};

}  // namespace

void* operator new(size_t bytes) {
  const bool refused = refused_elsewhere && std::this_thread::get_id() != main_thread;
  if (void* memory = refused ? nullptr : std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

using namespace convoy::simulate;

TEST_CASE("threads of simulations need no memory of their own", "[memory]") {
  UniverseOptions universe;
  universe.particles = 16, universe.steps = 1, universe.threads = 3;
  AtmosphereOptions weather;
  weather.grid = {32, 48}, weather.threads = 3;
  const Day day = draw_day(weather, 0);
  const NoMemoryElsewhere guard;
  CHECK(simulate_universe({}, universe).size == 16);
  CHECK(simulate_atmosphere(weather, day, 6).truth.size() == 32 * 48);
}
