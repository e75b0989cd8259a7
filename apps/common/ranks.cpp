#include "apps/common/ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>

#include "apps/common/cores.h"
#include "apps/common/fingerprint.h"
#include "apps/common/run_lock.h"
#include "apps/common/run_settings.h"
#include "apps/common/say.h"
#include "core/median.h"
#include "core/parallel.h"
#include "dist/local.h"
#include "dist/shared_buffer.h"
#include "io/crc32c.h"
#include "io/file.h"
#include "kernels/device/device.h"
#include "kernels/plugin_list.h"

namespace convoy::apps {
namespace {

using K = Option::Kind;
using Clock = std::chrono::steady_clock;

/// So many neighbouring ranks share batch-norm statistics; programs whose networks have no batch norm lack the flag.
int64_t batch_norm_ranks(const OptionTable& o) {
  return o.has("batchnorm-group-size") ? o.integer("batchnorm-group-size") : 1;
}

DType wire_type(const OptionTable& o) {
  const auto type = parse_dtype(o.text("gradient-wire"));
  if (!type || (*type != DType::f32 && *type != DType::bf16 && *type != DType::f16))
    fail_usage("--gradient-wire: expected f32, bf16 or f16, found " + o.text("gradient-wire"));
  return *type;
}

void leave_mark(const std::string& mark, const std::string& sentence) {
  if (!mark.empty()) std::ofstream(mark) << sentence << '\n';
}

/// A measured table as something to compare; empty for none.
std::string table_digest(const OptionTable& o) {
  if (o.text("comm-table").empty()) return "";
  const std::vector<std::byte> bytes = read_file(o.text("comm-table"));
  return fmt::format("{} bytes, CRC {:08x}", bytes.size(), crc32c(bytes));
}

}  // namespace

std::string lost_mark(const OptionTable& o) {
  return o.has("output-dir") ? o.text("output-dir") + "/lost" : "";
}

std::vector<Option> rank_options() {
  return {
      {"all-reduce", "", "",
       "algorithm for gradients: shared, direct, doubling, hierarchical, halving, ring, mpi "
       "(empty: the measured table, else the first that fits)"},
      {"comm-table", "", "", "table of measured algorithms (bench_comm --table)"},
      {"deterministic", "", "false", "sums between ranks in rank order: the same bits for any buckets", K::toggle},
      {"gradient-wire", "", "f32", "f32, bf16 or f16: what gradients travel as between ranks; sums stay f32"},
      Option{"bucket-mib", "", "0", "gradients per all-reduce (0 = from measured latency and bandwidth)", K::number}
          .within(0, 65536),
      {"peer-access", "", "true",
       "with --device cuda on one node, where devices can: gradients go from device to device, not through the host "
       "(unless --all-reduce or --comm-table is given)",
       K::toggle},
      {"comm-thread", "", "false", "a thread of its own drives messages on; costs a core", K::toggle},
      {"share-weights", "", "true",
       "ranks of a NUMA domain hold weights and moments once, divide packing and updating (without gradient lag)",
       K::toggle},
      Option{"comm-timeout", "", "30", "seconds of silence after which a rank counts as lost", K::number}.within(1,
                                                                                                                 3600),
      Option{"ranks-per-node", "", "0", "pretend that nodes hold so many ranks (tests of hierarchical sums)",
             K::integer}
          .within(0, 1 << 20)};
}

CommunicationOptions communication_options(const OptionTable& o) {
  CommunicationOptions c;
  c.algorithm = o.text("all-reduce");
  if (!c.algorithm.empty()) parse_algorithm(c.algorithm);
  if (!o.text("comm-table").empty()) c.table = CommunicationTable::load(o.text("comm-table"));
  c.deterministic = o.toggle("deterministic");
  return c;
}

Ranks::Ranks(const OptionTable& o) {
  const Launch launch = find_launch();
  const std::string mark = lost_mark(o);
  if (launch.launcher.empty() || launch.tasks == 1) {
    world_ = make_self_communicator();
    return;
  }
  MpiOptions m;
  m.timeout = o.number("comm-timeout");
  m.ranks_per_node = static_cast<int>(o.integer("ranks-per-node"));
  auto number = std::make_shared<std::atomic<int>>(-1);  // the watchdog may call ahead of its value
  m.lost = [number, mark](const std::string& sentence) {
    leave_mark(mark, sentence);  // ahead of the lock, with which an empty folder goes
    release_run_lock();
    // Without exceptions, which nobody could catch here: stderr may lie on a full disk.
    std::fprintf(stderr, "[rank %d] error: %s; what was saved last can be continued with --resume\n", number->load(),
                 sentence.c_str());
    std::fflush(stderr);
  };
  m.warn = [](const std::string& sentence) { say(stderr, "warning: {}\n", sentence); };
  session_ = start_mpi(m);
  *number = session_->rank();
}

void Ranks::connect(const OptionTable& o) {
  if (session_->rank() != 0 && !std::freopen("/dev/null", "w", stdout)) fail_runtime("/dev/null: cannot open");
  // Ranks that were given different algorithms would hang in the sums that are to tell it: divide() sets them.
  world_ = session_->world({});
  // What belongs to a machine may differ, everything else must not.
  nlohmann::json settings;
  const std::set<std::string> own{"threads",   "kernel",   "tuned",           "output-dir",
                                  "stage-dir", "prefetch", "n-parallel-reads"};
  for (const Option& option : o.all())
    if (!own.count(option.flag)) expect_text(option.value), settings[option.flag] = option.value;
  settings["comm-table (contents)"] = table_digest(o);
  settings["plugins (CONVOY_PLUGINS)"] = plugin_kernels();
  agree(settings);
}

void Ranks::divide(const OptionTable& o) {
  CommunicationOptions c = communication_options(o);  // mistakes in them are mistakes of a single rank, too
  const bool on_device = o.has("device") && o.text("device") != "cpu";
  peer_access_asked_ = o.toggle("peer-access") && o.is_set("peer-access");
  // Who names an algorithm, or has measured some, wants it.
  for (const char* flag : {"all-reduce", "comm-table"})
    if (!o.text(flag).empty()) algorithm_flag_ = std::string("--") + flag;
  if (peer_access_asked_ && !algorithm_flag_.empty())
    fail_usage("--peer-access and " + algorithm_flag_ + " exclude each other: devices add up gradients in one way");
  peer_access_ = o.toggle("peer-access") && algorithm_flag_.empty();
  if (peer_access_asked_ && (!on_device || size() == 1))
    fail_usage(std::string("--peer-access has no effect ") + (on_device ? "on a single rank" : "on the CPU"));
  if (!session_) {
    if (batch_norm_ranks(o) != 1)
      fail_usage("--batchnorm-group-size: expected 1 on a single rank, found " + o.text("batchnorm-group-size"));
    return;
  }
  gather_cores();
  share_cores(o);
  // A thread that drives messages on would start a second team.
  if (!o.toggle("comm-thread")) c.threads = wanted_threads(o);
  world_->set_options(c);
  if (rank() == 0 && !o.text("comm-table").empty() && !c.table.measured(size(), nodes()))
    say(stderr,
        "warning: --comm-table {}: nothing in it is for {} ranks on {} nodes: algorithms are those without it\n",
        o.text("comm-table"), size(), nodes());
  const int64_t group = batch_norm_ranks(o);
  if (group < 1 || size() % group != 0)
    fail_usage(fmt::format("--batchnorm-group-size: {} ranks do not divide into groups of {}", size(), group));
  if (group > 1) {
    CommunicationOptions small;  // the table and the wish are meant for gradients
    small.deterministic = c.deterministic, small.threads = c.threads;
    batch_norm_ = session_->group(static_cast<int>(rank() / group), small);
  }
  // With lagged gradients ranks may be a step apart: they would wait for each other's weights.
  const bool lagged = o.has("gradient-lag") && o.integer("gradient-lag") > 0;
  // Devices have memory of their own.
  if (o.toggle("share-weights") && size() > 1 && !lagged && !on_device) find_team();
  if (o.toggle("comm-thread") && size() > 1) world_->start_progress_thread();
}

void Ranks::find_team() {
  const auto me = static_cast<size_t>(rank());
  // A rank on several domains stays alone: memory of one of them would be far from its other cores.
  constexpr int domains = 1024;  // of a node
  const int domain = numa_domain(cores_[me]);
  team_ = session_->group(domain < 0 ? nodes() * domains + rank() : node() * domains + domain, {});
  // A trial: processes in different containers do not see each other's memory.
  if (team_->size() == 1 || !share_buffer(*team_, 1)) team_.reset();
}

void Ranks::meet_team() {
  if (team_) team_->barrier();
}

std::shared_ptr<Buffer> Ranks::share(const ProgramPlans& plans) {
  if (!team_) return nullptr;
  std::string layout = std::to_string(plans.shared_bytes());
  for (const Plan* plan : {&plans.step, plans.micro ? &*plans.micro : nullptr})
    if (plan)
      for (ValueId id : ids_of(plan->values))
        if (plan->shared_offset[id] >= 0)
          layout += fmt::format("{} {}\n", plan->value(id).name, plan->value(id).desc.bytes());
  for (const auto& [id, at] : plans.step.shared_states) layout += fmt::format("{} {}\n", plans.step.value(id).name, at);
  const size_t mine = std::hash<std::string>()(layout);
  std::vector<size_t> all(static_cast<size_t>(team_size()));
  team_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  if (std::count(all.begin(), all.end(), mine) != team_size())
    fail_usage(
        "ranks that share weights must choose the same kernels: give all the same --kernel and --tuned, "
        "or --no-share-weights");
  if (plans.shared_bytes() == 0) return nullptr;
  auto buffer = share_buffer(*team_, plans.shared_bytes());
  if (!buffer)
    fail_runtime(
        fmt::format("cannot share {} MiB of weights and gradients between {} ranks (memory limit of the node?): "
                    "--no-share-weights does without",
                    plans.shared_bytes() >> 20, team_size()));
  return buffer;
}

void Ranks::set_window(const SharedWindow& window) {
  if (team_ && team_size() == on_node()) world_->set_window(window);
}

Ranks::~Ranks() = default;

void Ranks::show_device(const Device& device) {
  const size_t mine = std::hash<std::string>()(device.identity());
  std::vector<size_t> all(static_cast<size_t>(size()));
  world_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  const std::vector<int>& nodes = world_->nodes();
  std::set<size_t> here;
  for (size_t r = 0; r < all.size(); ++r)
    if (nodes[r] == nodes[static_cast<size_t>(rank())]) here.insert(all[r]);
  devices_on_node_ = static_cast<int>(here.size());
}

std::string Ranks::meet_devices(Executor& step) {
  const auto through_host = [](const std::string& why) {
    return "through the host" + (why.empty() ? "" : " (" + why + ")");
  };
  if (!peer_access_) return through_host(algorithm_flag_);
  if (on_node() != size()) {
    if (peer_access_asked_)
      fail_usage(fmt::format("--peer-access: all ranks on one node only, found {} nodes", nodes()));
    return through_host("");
  }
  if (step.meet_peers(*world_, [&](int64_t bytes) { return share_buffer(*world_, bytes); }))
    return "from device to device";
  return through_host(why_no_peer_sums());
}

int Ranks::nodes() const {
  return *std::max_element(world_->nodes().begin(), world_->nodes().end()) + 1;
}

int Ranks::on_node() const {
  const std::vector<int>& nodes = world_->nodes();
  return static_cast<int>(std::count(nodes.begin(), nodes.end(), node()));
}

int Ranks::place_on_node() const {
  const std::vector<int>& nodes = world_->nodes();
  return static_cast<int>(std::count(nodes.begin(), nodes.begin() + rank(), node()));
}

std::vector<Communicator*> Ranks::groups() {
  if (size() == 1) return {};
  return {world_.get(), batch_norm_ ? batch_norm_.get() : world_.get()};
}

CommunicationTimes Ranks::times() const {
  CommunicationTimes all = world_->times();
  if (batch_norm_) {
    const CommunicationTimes more = batch_norm_->times();
    all.in_flight += more.in_flight, all.exposed += more.exposed;
    all.reductions += more.reductions, all.bytes += more.bytes;
  }
  if (team_) all.met = team_->times().exposed, all.exposed += all.met;
  return all;
}

void Ranks::start_trace() {
  world_->start_trace();
  if (batch_norm_) batch_norm_->start_trace();
}

std::vector<MessageEvent> Ranks::messages() const {
  std::vector<MessageEvent> all = world_->trace();
  if (batch_norm_) all.insert(all.end(), batch_norm_->trace().begin(), batch_norm_->trace().end());
  return all;
}

void Ranks::gather_cores() {
  std::vector<int> mine = allowed_cores();
  const int64_t count = std::ssize(mine);
  std::vector<int64_t> counts(static_cast<size_t>(size()));
  world_->all_gather(std::as_bytes(std::span(&count, 1)), std::as_writable_bytes(std::span(counts)));
  const auto width = static_cast<size_t>(*std::max_element(counts.begin(), counts.end()));
  std::vector<int> all(width * counts.size());
  mine.resize(width);
  world_->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (size_t r = 0; r < counts.size(); ++r) {
    const auto row = std::span(all).subspan(r * width, static_cast<size_t>(counts[r]));
    cores_.emplace_back(row.begin(), row.end());
  }
}

/// Ranks of a host that may run on the same cores divide them among themselves.
void Ranks::share_cores(const OptionTable& o) {
  if (size() == 1 || o.integer("threads") > 0 || std::getenv("OMP_NUM_THREADS")) return;
  const std::vector<std::string>& hosts = session_->hosts();
  const auto me = static_cast<size_t>(rank());
  int64_t sharing = 0;
  for (size_t r = 0; r < cores_.size(); ++r) sharing += hosts[r] == hosts[me] && cores_[r] == cores_[me];
  set_default_threads(static_cast<int>(std::max<int64_t>(1, std::ssize(cores_[me]) / sharing)));
  divides_cores_ = true;
}

AveragingOptions Ranks::averaging(const OptionTable& o, DType compute) {
  AveragingOptions a;
  a.ranks = size();
  a.wire = compute == DType::f64 ? DType::f64 : wire_type(o);
  a.batch_norm_ranks = batch_norm_ranks(o);
  const double mib = o.number("bucket-mib");
  if (mib > 0) {
    a.bucket_bytes = static_cast<int64_t>(mib * (1 << 20));
    return a;
  }
  // Lagged buckets are states: a resumed run must cut them as the one before did.
  const bool lagged = o.has("gradient-lag") && o.integer("gradient-lag") > 0;
  if (size() == 1 || lagged) return a;
  // Latency from short sums, seconds per byte from long ones; the middle of five.
  const auto seconds = [&](size_t elements) {
    std::vector<float> data(elements);
    std::vector<double> times;
    for (int i = 0; i < 6; ++i) {
      const auto before = Clock::now();
      world_->all_reduce_sum(data);
      if (i > 0) times.push_back(std::chrono::duration<double>(Clock::now() - before).count());
    }
    return median(times);
  };
  double measured[2] = {seconds(256), seconds(1 << 20)};
  world_->broadcast(std::as_writable_bytes(std::span(measured)), 0);
  latency_ = measured[0];
  seconds_per_byte_ = std::max(1e-12, (measured[1] - measured[0]) / double(4 << 20));
  // Latency then costs a twentieth of a bucket's time.
  const double bytes = 20 * latency_ / seconds_per_byte_;
  a.bucket_bytes = std::clamp<int64_t>(static_cast<int64_t>(bytes), int64_t{1} << 20, int64_t{64} << 20);
  return a;
}

std::string Ranks::report(int threads, const AveragingOptions& a) {
  if (size() == 1) return "";
  const std::string line =
      fmt::format("  rank {:<4} {:<20} {} threads on cores {}", rank(), session_->hosts()[static_cast<size_t>(rank())],
                  threads, core_text(allowed_cores()));
  const std::vector<std::string> lines = collect_text(line);
  std::string text = fmt::format("{} ranks on {} nodes, {}\n", size(), nodes(), mpi_version());
  for (const std::string& l : lines) text += l + "\n";
  const AlgorithmChoice choice = world_->choice(a.bucket_bytes, DType::f32, a.wire);
  text += fmt::format("  gradients travel in buckets of {:.1f} MiB as {}, all-reduce {} ({})",
                      double(a.bucket_bytes) / (1 << 20), name_of(a.wire), name_of(choice.algorithm), choice.why);
  if (team_) text += fmt::format("; {} ranks hold weights and moments once", team_size());
  if (latency_ > 0) text += fmt::format("; measured {:.0f} us, {:.1f} GB/s", 1e6 * latency_, 1e-9 / seconds_per_byte_);
  text += "\n";

  // Threads of a node against the cores that its ranks may use, and those against all that it has.
  struct Own {
    int threads;
    long cores;
  };
  const Own mine{threads, sysconf(_SC_NPROCESSORS_ONLN)};
  std::vector<Own> all(static_cast<size_t>(size()));
  world_->all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (int node = 0; node < nodes(); ++node) {
    std::set<int> usable;
    int wanted = 0;
    long cores = 0;
    for (size_t r = 0; r < all.size(); ++r) {
      if (world_->nodes()[r] != node) continue;
      wanted += all[r].threads, cores = all[r].cores;
      usable.insert(cores_[r].begin(), cores_[r].end());
    }
    if (usable.empty() || !root()) continue;
    if (wanted > std::ssize(usable))
      say(stderr, "warning: node {} runs {} threads on {} cores: lower --threads or bind fewer ranks to it\n", node,
          wanted, usable.size());
    // All that a job was given, or the launcher binds them.
    if (divides_cores_ && 2 * std::ssize(usable) <= cores)
      text += fmt::format("  ranks of node {} may run on {} of its {} cores\n", node, usable.size(), cores);
  }
  return text;
}

void Ranks::broadcast_states(Program& program, std::span<const std::string> states) {
  std::vector<std::byte> unused;  // takes what another member of the team writes
  for (const std::string& name : states) {
    const Tensor& tensor = program.store().get(name);
    const auto bytes = static_cast<size_t>(tensor.desc().bytes());
    const bool fills = program.store().fills(name);
    if (!fills) unused.resize(std::max(unused.size(), bytes));
    world_->broadcast({fills ? tensor.bytes() : unused.data(), bytes}, 0);
  }
  program.to_device();
}

std::string Ranks::broadcast_text(const std::string& text) {
  int64_t length = static_cast<int64_t>(text.size());
  world_->broadcast(std::as_writable_bytes(std::span(&length, 1)), 0);
  std::string result = text;
  result.resize(static_cast<size_t>(length));
  world_->broadcast(std::as_writable_bytes(std::span(result)), 0);
  return result;
}

std::vector<std::string> Ranks::collect_text(const std::string& text) {
  std::vector<int64_t> lengths(static_cast<size_t>(size()));
  const auto length = static_cast<int64_t>(text.size());
  world_->all_gather(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)));
  std::vector<std::string> all;
  for (int r = 0; r < size(); ++r) {
    std::string theirs = r == rank() ? text : std::string();
    theirs.resize(static_cast<size_t>(lengths[static_cast<size_t>(r)]));
    const int pair[] = {0, r};
    if (r > 0 && (root() || r == rank())) world_->broadcast_among(pair, r, std::as_writable_bytes(std::span(theirs)));
    if (root()) all.push_back(std::move(theirs));
  }
  return all;
}

