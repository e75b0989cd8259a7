#include "apps/common/optimizer_setup.h"

#include "apps/common/run_settings.h"

namespace convoy::apps {

std::vector<Option> optimizer_options(const OptimizerDefaults& defaults) {
  using K = Option::Kind;
  return {{"optimizer", "optimizer.name", defaults.optimizer, "SGD, Adam, AdamW, LAMB, LARC-SGD or LARC-Adam"},
          {"momentum", "optimizer.momentum", "0.9", "SGD, LARC-SGD", K::number},
          {"optimizer-betas", "", "0.9,0.999", "Adam, AdamW, LAMB, LARC-Adam: decay of the two moments", K::numbers},
          {"adam-eps", "", defaults.adam_eps,
           std::string("Adam, AdamW, LAMB, LARC-Adam") +
               (defaults.adam_eps.empty() ? " (default: as the network's reference, 1e-6 in deepcam, else 1e-8)" : ""),
           K::number},
          Option{"weight-decay", "", defaults.weight_decay,
                 std::string("AdamW, LAMB: decoupled; Adam, LARC-Adam: added to the gradients") +
                     (defaults.weight_decay.empty() ? " (default: as the network's reference, 1e-6 in deepcam, else 0)"
                                                    : ""),
                 K::number}
              .within(0),
          Option{"max-grad-norm", "", "1", "LAMB: norm that gradients are scaled down to", K::number}.within(0),
          {"larc-eta", "", "0.002", "LARC: trust coefficient", K::number},
          Option{"gradient-accumulation-frequency", "", "1", "passes whose gradients are averaged before an update",
                 K::integer}
              .within(1, 1 << 20),
          Option{"gradient-lag", "", "0", "1: apply the gradients of the step before (in f16 with --loss-scale)",
                 K::integer}
              .within(0, 1),
          Option{"loss-scale", "", "0",
                 "f16: a constant factor on the loss, which ends the run where gradients overflow (0: one that adapts)",
                 K::number}
              .within(0, 1e9)};
}

std::vector<std::string> optimizer_flags() {
  std::vector<std::string> flags;
  for (const Option& option : optimizer_options({})) flags.push_back(option.flag);
  return flags;
}

TrainingOptions optimizer_config(const OptionTable& o) {
  TrainingOptions t;
  const std::string& name = o.text("optimizer");
  t.optimizer = choose<OptimizerKind>(o, "optimizer",
                                      {{"SGD", OptimizerKind::sgd},
                                       {"sgd", OptimizerKind::sgd},  // Keras' names
                                       {"Adam", OptimizerKind::adam},
                                       {"adam", OptimizerKind::adam},
                                       {"AdamW", OptimizerKind::adam},
                                       {"LAMB", OptimizerKind::lamb},
                                       {"LARC-SGD", OptimizerKind::sgd},
                                       {"LARC-Adam", OptimizerKind::adam}});
  const bool sgd = t.optimizer == OptimizerKind::sgd, lamb = t.optimizer == OptimizerKind::lamb,
             larc = name.starts_with("LARC");
  o.refuse_idle({{"momentum", sgd, "--optimizer " + name},
                 {"optimizer-betas", !sgd, "--optimizer " + name},
                 {"adam-eps", !sgd, "--optimizer " + name},
                 {"weight-decay", !sgd, "--optimizer " + name},
                 {"max-grad-norm", lamb, "--optimizer " + name},
                 {"larc-eta", larc, "--optimizer " + name},
                 {"loss-scale", o.text("compute") == "f16", "--compute " + o.text("compute")}});
  const auto within = [&](const char* flag, bool good, const char* expected) {
    if (!good) fail_usage(o.name(flag) + ": expected " + expected + ", found " + o.text(flag));
  };
  const std::vector<double> betas = o.numbers("optimizer-betas");
  const auto fades = [](double share) { return share >= 0 && share < 1; };
  within("optimizer-betas", betas.size() == 2 && fades(betas[0]) && fades(betas[1]), "two numbers of [0, 1)");
  within("momentum", fades(o.number("momentum")), "a number of [0, 1)");
  within("adam-eps", o.number("adam-eps") > 0, "a number above 0");
  within("larc-eta", o.number("larc-eta") > 0, "a number above 0");
  const double decay = o.number("weight-decay");
  const bool coupled = name != "AdamW";
  t.adam = {betas[0], betas[1], o.number("adam-eps"), coupled ? 0 : decay, coupled ? decay : 0};
  t.adam.larc = t.sgd.larc = larc ? o.number("larc-eta") : 0;
  t.lamb = {betas[0], betas[1], o.number("adam-eps"), decay, o.number("max-grad-norm")};
  t.sgd.momentum = o.number("momentum");
  t.accumulation = o.integer("gradient-accumulation-frequency");
  t.lag = o.integer("gradient-lag");
  if (const double scale = o.number("loss-scale"); scale > 0) t.scaling_stays = true, t.initial_scale = scale;
  if (t.lag > 0 && o.text("device") != "cpu")
    fail_usage("--gradient-lag: expected 0 with --device " + o.text("device") + ", found " + o.text("gradient-lag"));
  return t;
}

}  // namespace convoy::apps
