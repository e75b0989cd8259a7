// Makes CosmoFlow data sets: particle-mesh universes with drawn parameters, cut and written in the official layout.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>

#include "apps/common/options.h"
#include "apps/common/physical_scale.h"
#include "apps/common/ranks.h"
#include "apps/common/simulation_record.h"
#include "apps/common/say.h"
#include "apps/common/svg.h"
#include "apps/simulate/universe.h"
#include "core/error.h"
#include "core/free_memory.h"
#include "core/parallel.h"
#include "core/philox.h"
#include "core/round_up.h"
#include "io/dataset.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "io/tfrecord.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* power_file = "power_spectrum.svg";

/// Particles, meshes and counts of one universe, measured.
constexpr int64_t bytes_per_voxel = 64;

using simulate::Cosmology;
using simulate::Universe;
using simulate::UniverseOptions;

std::vector<Option> option_list() {
  using K = Option::Kind;
  return {
      {"out", "", "", "folder to write train/ and validation/ into (required)"},
      Option{"universes", "", "64", "universes for training", K::integer}.within(0, 1 << 20),
      Option{"validation", "", "16", "universes for validation", K::integer}.within(0, 1 << 20),
      Option{"size", "", "64", "voxels and particles per side of a universe", K::integer}.within(2, 4096),
      {"crop", "", "0",
       "tfrecord: cut universes into cubes of this extent; hdf5: chunks of it, of 128 at most, readers cut (0 = whole)",
       K::integer},
      {"voxel", "", "2", "voxel extent in units of (H_0/70) Mpc/h", K::number},
      Option{"spread", "", "0.1", "parameters vary by this share around their centres", K::number}.within(0, 0.8),
      Option{"seed", "", "1", "of parameters and phases", K::integer}.within(-0x1p63),
      {"format", "", "tfrecord", "tfrecord or hdf5"},
      {"gzip", "", "true", "compress", K::toggle},
      Option{"steps", "", "12", "particle-mesh steps to z = 0", K::integer}.within(1, 100000),
      {"transfer", "", "eisenstein-hu", "eisenstein-hu or bbks"},
      Option{"threads", "", "0", "0 = OMP_NUM_THREADS or all cores", K::integer}.within(0, most_threads)};
}

struct Drawn {
  std::array<float, 4> unit, physical;
  Cosmology cosmology;
};

/// Omega_m, sigma_8, n_s, H_0: flat within centre * (1 +- spread). unitPar is in [-1, 1).
Drawn draw_parameters(uint64_t seed, int64_t universe, double spread) {
  const PhiloxStream random(seed, hash_name("parameters"));
  Drawn d;
  for (size_t i = 0; i < 4; ++i) {
    const double u = 2.0 * random.uniform(static_cast<uint64_t>(universe) * 4 + i) - 1.0;
    d.unit[i] = static_cast<float>(u);
    d.physical[i] = static_cast<float>(parameter_centres[i] * (1 + spread * u));
  }
  d.cosmology = {.omega_m = d.physical[0], .sigma_8 = d.physical[1], .n_s = d.physical[2], .h = d.physical[3] / 100.0};
  return d;
}

/// `wish` with the voxel of this universe: --voxel is in units of (H_0/70) Mpc/h.
UniverseOptions options_of(const UniverseOptions& wish, const Drawn& d) {
  UniverseOptions o = wish;
  o.voxel = wish.voxel * d.physical[3] / parameter_centres[3];
  return o;
}

/// Refuses voxels that particles leave in no universe up to z = 0, and warns of redshifts at which they do not yet:
/// counts are one per voxel then, whatever the parameters.
void expect_displacements(const UniverseOptions& wish, int64_t universes, double spread, int threads) {
  struct Channel {
    int64_t still = 0;  ///< universes whose particles move less than half a voxel
    double least = INFINITY, voxel = 0;
  };
  std::array<Channel, simulate::redshifts.size()> channels;
  std::mutex mutex;
  parallel_units(universes, threads, [&](int64_t universe) {
    const Drawn d = draw_parameters(wish.seed, universe, spread);
    const UniverseOptions o = options_of(wish, d);
    const double last = simulate::displacement_in_voxels(d.cosmology, o);
    const simulate::Growth growth(d.cosmology.omega_m);
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < channels.size(); ++i) {
      const double voxels = last * growth.factor(1 / (1 + simulate::redshifts[i]));
      Channel& c = channels[i];
      c.still += voxels < 0.5;
      if (voxels < c.least) c.least = voxels, c.voxel = o.voxel;
    }
  });
  for (size_t i = 0; i < channels.size(); ++i) {
    const Channel& c = channels[i];
    if (c.still == 0) continue;
    const std::string what = fmt::format(
        "--voxel {}: expected particles that move half a voxel, {:.3g} Mpc/h, or more up to z = {}, found {:.3g} (rms "
        "along an axis) in the worst of {} universes with less",
        wish.voxel, c.voxel / 2, simulate::redshifts[i], c.least * c.voxel, c.still);
    if (simulate::redshifts[i] == 0 && c.still == universes) fail_usage(what + ": counts would hold next to nothing");
    say(stderr, "warning: {}: its counts have about {:.0f} % of the power of large scales\n", what,
        100 * simulate::counted_power(c.least));
  }
}

