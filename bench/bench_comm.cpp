// Times every all-reduce algorithm between the ranks of an MPI run, interleaved, beside the library's own, and fits
// latency and bandwidth.   mpirun -n 4 bench_comm [--json FILE] [--table FILE]
//
// Time of one all-reduce: the slowest rank's, from a common start. Bus bandwidth as the NCCL tests define it:
// bytes / time * 2(p-1)/p, which a perfect algorithm keeps at the speed of the slowest link for any number of ranks.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

#include "bench/arguments.h"
#include "bench/row_file.h"
#include "bench/vector_sizes.h"
#include "core/median.h"
#include "dist/local.h"
#include "dist/mpi.h"

using namespace convoy;
using namespace convoy::bench;

namespace {

using Clock = std::chrono::steady_clock;

struct Row {
  std::optional<Algorithm> algorithm;  ///< none: MPI_Allreduce, called as it is
  std::vector<double> seconds;
  bool wrong = false;
  std::string name() const { return algorithm ? std::string(name_of(*algorithm)) : "MPI_Allreduce"; }
  double minimum() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double median() const { return convoy::median(seconds); }
};

/// Least squares of time = latency + bytes / bandwidth, relative errors counting equally over the sizes; none for fewer
/// than three sizes or times that do not grow.
struct Fit {
  double latency = 0, bandwidth = 0;
};
std::optional<Fit> fit(const std::map<int64_t, double>& times) {
  if (times.size() < 3) return std::nullopt;
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const auto& [bytes, seconds] : times) {
    const double weight = 1 / (seconds * seconds), x = double(bytes);
    w += weight, wx += weight * x, wxx += weight * x * x, wy += weight * seconds, wxy += weight * x * seconds;
  }
  const double slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
  if (!(slope > 0)) return std::nullopt;
  return Fit{(wy - slope * wx) / w, 1 / slope};
}

/// Whole floats, each size once.
std::vector<int64_t> wanted_sizes(const Arguments& a) {
  constexpr int64_t most = int64_t{INT32_MAX} * 4;  // MPI_Allreduce counts floats with an int
  if (a.given("size")) {
    for (const char* flag : {"min", "max", "factor"})
      if (a.given(flag)) fail_usage(std::string("--") + flag + " has no effect beside --size");
    return {a.integer_within("size", 4, most) / 4 * 4};
  }
  const int64_t least = a.integer_within("min", 4, most), last = a.integer_within("max", least, most);
  const double factor = a.number("factor");
  if (!(factor >= 1.01)) fail_usage("--factor: expected 1.01 or more, found " + a.text("factor"));
  return vector_sizes(least, last, factor);
}

/// Those asked for, in the order of the list; throws Error(usage) on a name that is none.
std::vector<Algorithm> wanted_algorithms(const std::string& text) {
  if (text.empty()) return {all_algorithms().begin(), all_algorithms().end()};
  const auto names = split(text, ',');
  for (std::string_view name : names) parse_algorithm(name);
  std::vector<Algorithm> wanted;
  for (Algorithm algorithm : all_algorithms())
    if (std::find(names.begin(), names.end(), name_of(algorithm)) != names.end()) wanted.push_back(algorithm);
  return wanted;
}

/// Elements are alike again after so many, a prime: chunks, which are cut at powers of two, are not.
constexpr size_t period = 251;
/// Value of an element before the sum: small whole numbers, so that every order of adding them gives the same.
float element(size_t i, int rank) {
  return float((i + 7 * static_cast<size_t>(rank)) * (i + 3) % period % 16);
}

/// All algorithms and the library's own in turns, one size after the other.
class Comparison {
 public:
  Comparison(const Arguments& a, MpiSession& session, Collectives& world, const CommunicationOptions& options)
      : a_(a),
        session_(session),
        world_(world),
        options_(options),
        nodes_(*std::max_element(world.nodes().begin(), world.nodes().end()) + 1),
        wanted_(wanted_algorithms(a.text("algorithms"))),
        json_(root() ? a.text("json") : "") {
    for (size_t i = 0; i < expected_.size(); ++i)
      for (int r = 0; r < ranks(); ++r) expected_[i] += element(i, r);
  }

