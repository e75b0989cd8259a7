// All-reduce algorithms against a plain sum, at odd sizes and rank counts; averaging in the tape.
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <filesystem>
#include <map>
#include <set>

#include "core/philox.h"
#include "core/tensor.h"
#include "dist/add_up.h"
#include "dist/shared_buffer.h"
#include "tests/rank_threads.h"
#include "tests/temporary.h"
#include "tests/worse.h"

using namespace convoy;

namespace {

/// Catch's assertions are for one thread alone; ranks throw.
void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

template <class T>
std::vector<T> values_of(int rank, int64_t count) {
  const PhiloxStream random(7, static_cast<uint64_t>(rank));
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(random.uniform(i) - 0.5);
  return values;
}

template <class T>
AllReduce mean_of(std::vector<T>& values, int ranks, DType wire) {
  const DType type = sizeof(T) == 8 ? DType::f64 : DType::f32;
  return {std::as_writable_bytes(std::span(values)), type, wire, 1.0 / ranks, "a test"};
}

/// The largest difference from the sum in f64, over the bound: (p-1) roundings of the partial sums, one of the mean,
/// and with a narrow wire one rounding to `wire` per hop.
template <class T>
void check_mean(int ranks, int64_t count, const CommunicationOptions& options, const std::vector<int>& nodes,
                DType wire) {
  auto communicators = make_thread_communicators(ranks, options, nodes);
  std::vector<std::vector<T>> results(static_cast<size_t>(ranks));
  on_ranks(communicators, [&](int rank, Collectives& c) {
    std::vector<T>& mine = results[static_cast<size_t>(rank)];
    mine = values_of<T>(rank, count);
    c.start(3, mean_of(mine, ranks, wire));
    c.wait(3);
  });
  std::vector<double> sum(static_cast<size_t>(count)), size(sum.size());
  for (int r = 0; r < ranks; ++r) {
    const std::vector<T> v = values_of<T>(r, count);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += double(v[i]), size[i] += std::fabs(double(v[i]));
  }
  const double own = sizeof(T) == 8 ? 0x1p-53 : 0x1p-24, step = wire == DType::bf16  ? 0x1p-8
                                                                : wire == DType::f16 ? 0x1p-11
                                                                                     : 0;
  double worst = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    // f16 below its normal range rounds to multiples of 2^-24.
    const double bound = (ranks + 1) * (own + step) * size[i] / ranks + (step > 0 ? ranks * 0x1p-25 : 0);
    worst = testing::worse(worst, std::fabs(double(results[0][i]) - sum[i] / ranks) / bound);
  }
  CHECK(worst <= 1);
  for (int r = 1; r < ranks; ++r) CHECK((results[static_cast<size_t>(r)] == results[0]));
}

CommunicationOptions wish(Algorithm a, int threads = 1) {
  CommunicationOptions o;
  o.algorithm = name_of(a), o.threads = threads;
  return o;
}

/// The algorithms that run on ranks of one process on these nodes; all on one where none are given.
std::vector<Algorithm> algorithms_for(int ranks, std::vector<int> nodes = {}, DType wire = DType::f32) {
  ReductionProblem p;
  if (nodes.empty()) nodes.assign(static_cast<size_t>(ranks), 0);
  p.nodes = std::move(nodes), p.shares_memory = true, p.converts = wire != DType::f32;
  std::vector<Algorithm> able;
  for (Algorithm a : all_algorithms())
    if (supports(a, p).ok) able.push_back(a);
  return able;
}

/// Nodes of equally many ranks, for `hierarchical`, and of others.
const std::vector<std::vector<int>> several_nodes{
    {0, 0, 1, 1}, {0, 1, 0, 1, 0, 1}, {0, 0, 0, 1, 1, 1, 2, 2, 2}, {0, 1, 1}};