struct Job {
  std::string folder;
  int64_t universe;
  int64_t size, crop;
  bool hdf5, gzip;
};

std::vector<std::byte> cut(const Universe& u, int64_t crop, int64_t z, int64_t y, int64_t x) {
  std::vector<int16_t> part(static_cast<size_t>(crop * crop * crop * 4));
  for (int64_t i = 0; i < crop; ++i)
    for (int64_t j = 0; j < crop; ++j) {
      const auto* row = u.counts.data() + (((z * crop + i) * u.size + y * crop + j) * u.size + x * crop) * 4;
      std::copy(row, row + crop * 4, part.data() + (i * crop + j) * crop * 4);
    }
  const auto bytes = std::as_bytes(std::span(part));
  return {bytes.begin(), bytes.end()};
}

void write_records(const Job& job, const Universe& u, const Drawn& d) {
  const int64_t per_axis = job.size / job.crop;
  for (int64_t i = 0; i < per_axis * per_axis * per_axis; ++i) {
    const auto voxels = cut(u, job.crop, i / (per_axis * per_axis), i / per_axis % per_axis, i % per_axis);
    std::vector<std::byte> file = encode_tfrecord(voxels, d.unit);
    if (job.gzip) file = gzip_compress(file, 6);
    write_file((fs::path(job.folder) / fmt::format("univ_{:07d}_{:03d}.tfrecord", job.universe, i)).string(), file);
  }
}

/// The raw release's keys: one file per universe, cut by the reader.
void write_raw(const Job& job, const Universe& u, const Drawn& d) {
  const std::string path = (fs::path(job.folder) / fmt::format("univ_ics_a{:07d}.hdf5", job.universe)).string();
  write_atomically(path, [&](const std::string& temporary) {
    Hdf5File file(temporary, Hdf5File::Mode::create);
    const auto chunk = cube_chunk(job.crop, 4);
    const int64_t extents[] = {u.size, u.size, u.size, 4}, four[] = {4};
    file.write("full", DType::i16, extents, std::as_bytes(std::span(u.counts)),
               job.gzip ? std::span<const int64_t>(chunk) : std::span<const int64_t>(), job.gzip ? 4 : 0);
    file.write("unitPar", DType::f32, four, std::as_bytes(std::span(d.unit)));
    file.write("physPar", DType::f32, four, std::as_bytes(std::span(d.physical)));
    file.write("redshifts", DType::f64, four, std::as_bytes(std::span(simulate::redshifts)));
    file.write_text("namePar", "Omega_m,sigma_8,N_spec,H_0");
    file.close();
  });
}

/// Measured spectra of one universe against linear theory. The shot noise of a Poisson sample is drawn, not subtracted:
/// particles that start on a lattice have less, and none on large scales.
void write_power_plot(const std::string& path, const Universe& u, const Drawn& d, simulate::Transfer transfer) {
  const simulate::PowerSpectrum linear(d.cosmology, transfer);
  const simulate::Growth growth(d.cosmology.omega_m);
  Plot plot{
      "power spectrum of one universe", "k [h/Mpc]", "P(k) [(Mpc/h)^3]", {}, Plot::Scale::log, Plot::Scale::log, false};
  for (int channel = 0; channel < 4; ++channel) {
    const double z = simulate::redshifts[static_cast<size_t>(channel)], g = growth.factor(1 / (1 + z));
    const auto measured = simulate::measure_power(simulate::contrast(u, channel), u.size, u.box, 1);
    plot.series.push_back({fmt::format("z = {}", z), measured.k, measured.power, Series::Mark::points});
    if (z != 0 && z != 3) continue;
    Series theory{fmt::format("linear, z = {}", z), measured.k, {}, Series::Mark::dashed};
    for (double k : measured.k) theory.y.push_back(g * g * linear(k));
    plot.series.push_back(std::move(theory));
  }
  const std::vector<double>& k = plot.series[0].x;
  const double shot = std::pow(u.box / double(u.size), 3);
  plot.series.push_back({"Poisson noise", {k.front(), k.back()}, {shot, shot}, Series::Mark::dashed});
  write_text(path, render_svg({plot}));
}

