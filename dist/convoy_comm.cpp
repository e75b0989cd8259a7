#include "dist/convoy_comm.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/philox.h"
#include "dist/local.h"
#include "dist/mpi.h"

using namespace convoy;

namespace {

/// What is wrong with the arguments of an average; empty where nothing is.
std::string mistake_in(void* const* tensors, const size_t* counts, int tensor_count, convoy_comm_type type) {
  if (type != CONVOY_COMM_F32 && type != CONVOY_COMM_F64)
    return "convoy_comm: expected type 0 (f32) or 1 (f64), found " + std::to_string(type);
  if (tensor_count < 0) return "convoy_comm: expected 0 tensors or more, found " + std::to_string(tensor_count);
  if (tensor_count > 0 && (!tensors || !counts))
    return "convoy_comm: expected " + std::to_string(tensor_count) + " tensors and their counts, found none";
  for (int i = 0; i < tensor_count; ++i)
    if (!tensors[i] && counts[i] > 0)
      return "convoy_comm: tensor " + std::to_string(i) + ": expected " + std::to_string(counts[i]) +
             " elements, found no data";
  return {};
}

/// The same of a broadcast.
std::string mistake_in(const void* data, size_t bytes, int root, int ranks) {
  if (!data && bytes > 0) return "convoy_comm: expected " + std::to_string(bytes) + " bytes, found no data";
  if (root < 0 || root >= ranks)
    return "convoy_comm: expected a root below " + std::to_string(ranks) + ", found " + std::to_string(root);
  return {};
}

/// Throws Error(usage) on every rank where one of them has made a mistake, or they do not ask for the same by `call`
/// and its `numbers`, which is what `different` says: they would mix tensors up, or wait for ever. Equal numbers have a
/// sum and a sum of squares that no others have together.
void expect_same_everywhere(Collectives& ranks, std::string_view call, std::span<const size_t> numbers,
                            const std::string& mistake, const char* different) {
  const uint64_t hash =
      hash_name({reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()}) + hash_name(call);
  constexpr uint64_t word = (1 << 20) - 1;  // whose square, summed up, is exact
  const double low = double(hash & word), high = double(hash >> 20 & word), all = ranks.size();
  std::array<double, 5> sums{low, low * low, high, high * high, mistake.empty() ? 0. : 1.};
  ranks.all_reduce_sum(std::span<double>(sums));
  if (!mistake.empty()) fail_usage(mistake);
  if (const auto wrong = static_cast<int>(sums[4]); wrong > 0)
    fail_usage("convoy_comm: " + std::to_string(wrong) + " of " + std::to_string(ranks.size()) +
               " ranks pass wrong arguments");
  if (sums != std::array<double, 5>{all * low, all * low * low, all * high, all * high * high, 0})
    fail_usage(different);
}

/// Tensors below this travel together.
constexpr size_t large_bytes = 1 << 20;
/// So many of the others are under way at a time; each keeps memory for what comes in.
constexpr int64_t most_under_way = 256;

struct Team {
  std::unique_ptr<Collectives> ranks;
  std::vector<std::byte> bucket;
};

struct Library {
  std::unique_ptr<MpiSession> session;
  bool callers_mpi = false;  ///< which goes on behind the end
  std::vector<Team> teams;
};

/// Freed by convoy_comm_finalise alone: communicators are freed by all ranks together, which a process that exits
/// behind an error cannot wait for.
Library* library = nullptr;
bool finalised = false;
thread_local std::string last_error;

template <class Body>
int guarded(Body body) {
  try {
    body();
    return CONVOY_COMM_OK;
  } catch (const Error& error) {
    last_error = error.what();
    return error.exit_code();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return CONVOY_COMM_RUNTIME;
}

Team& team_of(int team) {
  if (!library) fail_usage("convoy_comm: not initialised");
  if (team < 0 || team >= static_cast<int>(library->teams.size()))
    fail_usage("convoy_comm: expected a team below " + std::to_string(library->teams.size()) + ", found " +
               std::to_string(team));
  return library->teams[static_cast<size_t>(team)];
}

}  // namespace

extern "C" int convoy_comm_initialise(const int* threads_of_team, int teams) {
  return guarded([&] {
    if (library) fail_usage("convoy_comm: initialised already");
    if (!threads_of_team || teams < 1) fail_usage("convoy_comm: expected at least one team");
    for (int i = 0; i < teams; ++i)
      if (threads_of_team[i] < 1)
        fail_usage("convoy_comm: team " + std::to_string(i) + ": expected at least one thread, found " +
                   std::to_string(threads_of_team[i]));
    auto created = std::make_unique<Library>();
    if (finalised || mpi_over()) fail_usage("convoy_comm: finalised already; MPI cannot be started again");
    const Launch launch = find_launch();  // a launcher of one task may have no MPI to offer
    if ((!launch.launcher.empty() && launch.tasks != 1) || mpi_running()) {
      MpiOptions options;
      options.lost = [](const std::string& sentence) {
        std::fprintf(stderr, "convoy_comm: error: %s\n", sentence.c_str());
        std::fflush(stderr);
      };
      options.warn = [](const std::string& sentence) {
        std::fprintf(stderr, "convoy_comm: warning: %s\n", sentence.c_str());
      };
      created->callers_mpi = mpi_running();
      created->session = start_mpi(options);
    }
    for (int i = 0; i < teams; ++i) {
      CommunicationOptions options;
      options.threads = threads_of_team[i];
      created->teams.push_back({created->session ? created->session->world(options) : make_self_communicator(), {}});
    }
    library = created.release();
  });
}

extern "C" int convoy_comm_rank(int* rank) {
  return guarded([&] {
    if (!rank) fail_usage("convoy_comm: no place for the rank");
    *rank = team_of(0).ranks->rank();
  });
}

extern "C" int convoy_comm_size(int* size) {
  return guarded([&] {
    if (!size) fail_usage("convoy_comm: no place for the size");
    *size = team_of(0).ranks->size();
  });
}

extern "C" int convoy_comm_broadcast(int team, void* data, size_t bytes, int root) {
  return guarded([&] {
    Collectives& ranks = *team_of(team).ranks;
    const std::array<size_t, 2> numbers{bytes, static_cast<size_t>(root)};
    expect_same_everywhere(ranks, "broadcast", numbers, mistake_in(data, bytes, root, ranks.size()),
                           "convoy_comm: ranks broadcast different numbers of bytes, or from different roots");
    ranks.broadcast({static_cast<std::byte*>(data), bytes}, root);
  });
}

extern "C" int convoy_comm_average(int team, void* const* tensors, const size_t* counts, int tensor_count,
                                   enum convoy_comm_type type) {
  return guarded([&] {
    Team& t = team_of(team);
    const DType dtype = type == CONVOY_COMM_F64 ? DType::f64 : DType::f32;
    // A rank that left here alone would be waited for by the others, and its next call would meet this one of theirs.
    const std::string mistake = mistake_in(tensors, counts, tensor_count, type);
    const auto known = static_cast<size_t>(mistake.empty() ? tensor_count : 0);
    expect_same_everywhere(*t.ranks, name_of(dtype), {counts, known}, mistake,
                           "convoy_comm: ranks average tensors of different numbers, sizes or types");
    const auto width = static_cast<size_t>(size_of(dtype));
    const double scale = 1.0 / t.ranks->size();
    size_t small = 0;
    for (int i = 0; i < tensor_count; ++i)
      if (counts[i] * width < large_bytes) small += counts[i] * width;
    t.bucket.resize(small);
    const auto each = [&](bool large, auto&& body) {
      size_t at = 0;
      for (int i = 0; i < tensor_count; ++i) {
        const size_t bytes = counts[i] * width;
        if ((bytes >= large_bytes) != large || bytes == 0) continue;
        body(i, static_cast<std::byte*>(tensors[i]), bytes, at);
        at += bytes;
      }
    };
    int64_t started = 0;
    each(true, [&](int i, std::byte* data, size_t bytes, size_t) {
      const int64_t id = started++ % most_under_way;
      t.ranks->wait(id);
      t.ranks->start(id, {{data, bytes}, dtype, dtype, scale, "tensor " + std::to_string(i)});
    });
    each(false, [&](int, std::byte* data, size_t bytes, size_t at) { std::memcpy(t.bucket.data() + at, data, bytes); });
    if (small > 0) t.ranks->start(most_under_way, {t.bucket, dtype, dtype, scale, "the small tensors"});
    for (int64_t id = 0; id < std::min(started, most_under_way); ++id) t.ranks->wait(id);
    if (small > 0) t.ranks->wait(most_under_way);
    each(false, [&](int, std::byte* data, size_t bytes, size_t at) { std::memcpy(data, t.bucket.data() + at, bytes); });
  });
}

extern "C" int convoy_comm_finalise(void) {
  return guarded([&] {
    if (!library) fail_usage("convoy_comm: not initialised");
    if (library->session) library->session->finish();
    finalised = library->session && !library->callers_mpi;
    for (Team& team : library->teams) team.ranks.reset();
    delete library;
    library = nullptr;
  });
}

extern "C" const char* convoy_comm_error(void) {
  return last_error.c_str();
}