/// Walks the schedules of all ranks over one vector each, and tells how many ranks one of them meets in a round.
size_t walk(const std::vector<Schedule>& schedules, std::vector<std::vector<float>>& vectors) {
  std::vector<std::vector<float>> scratch;
  for (const Schedule& s : schedules) scratch.emplace_back(static_cast<size_t>(s.scratch));
  size_t most = 0;
  for (size_t round = 0; round < schedules[0].rounds.size(); ++round) {
    std::map<std::pair<size_t, size_t>, std::deque<std::vector<float>>> boxes;
    for (size_t r = 0; r < schedules.size(); ++r) {
      REQUIRE(schedules[r].rounds.size() == schedules[0].rounds.size());
      std::set<int> peers;
      for (const Transfer& t : schedules[r].rounds[round].sends) {
        const auto from = vectors[r].begin() + t.piece.begin;
        boxes[{r, t.peer}].emplace_back(from, from + t.piece.count);
        peers.insert(t.peer);
      }
      most = std::max(most, peers.size());
    }
    for (size_t r = 0; r < schedules.size(); ++r) {
      for (const Transfer& t : schedules[r].rounds[round].receives) {
        auto& box = boxes[{t.peer, r}];
        REQUIRE(!box.empty());
        REQUIRE(box.front().size() == static_cast<size_t>(t.piece.count));
        std::copy(
            box.front().begin(), box.front().end(),
            t.scratch == Transfer::in_place ? vectors[r].begin() + t.piece.begin : scratch[r].begin() + t.scratch);
        box.pop_front();
      }
      for (const Sum& sum : schedules[r].rounds[round].sums) {
        std::vector<float> total(static_cast<size_t>(sum.piece.count));
        for (int64_t source : sum.sources)
          for (size_t i = 0; i < total.size(); ++i)
            total[i] += source == Sum::own ? vectors[r][static_cast<size_t>(sum.piece.begin) + i]
                                           : scratch[r][static_cast<size_t>(source) + i];
        std::copy(total.begin(), total.end(), vectors[r].begin() + sum.piece.begin);
      }
    }
    for (const auto& [pair, box] : boxes) REQUIRE(box.empty());
  }
  return most;
}

/// What every rank has behind an all-reduce.
std::vector<std::vector<float>> means(int ranks, int64_t count, const CommunicationOptions& options) {
  auto communicators = make_thread_communicators(ranks, options);
  std::vector<std::vector<float>> results(static_cast<size_t>(ranks));
  on_ranks(communicators, [&](int rank, Collectives& c) {
    std::vector<float>& mine = results[static_cast<size_t>(rank)];
    mine = values_of<float>(rank, count);
    c.start(3, mean_of(mine, ranks, DType::f32));
    c.wait(3);
  });
  return results;
}

/// The same of two ranks with areas of so many bytes.
std::vector<std::vector<float>> means_through_areas(int64_t bytes, int64_t count, int threads) {
  Buffer areas[] = {Buffer(bytes, Buffer::Fill::zero), Buffer(bytes, Buffer::Fill::zero)};
  std::vector<std::vector<float>> values{values_of<float>(0, count), values_of<float>(1, count)};
  std::vector<SharedReduction> ranks;
  for (int r : {0, 1}) {
    ranks.emplace_back(std::vector<std::byte*>{areas[0].data(), areas[1].data()}, bytes, r);
    auto* mine = reinterpret_cast<std::byte*>(values[static_cast<size_t>(r)].data());
    ranks.back().start(SharedReduction::Part::all_reduce, mine, DType::f32, {0, count}, 0.5, threads);
  }
  bool done[] = {false, false};
  while (!done[0] || !done[1])
    for (size_t r : {0, 1}) done[r] = done[r] || ranks[r].advance();
  return values;
}

}  // namespace

TEST_CASE("every all-reduce algorithm gives the mean, the same bits on all ranks", "[dist]") {
  for (int ranks : {2, 3, 4, 5, 7, 8})
    for (int64_t count : {1, 2, 15, 17, 1000, 12345})
      for (Algorithm a : algorithms_for(ranks)) {
        INFO(name_of(a) << " " << ranks << " ranks, " << count);
        check_mean<float>(ranks, count, wish(a), {}, DType::f32);
        check_mean<double>(ranks, count, wish(a), {}, DType::f64);
      }
}

TEST_CASE("vectors longer than the shared areas go through them in pieces", "[dist]") {
  for (int ranks : {2, 3, 5}) check_mean<float>(ranks, 300007, wish(Algorithm::shared), {}, DType::f32);
}

TEST_CASE("as many ranks as one large node has share their areas", "[dist]") {
  check_mean<double>(40, 1000, wish(Algorithm::shared), {}, DType::f64);
}

TEST_CASE("every all-reduce algorithm over pretended nodes", "[dist]") {
  for (const std::vector<int>& nodes : several_nodes) {
    const auto ranks = static_cast<int>(nodes.size());
    for (Algorithm a : algorithms_for(ranks, nodes))
      for (int64_t count : {1, 31, 70001}) {
        INFO(name_of(a) << " " << ranks << " ranks, " << count);
        check_mean<float>(ranks, count, wish(a), nodes, DType::f32);
        check_mean<double>(ranks, count, wish(a), nodes, DType::f64);
      }
  }
}

