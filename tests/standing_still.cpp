// A rank whose main thread stands still, works without sending messages, or is through, while the other waits for it;
// mpi.sh looks at what becomes of them.   mpirun -n 2 standing_still still|at-work|leaves
#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "dist/mpi.h"

using namespace convoy;

int main(int argc, char** argv) try {
  using namespace std::chrono_literals;
  const std::string_view what = argc > 1 ? argv[1] : "still";
  MpiOptions options;
  options.timeout = 1, options.patience = 2;  // seconds, and how many of these
  options.lost = [](const std::string& sentence) { std::fprintf(stderr, "error: %s\n", sentence.c_str()); };
  const auto session = start_mpi(options);
  const auto world = session->world({});
  if (world->rank() == 1 && what == "leaves") return session->finish(), 0;
  if (world->rank() == 1)
    for (int i = 0; i < 80; ++i) {
      std::this_thread::sleep_for(50ms);
      if (what == "at-work") world->progress();
    }
  world->barrier();
  if (world->rank() == 0) std::printf("met\n");
  session->finish();
} catch (const Error& error) {
  std::fprintf(stderr, "standing_still: error: %s\n", error.what());
  return error.exit_code();
}