nlohmann::json Ranks::of_all(int number) {
  std::vector<int> all(static_cast<size_t>(size()), number);
  world_->all_gather(std::as_bytes(std::span(&number, 1)), std::as_writable_bytes(std::span(all)));
  if (std::all_of(all.begin(), all.end(), [&](int other) { return other == all[0]; })) return all[0];
  return all;
}

void Ranks::agree(const nlohmann::json& values) {
  if (size() == 1) return;
  const auto first = nlohmann::json::parse(broadcast_text(values.dump()));
  std::string message;
  for (const auto& [key, value] : first.items())
    if (values.value(key, nlohmann::json()) != value && message.empty())
      message = fmt::format("setting {} differs between ranks: rank 0 has {}, rank {} has {}", key, value.dump(),
                            rank(), values.value(key, nlohmann::json()).dump());
  float differs = message.empty() ? 0 : 1;
  world_->all_reduce_sum(std::span(&differs, 1));
  if (!message.empty()) fail_usage(message);
  // The ranks that differ tell; the others wait to be ended with them.
  if (differs > 0) {
    sleep(5);
    fail_usage(fmt::format("{} ranks differ from rank 0", differs));
  }
}

int run_ranks(const char* name, const OptionTable& options, const std::function<void(Ranks&)>& complete,
              const std::function<int(Ranks&)>& body) {
  std::signal(SIGPIPE, SIG_IGN);  // readers may end before the run: "| tee" at Ctrl-C
  Ranks ranks(options);
  const auto run = [&] {
    place_on_devices(ranks.place_on_node());
    complete(ranks);
    ranks.divide(options);
    return body(ranks);
  };
  if (!ranks.session()) return run();
  int code = static_cast<int>(ErrorKind::runtime);
  std::string message;
  try {
    ranks.connect(options);
    code = run();
    release_run_lock();  // launchers that were asked to stop the job may not wait for more
    ranks.session()->finish();
    return code;
  } catch (...) {
    const Failure failure = current_failure();
    message = failure.text, code = failure.code;
    if (code == static_cast<int>(ErrorKind::lost_rank)) leave_mark(lost_mark(options), message);
  }
  // A wrong setting is wrong on all ranks: one of them is enough to say so.
  if (ranks.session()->rank() > 0 && code == static_cast<int>(ErrorKind::usage)) usleep(300000);
  say(stderr, "{}: [rank {}] error: {}\n", name, ranks.session()->rank(), message);
  release_run_lock();
  ranks.session()->abort(code);
  return code;
}

void expect_single_task() {
  const Launch launch = find_launch();
  if (launch.tasks > 1)
    fail_usage(fmt::format("expected a single task, found {} ({}): this program does not divide its work between ranks",
                           launch.variable, launch.launcher));
}

}  // namespace convoy::apps