TEST_CASE("the tests run every algorithm but the library's", "[dist]") {
  std::set<Algorithm> able{Algorithm::native};
  for (Algorithm a : algorithms_for(2)) able.insert(a);
  for (const std::vector<int>& nodes : several_nodes)
    for (Algorithm a : algorithms_for(static_cast<int>(nodes.size()), nodes)) able.insert(a);
  CHECK(able == std::set<Algorithm>(all_algorithms().begin(), all_algorithms().end()));
}

TEST_CASE("all-reduces in windows, beside others, give the bits of those through areas", "[dist]") {
  constexpr int64_t count = 70001, stride = 1 << 20;
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0}, {0, 0, 0, 0, 0}, {0, 1, 0, 1, 1, 0}}) {
    const auto ranks = static_cast<int>(nodes.size());
    std::vector<std::vector<float>> results[2];
    for (const bool windows : {false, true}) {
      auto world = make_thread_communicators(ranks, {}, nodes);
      std::vector<std::vector<std::unique_ptr<Collectives>>> members;
      for (int node : {0, 1})
        members.push_back(make_thread_communicators(
            std::max<int>(1, static_cast<int>(std::count(nodes.begin(), nodes.end(), node)))));
      results[windows].resize(nodes.size());
      on_ranks(world, [&](int rank, Collectives& c) {
        const auto r = static_cast<size_t>(rank);
        const auto place = std::count(nodes.begin(), nodes.begin() + rank, nodes[r]);
        Collectives& node = *members[static_cast<size_t>(nodes[r])][static_cast<size_t>(place)];
        const auto shared = share_buffer(node, node.size() * stride);
        require(shared != nullptr, "threads share no memory");
        std::byte* mine = shared->data() + place * stride;
        if (windows) c.set_window({mine, stride, stride});
        auto* values = reinterpret_cast<float*>(mine);
        std::vector<float> outside, &result = results[windows][r];
        for (int round = 0; round < 3; ++round) {
          outside = values_of<float>(rank, count + round);
          std::copy_n(outside.begin(), count, values);
          const auto part = [&](int64_t begin, int64_t length) {
            return AllReduce{std::as_writable_bytes(std::span(values + begin, static_cast<size_t>(length))), DType::f32,
                             DType::f32, 1.0 / ranks, "a window"};
          };
          c.start(1, part(0, 50000));
          c.start(2, mean_of(outside, ranks, DType::f32));
          c.start(3, part(50001, count - 50001));
          for (int id : {2, 3, 1}) c.wait(id);
          result.insert(result.end(), values, values + count);
          result.insert(result.end(), outside.begin(), outside.end());
        }
        node.barrier();  // the buffer is seen by all until here
      });
    }
    for (size_t r = 0; r < nodes.size(); ++r) CHECK((results[1][r] == results[0][r]));
  }
}

TEST_CASE("shared memory is the same bytes for all, or none for anybody", "[dist]") {
  auto ranks = make_thread_communicators(3);
  on_ranks(ranks, [&](int rank, Collectives& c) {
    for (const SharedPlace place : {SharedPlace::process, SharedPlace::folder})
      for (const int64_t bytes : {int64_t{1}, 3 * page_bytes, 3 * page_bytes + 1, int64_t{1} << 20}) {
        const auto buffer = share_buffer(c, bytes, place);
        require(buffer && buffer->bytes() == bytes, "no memory");
        std::byte &first = buffer->data()[0], &last = buffer->data()[bytes - 1];
        require(first == std::byte{0} && last == std::byte{0}, "zeroed");
        c.barrier();
        if (rank == 0) first = std::byte{7};
        c.barrier();
        if (rank == 2) require(first == std::byte{7}, "what rank 0 wrote"), last = std::byte{9};
        c.barrier();
        require(last == std::byte{9}, "what rank 2 wrote");
        c.barrier();
      }
    for (const SharedPlace place : {SharedPlace::process, SharedPlace::folder})
      require(!share_buffer(c, int64_t{1} << 56, place), "more than a process can map");
  });
  const std::string mine = "convoy-" + std::to_string(getpid()) + "-";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    CHECK(!entry.path().filename().string().starts_with(mine));
}