  /// 1 where a sum was wrong.
  int run() {
    const std::vector<int64_t> sizes = wanted_sizes(a_);
    if (!(a_.number("seconds") >= 0)) fail_usage("--seconds: expected 0 or more, found " + a_.text("seconds"));
    const bool keeps = root() && !a_.text("table").empty();
    if (keeps) require_writable(a_.text("table"));  // rather now than behind the measurement
    if (root())
      std::printf("%d ranks on %d nodes, %s\n%12s %-13s %11s %11s %10s %10s %8s\n", ranks(), nodes_,
                  mpi_version().c_str(), "bytes", "algorithm", "min us", "median us", "GB/s", "bus GB/s", "vs MPI");
    for (int64_t bytes : sizes) {
      const std::vector<Row> rows = measured(bytes);
      for (const Row& row : rows) {
        curve_[row.name()][bytes] = row.median();
        wrong_ = wrong_ || row.wrong;
      }
      if (root()) report(bytes, rows);
      remember_best(bytes, rows);
    }
    if (root() && sizes.size() > 2) report_fits();
    if (keeps) table_.save(a_.text("table"));
    return wrong_ ? 1 : 0;
  }

 private:
  int ranks() const { return world_.size(); }
  bool root() const { return world_.rank() == 0; }

  std::vector<Row> candidates(int64_t bytes) const {
    ReductionProblem problem;
    problem.bytes = bytes, problem.nodes = world_.nodes(), problem.native = true;
    problem.shares_memory = world_.shares_memory();
    if (root() && a_.flag("explain"))
      std::printf("%12lld supported by\n%s", static_cast<long long>(bytes), explain(problem).c_str());
    std::vector<Row> rows;
    for (Algorithm algorithm : wanted_)
      if (supports(algorithm, problem).ok) rows.push_back({algorithm, {}});
    rows.push_back({std::nullopt, {}});
    return rows;
  }

  /// Seconds of the slowest rank; notes in the row whether any rank's sum was wrong.
  double once(Row& row, std::vector<float>& data) {
    CommunicationOptions wish = options_;
    if (row.algorithm) wish.algorithm = name_of(*row.algorithm);
    world_.set_options(wish);
    if (row.algorithm) world_.prepare({std::as_writable_bytes(std::span(data)), DType::f32, DType::f32, 1, row.name()});
    for (size_t i = 0; i < data.size(); ++i) data[i] = element(i, world_.rank());
    // The start is the library's for all rows: a barrier by a row's own algorithm leaves ranks skewed in its own way.
    std::vector<float> start(1);
    session_.library_all_reduce(start);
    const auto before = Clock::now();
    row.algorithm ? world_.all_reduce_sum(data) : session_.library_all_reduce(data);
    const double seconds = std::chrono::duration<double>(Clock::now() - before).count();
    struct Report {
      double seconds, wrong;
    };
    Report own{seconds, 0};
    for (size_t i = 0; i < data.size(); ++i) own.wrong += data[i] != expected_[i % period];
    std::vector<Report> all(static_cast<size_t>(ranks()));
    world_.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
    double slowest = 0;
    for (const Report& report : all) {
      slowest = std::max(slowest, report.seconds);
      row.wrong = row.wrong || report.wrong > 0;
    }
    return slowest;
  }

  std::vector<Row> measured(int64_t bytes) {
    std::vector<Row> rows = candidates(bytes);
    std::vector<float> data(static_cast<size_t>(bytes / 4));
    for (Row& row : rows) once(row, data);
    // Whoever asks for seconds gets them, as far as there is memory for the samples.
    const int most_rounds = a_.given("seconds") ? 1'000'000 : 500;
    const double enough = a_.number("seconds") * double(rows.size());
    double spent = 0;
    for (int round = 0; round < 5 || (spent < enough && round < most_rounds); ++round)
      for (Row& row : rows) {
        row.seconds.push_back(once(row, data));
        spent += row.seconds.back();  // every rank counts the same times and stops after the same round
      }
    return rows;
  }

  void report(int64_t bytes, const std::vector<Row>& rows) {
    const double native = rows.back().median();
    for (const Row& row : rows) {
      const double gbs = double(bytes) / row.median() * 1e-9, bus = gbs * 2 * (ranks() - 1) / ranks(),
                   ratio = native / row.median();
      const std::string name = row.name();
      std::printf("%12lld %-13s %11.2f %11.2f %10.3f %10.3f %8s%s\n", static_cast<long long>(bytes), name.c_str(),
                  1e6 * row.minimum(), 1e6 * row.median(), gbs, bus, std::to_string(ratio).substr(0, 5).c_str(),
                  row.wrong ? "  WRONG" : "");
      std::ostringstream line;
      line << "{\"ranks\":" << ranks() << ",\"nodes\":" << nodes_ << ",\"bytes\":" << bytes << ",\"algorithm\":\""
           << name << "\",\"min_ms\":" << 1e3 * row.minimum() << ",\"median_ms\":" << 1e3 * row.median()
           << ",\"bus_gb_per_s\":" << bus << ",\"mpi_ratio\":" << ratio
           << ",\"correct\":" << (row.wrong ? "false" : "true") << ",\"library\":" << json_string(mpi_version()) << "}";
      json_.row(line.str());
    }
    std::fflush(stdout);
  }