int simulate_main(int argc, char** argv) {
  OptionTable options(option_list());
  if (!options.read(argc, argv,
                    "Simulates dark-matter universes and writes them as a CosmoFlow data set. Exit codes: 0 done, 1 "
                    "run-time error, 2 usage, 3 data."))
    return 0;
  expect_single_task();
  const std::string out = options.text("out"), format = options.text("format"),
                    transfer_name = options.text("transfer");
  if (out.empty()) fail_usage("--out is required");
  if (format != "tfrecord" && format != "hdf5") fail_usage("--format: expected tfrecord or hdf5, found " + format);
  if (transfer_name != "eisenstein-hu" && transfer_name != "bbks")
    fail_usage("--transfer: expected eisenstein-hu or bbks, found " + transfer_name);
  options.refuse_idle(
      {{"crop", format == "tfrecord" || options.toggle("gzip"),
        "--format hdf5 --no-gzip: universes stay whole, and only compressed ones are cut into chunks"}});
  const auto transfer = transfer_name == "bbks" ? simulate::Transfer::bbks : simulate::Transfer::eisenstein_hu;
  const int64_t size = options.integer("size"), crop = options.integer("crop") ? options.integer("crop") : size;
  if (size < 8 || size % 2 || crop < 1 || size % crop)
    fail_usage(fmt::format("--size must be even and at least 8 and divide into crops, found {} and {}", size, crop));
  const int64_t train = options.integer("universes"), validation = options.integer("validation"),
                steps = options.integer("steps");
  if (train + validation < 1) fail_usage("--universes, --validation: expected one or more in all, found none");
  const int threads = wanted_threads(options);
  const auto seed = static_cast<uint64_t>(options.integer("seed"));
  // Up to there all drawn universes have more matter than baryons, which the transfer functions ask for.
  const double spread = options.number("spread"), voxel = options.number("voxel");
  if (!(voxel >= 1e-6 && voxel <= 1e6))
    fail_usage("--voxel: expected 1e-6 to 1e6 Mpc/h, found " + options.text("voxel"));
  UniverseOptions wish;
  wish.particles = size;
  wish.voxel = voxel;
  wish.seed = seed;
  wish.transfer = transfer;
  wish.steps = static_cast<int>(steps);
  std::set<std::string> folders;
  for (const auto& [name, universes] : {std::pair{"train", train}, {"validation", validation}})
    if (universes > 0)
      folders.insert(fs::path(out) / name);
    else
      refuse_used_folder(fs::path(out) / name);
  const int64_t bytes = bytes_per_voxel * size * size * size;
  const auto left = free_memory();
  if (left && *left < bytes)
    fail_runtime(fmt::format("--size {}: a universe needs {} MiB, {} MiB are free", size, bytes >> 20, *left >> 20));
  NewDataSet data_set(folders, {fs::path(out) / power_file, fs::path(out) / simulation_file});
  expect_displacements(wish, train + validation, spread, threads);

  std::mutex mutex;
  int64_t done = 0;
  // Universes in parallel while there are enough of them, each on one thread; a few large ones share the threads.
  int outer = train + validation >= threads ? threads : 1;
  if (left && *left / bytes < outer) {
    outer = static_cast<int>(*left / bytes);
    say("memory for {} universes at a time, of {} MiB each\n", outer, bytes >> 20);
  }
  const int inner = static_cast<int>(ceil_div(threads, outer));
  outer = static_cast<int>(ceil_div(threads, inner));
  allow_nested_threads();
  parallel_units(train + validation, outer, [&](int64_t universe) {
    const Drawn d = draw_parameters(seed, universe, spread);
    UniverseOptions o = options_of(wish, d);
    o.seed = seed + (static_cast<uint64_t>(universe) << 32);
    o.threads = inner;
    const Universe u = simulate_universe(d.cosmology, o);
    const Job job{(fs::path(out) / (universe < train ? "train" : "validation")).string(),
                  universe,
                  size,
                  crop,
                  format == "hdf5",
                  options.toggle("gzip")};
    if (job.hdf5)
      write_raw(job, u, d);
    else
      write_records(job, u, d);
    if (universe == 0) write_power_plot((fs::path(out) / power_file).string(), u, d, transfer);
    const std::lock_guard lock(mutex);
    if (++done % std::max<int64_t>(1, (train + validation) / 10) == 0)
      say("{} of {} universes\n", done, train + validation), std::fflush(stdout);
  });
  write_simulation(out, "cosmoflow_simulate", options);
  data_set.complete();
  say("wrote {} + {} universes of {}^3 voxels x 4 redshifts to {}\n", train, validation, size, out);
  return 0;
}

}  // namespace
}  // namespace convoy::apps

int main(int argc, char** argv) {
  return convoy::apps::run_program("cosmoflow_simulate", convoy::apps::simulate_main, argc, argv);
}