TEST_CASE("f32 gradients may travel as bf16 or f16", "[dist]") {
  for (DType wire : {DType::bf16, DType::f16}) {
    for (int ranks : {2, 3, 4, 5})
      for (Algorithm a : algorithms_for(ranks, {}, wire)) {
        INFO(name_of(a) << " " << ranks << " ranks, " << name_of(wire));
        check_mean<float>(ranks, 4099, wish(a), {}, wire);
      }
    for (const std::vector<int>& nodes : several_nodes) {
      const auto ranks = static_cast<int>(nodes.size());
      for (Algorithm a : algorithms_for(ranks, nodes, wire)) {
        INFO(name_of(a) << " " << ranks << " ranks on nodes, " << name_of(wire));
        check_mean<float>(ranks, 4099, wish(a), nodes, wire);
      }
    }
  }
}

TEST_CASE("deterministic sums do not depend on the cut into buckets", "[dist]") {
  constexpr int ranks = 5;
  const auto run = [&](DType wire, const std::vector<int64_t>& cuts, const std::vector<int>& nodes,
                       const CommunicationTable& table = {}) {
    CommunicationOptions o;
    o.deterministic = true, o.table = table;
    auto communicators = make_thread_communicators(ranks, o, nodes);
    std::vector<float> first;
    on_ranks(communicators, [&](int rank, Collectives& c) {
      std::vector<float> mine = values_of<float>(rank, cuts.back());
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto bucket =
            std::span(mine).subspan(static_cast<size_t>(cuts[i]), static_cast<size_t>(cuts[i + 1] - cuts[i]));
        c.start(3, {std::as_writable_bytes(bucket), DType::f32, wire, 1, "a bucket"});
        c.wait(3);
      }
      if (rank == 0) first = mine;
    });
    return first;
  };
  CommunicationTable long_ones_by_messages;
  long_ones_by_messages.set(ranks, 1, 1 << 8, Algorithm::shared);
  long_ones_by_messages.set(ranks, 1, 1 << 14, Algorithm::direct);
  for (DType wire : {DType::f32, DType::bf16, DType::f16}) {
    INFO(name_of(wire));
    const std::vector<float> whole = run(wire, {0, 5000}, {});
    const auto rounded = [&](std::vector<float> values) {
      for (float& v : values) v = wire == DType::bf16 ? float(bf16(v)) : wire == DType::f16 ? float(f16(v)) : v;
      return values;
    };
    std::vector<float> in_rank_order = rounded(values_of<float>(0, 5000));
    for (int r = 1; r < ranks; ++r) {
      const std::vector<float> theirs = rounded(values_of<float>(r, 5000));
      for (size_t i = 0; i < theirs.size(); ++i) in_rank_order[i] += theirs[i];
    }
    CHECK((whole == rounded(in_rank_order)));
    CHECK((run(wire, {0, 17, 4000, 5000}, {}) == whole));
    CHECK((run(wire, {0, 17, 4000, 5000}, {}, long_ones_by_messages) == whole));
    // Over messages instead of shared memory.
    CHECK((run(wire, {0, 3000, 5000}, {0, 0, 0, 1, 1}) == whole));
    CHECK((run(wire, {0, 1700, 5000}, {0, 0, 0, 1, 1}) == whole));
  }
}

TEST_CASE("a team adds up what is long enough, with the bits of one thread", "[dist]") {
  CHECK(adding_threads(32767, 2) == 1);
  CHECK(adding_threads(32768, 2) == 2);
  CHECK(adding_threads(32768, 33) == 4);
  CHECK(adding_threads(33 * 8192, 33) == 33);
  CHECK(adding_threads(1 << 30, 1) == 1);
  constexpr int64_t count = 3 * 50007;  // so much of it belongs to each of three ranks
  for (Algorithm a : algorithms_for(3)) {
    INFO(name_of(a));
    const auto alone = means(3, count, wish(a));
    for (int threads : {2, 3}) CHECK((means(3, count, wish(a, threads)) == alone));
  }
  const auto alone = means_through_areas(8 << 20, 200003, 1);
  CHECK((alone[0] == alone[1]));
  for (int threads : {2, 3}) CHECK((means_through_areas(8 << 20, 200003, threads) == alone));
}