  void remember_best(int64_t bytes, const std::vector<Row>& rows) {
    const Row* best = nullptr;
    for (const Row& row : rows)
      if (!row.wrong && row.algorithm && (!best || row.median() < best->median())) best = &row;
    if (best) table_.set(ranks(), nodes_, bytes, *best->algorithm);
  }

  void report_fits() {
    std::printf("fit of time = latency + bytes / bandwidth\n");
    for (const auto& [name, times] : curve_) {
      const std::optional<Fit> f = fit(times);
      if (!f) {
        std::printf("  %-13s times do not grow with these sizes\n", name.c_str());
        continue;
      }
      std::printf("  %-13s %10.2f us %10.3f GB/s\n", name.c_str(), 1e6 * f->latency, 1e-9 * f->bandwidth);
      std::ostringstream line;
      line << "{\"fit\":\"" << name << "\",\"latency_us\":" << 1e6 * f->latency
           << ",\"gb_per_s\":" << 1e-9 * f->bandwidth << "}";
      json_.row(line.str());
    }
  }

  const Arguments& a_;
  MpiSession& session_;
  Collectives& world_;
  const CommunicationOptions options_;
  const int nodes_;
  const std::vector<Algorithm> wanted_;
  std::array<float, period> expected_{};  ///< the sums, which have the elements' period
  RowFile json_;
  CommunicationTable table_;
  std::map<std::string, std::map<int64_t, double>> curve_;  ///< median seconds by algorithm and size
  bool wrong_ = false;
};

int run(int argc, char** argv) {
  const Arguments a(
      argc, argv,
      {{"min", "4", "smallest vector in bytes"},
       {"max", "268435456", "largest vector in bytes, measured whatever the factor"},
       {"size", "0", "only this size in bytes, for example 35600000"},
       {"factor", "8", "from one size to the next"},
       {"algorithms", "", "only these, comma-separated"},
       {"seconds", "0.2", "spent per algorithm and size at least, unless 500 times take less and it is not given"},
       {"threads", "1", "threads per rank that add up"},
       {"shared-mib", "-1", "shared memory per rank; -1: what the trainers use"},
       {"ranks-per-node", "0", "pretend that nodes hold so many ranks"},
       {"explain", "no", "yes: why algorithms refuse"},
       {"json", "", "also write JSON lines to this file"},
       // Not "tune": Open MPI's mpirun takes that for a parameter of its own, wherever it stands.
       {"table", "", "write the fastest algorithm per size to this table (--comm-table of the trainers)"}});
  MpiOptions mpi;
  mpi.shared_mib = static_cast<int>(a.integer_within("shared-mib", -1, 1 << 20));
  mpi.ranks_per_node = static_cast<int>(a.integer_within("ranks-per-node", 0, 1 << 20));
  mpi.lost = [](const std::string& sentence) { std::fprintf(stderr, "bench_comm: error: %s\n", sentence.c_str()); };
  mpi.warn = [](const std::string& sentence) { std::fprintf(stderr, "bench_comm: warning: %s\n", sentence.c_str()); };
  if (find_launch().launcher.empty()) fail_usage("start it with mpirun -n RANKS");
  CommunicationOptions options;
  options.threads = static_cast<int>(a.integer_within("threads", 1, 4096));
  const std::unique_ptr<MpiSession> session = start_mpi(mpi);
  // To end a communicator takes all ranks: an error on one must not begin with that.
  const std::unique_ptr<Collectives> world = session->world(options);
  int code = static_cast<int>(ErrorKind::runtime);
  std::string message;
  try {
    if (world->size() < 2) fail_usage("needs at least two ranks, found one");
    code = Comparison(a, *session, *world, options).run();
    session->finish();
    return code;
  } catch (const Error& error) {
    message = error.what(), code = error.exit_code();
  } catch (const std::exception& error) {  // out of memory, for one
    message = error.what();
  }
  std::fprintf(stderr, "bench_comm: error: %s\n", message.c_str());
  session->abort(code);  // the others would wait for this rank
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("bench_comm", run, argc, argv);
}