#ifdef __SSE__
TEST_CASE("subnormal numbers count as zero in sums, whoever adds", "[dist]") {
  constexpr float tiny = 1e-40f;  // as is the mean of two of them, if nobody flushes it
  const auto check = [&](Algorithm a, int threads, DType wire, bool messenger) {
    INFO(name_of(a) << ", " << threads << " threads, " << name_of(wire) << (messenger ? ", a thread of messages" : ""));
    auto communicators = make_thread_communicators(2, wish(a, threads));
    bool zero[] = {true, true}, own_arithmetic[] = {false, false};
    on_ranks(communicators, [&](int rank, Collectives& c) {
      if (messenger) c.start_progress_thread();
      std::vector<float> values(70001, tiny);
      std::vector<double> wide(1001, 1e-310);
      c.start(3, mean_of(values, 2, wire));
      c.start(4, mean_of(wide, 2, DType::f64));
      c.wait(4), c.wait(3);
      for (float v : values) zero[rank] = zero[rank] && v == 0;
      for (double v : wide) zero[rank] = zero[rank] && v == 0;
      volatile float mine = tiny;
      const float twice = mine + mine;
      own_arithmetic[rank] = twice > mine;
    });
    for (int rank : {0, 1}) {
      CHECK(zero[rank]);
      CHECK(own_arithmetic[rank]);  // the caller's goes on as it was
    }
  };
  for (Algorithm a : algorithms_for(2))
    for (int threads : {1, 2})
      for (bool messenger : {false, true}) check(a, threads, DType::f32, messenger);
  check(Algorithm::ring, 1, DType::bf16, false);
}
#endif

TEST_CASE("an all-reduce is planned ahead of its start", "[dist]") {
  auto communicators = make_thread_communicators(2, wish(Algorithm::shared), {0, 1});
  on_ranks(communicators, [&](int, Collectives& c) {
    std::vector<float> values(8);
    const AllReduce what = mean_of(values, 2, DType::f32);
    std::string refusal;
    try {
      c.prepare(what);
    } catch (const Error& error) {
      refusal = error.what();
    }
    require(refusal.find("shared refuses 32 bytes") != std::string::npos, "a wish that cannot be planned");
    c.set_options({});
    c.prepare(what);
    c.start(3, what);
    c.wait(3);
  });
}

TEST_CASE("several all-reduces under way, waited for out of order, beside a progress thread", "[dist]") {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 0}, {0, 1, 2}}) {
    auto communicators = make_thread_communicators(3, {}, nodes);
    on_ranks(communicators, [&](int rank, Collectives& c) {
      if (rank == 1) c.start_progress_thread();
      for (int round = 0; round < 20; ++round) {
        std::vector<std::vector<float>> buckets;
        for (int b = 0; b < 4; ++b) buckets.emplace_back(static_cast<size_t>(100 + 9000 * b), float(rank + b));
        for (int b = 0; b < 4; ++b) {
          c.start(b, mean_of(buckets[static_cast<size_t>(b)], 3, DType::f32));
          c.progress();
        }
        for (int b = 3; b >= 0; --b) {
          c.wait(b);
          for (float v : buckets[static_cast<size_t>(b)]) require(v == float(1 + b), "a bucket's mean");
        }
      }
    });
  }
}

TEST_CASE("no more all-reduces are under way than have a tag of their own", "[dist]") {
  constexpr int64_t most = 4096;
  auto communicators = make_thread_communicators(2, wish(Algorithm::shared));
  std::vector<float> values(most + 1);
  const auto start = [&](int64_t id) {
    const auto value = std::span(values).subspan(static_cast<size_t>(id), 1);
    communicators[0]->start(id,
                            {std::as_writable_bytes(value), DType::f32, DType::f32, 1, "sum " + std::to_string(id)});
  };
  for (int64_t id = 0; id < most; ++id) start(id);  // none of which ends, for want of the other rank
  CHECK_THROWS_WITH(start(most),
                    "expected at most 4096 all-reduces under way: sum 4096 is started before sum 0 has ended");
}

TEST_CASE("broadcast, all-gather, barrier", "[dist]") {
  for (int ranks : {1, 2, 3, 6}) {
    auto communicators = make_thread_communicators(ranks);
    on_ranks(communicators, [&](int rank, Collectives& c) {
      for (int root = 0; root < ranks; ++root) {
        std::vector<float> v(37, rank == root ? 5.f : 0.f);
        c.broadcast(std::as_writable_bytes(std::span(v)), root);
        require(v == std::vector<float>(37, 5.f), "broadcast");
      }
      const int32_t mine = rank * rank;
      std::vector<int32_t> all(static_cast<size_t>(ranks));
      c.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
      for (int r = 0; r < ranks; ++r) require(all[static_cast<size_t>(r)] == r * r, "all-gather");
      c.barrier();
    });
  }
}

TEST_CASE("nobody meets more ranks in a round than it can", "[dist]") {
  for (int ranks : {1, 2, 3, 5, 8, 13, 32, 65, 100})
    for (int peers : {2, 4, 64})
      for (int64_t count : {1, 100, 5000}) {  // short ones leave ranks without a part
        INFO(ranks << " ranks, " << peers << " at once, " << count);
        std::vector<Schedule> direct, gather;
        std::vector<std::vector<float>> vectors, parts;
        std::vector<float> sum(static_cast<size_t>(count)), in_order(sum.size());
        Members m{{}, 0, {0, count}};
        std::vector<Piece> pieces;
        for (int r = 0; r < ranks; ++r) m.ranks.push_back(r), pieces.push_back(part_of(m.range, r, ranks));
        for (m.self = 0; m.self < ranks; ++m.self) {
          direct.push_back(direct_schedule(m, peers));
          gather.push_back(gather_schedule(m, pieces, peers));
          vectors.push_back(values_of<float>(m.self, count));
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += vectors.back()[i];
          const Piece own = pieces[static_cast<size_t>(m.self)];
          parts.emplace_back(sum.size());
          for (int64_t i = own.begin; i < own.begin + own.count; ++i)
            parts.back()[static_cast<size_t>(i)] = in_order[static_cast<size_t>(i)] = float(i + 1);
        }
        CHECK(walk(direct, vectors) <= static_cast<size_t>(peers));
        CHECK(walk(gather, parts) <= static_cast<size_t>(peers));
        for (const std::vector<float>& v : vectors) CHECK((v == sum));
        for (const std::vector<float>& v : parts) CHECK((v == in_order));
      }
  // The same by messages.
  constexpr int many = most_peers + 6;
  auto communicators = make_thread_communicators(many);
  on_ranks(communicators, [&](int rank, Collectives& c) {
    const std::array<int32_t, 3> mine{rank, -rank, rank * rank};
    std::array<std::array<int32_t, 3>, many> all{};
    c.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < many; ++r)
      require(all[static_cast<size_t>(r)] == std::array<int32_t, 3>{r, -r, r * r}, "all-gather of many");
  });
  std::vector<int> nodes(many);
  nodes.back() = 1;
  CommunicationOptions o;
  o.deterministic = true;
  check_mean<float>(many, 4099, o, nodes, DType::f32);
  check_mean<float>(many, 4099, o, nodes, DType::bf16);
}

TEST_CASE("the choice of an algorithm: a wish, the measured table, the list", "[dist]") {
  ReductionProblem p;
  p.bytes = 8 << 20, p.nodes = {0, 0, 1, 1}, p.shares_memory = true;
  CHECK(choose_algorithm(p, {}).algorithm == Algorithm::hierarchical);
  p.nodes = {0, 0, 1};
  CHECK(choose_algorithm(p, {}).algorithm == Algorithm::ring);
  CHECK_THROWS_WITH(choose_algorithm(p, wish(Algorithm::shared)), Catch::Contains("2 nodes"));
  CHECK_THROWS_WITH(parse_algorithm("pigeon"), Catch::Contains("expected one of") && Catch::Contains("pigeon"));
  CommunicationOptions o;
  o.table.set(3, 2, 1 << 20, Algorithm::direct);
  o.table.set(3, 2, 1 << 10, Algorithm::doubling);
  CHECK(choose_algorithm(p, o).algorithm == Algorithm::direct);
  p.bytes = 100;
  CHECK(choose_algorithm(p, o).why == "measured");
  CHECK(choose_algorithm(p, o).algorithm == Algorithm::doubling);
  CHECK(explain(p).find("mpi: ranks are not connected by MPI") != std::string::npos);
}

TEST_CASE("a table of measured algorithms that cannot be written leaves the one before", "[dist]") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "table";
  CommunicationTable before, after;
  before.set(3, 2, 1 << 20, Algorithm::direct), after.set(3, 2, 1 << 20, Algorithm::ring);
  before.save(path);
  std::filesystem::create_directory(path + ".tmp");
  CHECK_THROWS_WITH(after.save(path), Catch::Contains("table.tmp: cannot open for writing"));
  ReductionProblem p;
  p.bytes = 1 << 20, p.nodes = {0, 0, 1};
  const auto found = [&] {
    const CommunicationTable table = CommunicationTable::load(path);
    const Algorithm* algorithm = table.find(p);
    return algorithm ? *algorithm : Algorithm::native;
  };
  CHECK(found() == Algorithm::direct);
  std::filesystem::remove(path + ".tmp");
  after.save(path);
  CHECK(found() == Algorithm::ring);
}
